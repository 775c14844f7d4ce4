# SPDX-License-Identifier: Apache-2.0
"""No test of the contract goes missing without a word: removed or replaced ones need a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest


class Overrides:
    NAME: ClassVar[str] = "test_no_test_of_the_contract_is_removed_or_replaced_without_a_reason"

    @pytest.mark.weight_readers_gate
    def test_no_test_of_the_contract_is_removed_or_replaced_without_a_reason(self) -> None:
        """The contract class: mark the override `@pytest.mark.xfail(reason="...")` and call the original, or take it
        out."""
        assert list(_unexplained(type(self))) == []

    @classmethod
    def is_replaced_in(cls, subject: type) -> bool:
        return getattr(subject, cls.NAME, None) is not getattr(cls, cls.NAME)


def _unexplained(subject: type) -> Iterator[str]:
    """What was done to each test of the kit that the class does not have as it is, and that is not marked xfail."""
    for name, original in _contract(subject).items():
        found = getattr(subject, name, None)
        if found is original:
            continue
        if not callable(found):
            yield f"{name} was removed: override it with xfail and a reason"
        elif not any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in _marks(found)):
            yield f"{name} was replaced: mark it @pytest.mark.xfail(reason=...)"


def _contract(subject: type) -> dict[str, Any]:
    """The tests of the kit's own classes that ``subject`` derives from."""
    own = [base for base in subject.__mro__ if base.__module__.startswith("weight_readers_testkit.")]
    return {n: f for base in reversed(own) for n, f in vars(base).items() if n.startswith("test_") and callable(f)}


def _marks(function: Any) -> list[Any]:
    return list(getattr(function, "pytestmark", []))
