# SPDX-License-Identifier: Apache-2.0
"""The regret of an automatic choice, from figures that are written here."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.policy import ARMS, AUTO, CASES, SLACK_BYTES, TIGHT, Case, lines, regret

MIB = 1 << 20
CASE = Case("cold", "keep", "whole")


def rounds(*seconds: float, anon: int = 0) -> list[dict[str, Any]]:
    return [{"seconds": each, "choosing": 0.0015, "anon": anon, "made": "mapped()"} for each in seconds]


@pytest.fixture
def results() -> dict[str, list[dict[str, Any]]]:
    slow = {name: rounds(9.0, 9.0, 9.0) for name in ARMS}
    return {**slow, AUTO: rounds(2.2, 1.1, 1.0), TIGHT: rounds(2.0, 2.0, 2.0), "mapped": rounds(2.0, 1.0, 1.0)}


def test_there_is_a_case_for_each_cache_kind_and_part() -> None:
    assert len(set(map(str, CASES))) == 2 * 2 * 3


def test_it_is_the_median_of_the_ratios_to_the_arm_with_the_least_median(results: Any) -> None:
    ratio, best = regret(results, AUTO, None)
    assert (pytest.approx(1.1), "mapped") == (ratio, best)


def test_with_a_budget_only_arms_that_kept_to_it_count(results: Any) -> None:
    results["copied"] = rounds(0.1, 0.1, 0.1, anon=MIB + SLACK_BYTES + 1)
    results["threaded 1"] = rounds(0.5, 0.5, 0.5, anon=MIB + SLACK_BYTES)
    assert regret(results, AUTO, None)[1] == "copied"
    assert regret(results, TIGHT, MIB) == (4.0, "threaded 1")


def test_an_arm_that_failed_is_no_measure(results: Any) -> None:
    results["copied"] = [{"error": "no such reader"}, *rounds(0.1, 0.1)]
    assert regret(results, AUTO, None)[1] == "mapped"
    *_, medians, reason = lines(CASE, results, MIB)
    assert "copied failed" in medians
    assert reason == "    copied: no such reader"


def test_what_is_above_the_goal_or_over_the_budget_is_marked(results: Any) -> None:
    results[TIGHT] = rounds(3.0, 3.0, 3.0, anon=9 * MIB)
    first, second, _ = lines(CASE, results, MIB)
    assert first == ("cold keep whole, auto: 1100 ms (1.5 looking and choosing), 1.10 x mapped (1000 ms); mapped()")
    assert second.endswith("9 of 1 MiB of memory; mapped()  OVER 1.15  OVER THE BUDGET")


def test_a_choice_that_fails_is_told(results: Any) -> None:
    results[TIGHT] = [{"error": "the load needs more"}]
    assert lines(CASE, results, MIB)[1] == "cold keep whole, auto, tight: the load needs more"
