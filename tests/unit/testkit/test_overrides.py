# SPDX-License-Identifier: Apache-2.0
"""Tests of the kit cannot be dropped without a word."""

from __future__ import annotations

from typing import Any

import pytest

from weight_readers_testkit import ReaderContractTests
from weight_readers_testkit.overrides import Overrides
from weight_readers_testkit.plugin import pytest_pycollect_makeitem

RULE = "test_scalars_keep_their_shape"


def subclass(**members: Any) -> type[ReaderContractTests]:
    return type("TestAcme", (ReaderContractTests,), {"reader_name": "acme", **members})


def check(kind: type[ReaderContractTests]) -> None:
    getattr(kind(), Overrides.NAME)()


def replacement(self: Any) -> None: ...


@pytest.mark.xfail
def marked(self: Any) -> None: ...


def test_a_class_that_takes_all_tests_as_they_are_passes() -> None:
    check(subclass(test_of_its_own=replacement))


def test_a_removed_test_is_found() -> None:
    with pytest.raises(AssertionError, match=f"{RULE} was removed"):
        check(subclass(**{RULE: None}))


def test_a_replaced_test_is_found() -> None:
    with pytest.raises(AssertionError, match=f"{RULE} was replaced"):
        check(subclass(**{RULE: replacement}))


def test_a_test_that_is_marked_without_a_reason_is_found() -> None:
    with pytest.raises(AssertionError, match=f"{RULE} was replaced"):
        check(subclass(**{RULE: marked}))


def test_a_test_that_is_expected_to_fail_for_a_reason_is_allowed() -> None:
    @pytest.mark.xfail(reason="acme/lib#12")
    def test_it(self: Any) -> None: ...

    check(subclass(**{RULE: test_it}))


def test_what_a_class_in_between_removes_is_found_too() -> None:
    with pytest.raises(AssertionError, match=f"{RULE} was removed"):
        check(type("TestBelow", (subclass(**{RULE: None}),), {}))


def test_a_class_that_replaces_the_check_itself_is_not_collected() -> None:
    with pytest.raises(pytest.UsageError, match="TestAcme replaces"):
        pytest_pycollect_makeitem(None, "TestAcme", subclass(**{Overrides.NAME: replacement}))


def test_other_classes_are_collected() -> None:
    for kind in (subclass(), ReaderContractTests, int):
        pytest_pycollect_makeitem(None, "TestAcme", kind)
