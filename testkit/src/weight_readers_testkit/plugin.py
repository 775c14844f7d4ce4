# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: its fixtures, what to mend beside each failure, and no way around the kit's meta-test."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weight_readers_testkit.elsewhere import Elsewhere

pytest.register_assert_rewrite("weight_readers_testkit")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "weight_readers_gate: runs although the reader cannot be made")


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Elsewhere]:
    """A spawned process for what would harm this one, or needs one that has not forked nor threads."""
    from weight_readers_testkit.elsewhere import Elsewhere

    worker = Elsewhere()
    yield worker
    worker.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside a failure of the contract stands what to mend: the docstring of the kit's own test."""
    report = yield
    add = getattr(report.longrepr, "addsection", None)
    if report.when == "call" and report.failed and add is not None:
        remedy = _remedy(getattr(item, "cls", None), getattr(item, "originalname", ""))
        if remedy is not None:
            add("what to mend (docs/writing-a-reader.md explains the names)", remedy)
    return report


def _remedy(subject: type | None, test: str) -> str | None:
    for base in getattr(subject, "__mro__", ()):
        if base.__module__.startswith("weight_readers_testkit.") and test in vars(base):
            return inspect.getdoc(vars(base)[test])
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """Refuse a contract class in which the test that finds removed tests was itself removed or replaced."""
    if isinstance(obj, type) and any(base.__module__.startswith("weight_readers_testkit.") for base in obj.__mro__):
        from weight_readers_testkit.overrides import Overrides

        if issubclass(obj, Overrides) and obj is not Overrides and Overrides.is_replaced_in(obj):
            raise pytest.UsageError(f"{obj.__name__} replaces {Overrides.NAME}, which no class of readers may")
