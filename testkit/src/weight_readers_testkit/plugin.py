# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: readable assertions in the kit's modules, its fixtures, and no way around its meta-test."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """Refuse a contract class in which the test that finds removed tests was itself removed or replaced."""
    if isinstance(obj, type) and any(base.__module__.startswith("weight_readers_testkit.") for base in obj.__mro__):
        from weight_readers_testkit.overrides import Overrides

        if issubclass(obj, Overrides) and obj is not Overrides and Overrides.is_replaced_in(obj):
            raise pytest.UsageError(f"{obj.__name__} replaces {Overrides.NAME}, which no class of readers may")
