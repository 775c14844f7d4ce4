# SPDX-License-Identifier: Apache-2.0
"""The regret of an automatic choice, from figures that are written here."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.policy import ARMS, AUTO, CASES, SLACK_BYTES, TIGHT, Case, lines, made_alike, regret

MIB = 1 << 20
CASE = Case("cold", "keep", "whole")


def rounds(*seconds: float, anon: int = 0) -> list[dict[str, Any]]:
    made = {"reader": "safetensors", "settings": {}}
    return [{"seconds": each, "choosing": 0.0015, "anon": anon, **made} for each in seconds]


@pytest.fixture
def results() -> dict[str, list[dict[str, Any]]]:
    slow = {name: rounds(9.0, 9.0, 9.0) for name in ARMS}
    return {**slow, AUTO: rounds(2.2, 1.1, 1.0), TIGHT: rounds(2.0, 2.0, 2.0), "mapped": rounds(2.0, 1.0, 1.0)}


def test_there_is_a_case_for_each_cache_kind_and_part() -> None:
    assert len(set(map(str, CASES))) == 2 * 2 * 3


def test_it_is_the_ratio_to_the_arm_with_the_least_median(results: Any) -> None:
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
    count, first, second, _ = lines(CASE, results, MIB)
    assert count == "cold keep whole, 3 rounds"
    assert first == (
        "cold keep whole, auto: 1100 ms (1.5 looking and choosing), 1.10 x mapped (1000 ms) (the same); safetensors()"
    )
    assert second.endswith("9 of 1 MiB of memory; safetensors()  OVER 1.15  OVER THE BUDGET")


def test_the_arm_that_is_made_like_the_choice_is_told_of_where_another_is_faster(results: Any) -> None:
    results["runai"] = rounds(0.5, 0.5, 0.5)
    assert "2.20 x runai (500 ms), 1.10 x mapped, which is the same; safetensors()" in lines(CASE, results, MIB)[1]


def test_the_least_and_the_most_of_each_arm_stand_beside_its_median(results: Any) -> None:
    assert "mapped 1000 (1000-2000)/0" in lines(CASE, results, MIB)[3]


@pytest.mark.parametrize(
    ("reader", "settings", "arms"),
    [
        ("safetensors", {}, ["mapped"]),
        ("safetensors", {"prefetch": 2}, ["mapped, prefetch 2"]),
        ("threaded", {"num_threads": 2, "max_in_flight_bytes": 9}, ["threaded 2"]),
        ("threaded", {}, []),
        ("runai_streamer", {"memory_limit": 9}, ["runai"]),
        ("pt", {}, []),
    ],
)
def test_arms_are_made_alike_where_reader_and_settings_are(reader: str, settings: Any, arms: list[str]) -> None:
    assert arms == [arm for arm in ARMS if made_alike({"reader": reader, "settings": settings}, arm)]


def test_a_choice_that_fails_is_told(results: Any) -> None:
    results[TIGHT] = [{"error": "the load needs more"}]
    assert lines(CASE, results, MIB)[2] == "cold keep whole, auto, tight: the load needs more"
