# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

import pytest
from benchmarks.rounds import orders
from benchmarks.settings import LIMIT, MIB, READER, parse_size
from benchmarks.summary import Spread, reader_of, times_of
from benchmarks.verdicts import MMAP, PREAD, RUNAI, VLLM, Verdict, verdicts


def seconds(*values: float) -> list[dict[str, float]]:
    return [{"round": number, "seconds": value} for number, value in enumerate(values)]


def judged(results: dict[str, dict[str, list[dict[str, float]]]], what: str) -> Verdict:
    (found,) = [each for each in verdicts(results, largest_bytes=8 * MIB) if what in each.what]
    return found


def test_every_round_has_every_arm_once_and_no_arm_keeps_its_place() -> None:
    found = orders(["a", "b", "c"], 4)
    assert all(sorted(order) == ["a", "b", "c"] for order in found)
    assert found == [["a", "b", "c"], ["b", "a", "c"], ["c", "a", "b"], ["a", "c", "b"]]


def test_no_arm_follows_the_same_one_twice_before_it_has_followed_all_others() -> None:
    arms = [str(number) for number in range(11)]
    pairs = [pair for order in orders(arms, 10) for pair in pairwise(order)]
    assert len(set(pairs)) == len(pairs) == 10 * 10


def test_a_ratio_compares_within_rounds() -> None:
    assert Spread(2.0, 2.0, 4.0) == times_of(seconds(2, 20, 4), seconds(1, 10, 1))


def test_a_round_that_failed_has_no_part_in_a_ratio() -> None:
    arm = [{"round": 0, "error": "killed"}, {"round": 1, "seconds": 3.0}]
    assert Spread(3.0, 3.0, 3.0) == times_of(arm, seconds(1, 1))
    assert times_of([{"round": 0, "error": "killed"}], seconds(1)) is None


def test_the_fallback_is_the_measure_where_the_threaded_reader_is_not_there() -> None:
    assert reader_of({LIMIT: seconds(1), "weight-readers safetensors": seconds(2)}) == "weight-readers safetensors"
    assert reader_of({LIMIT: seconds(1)}) is None


@pytest.mark.parametrize(("time", "met"), [(0.9, True), (0.84, False)])
def test_the_share_of_the_limit_is_its_time_over_the_readers(time: float, met: bool) -> None:
    found = judged({"warm-into": {LIMIT: seconds(time), READER: seconds(1)}}, "warm into parameters, of the limit")
    assert found.met is met


def test_the_better_of_the_two_runai_arms_counts() -> None:
    arms = {READER: seconds(1), RUNAI[0]: seconds(9), RUNAI[1]: seconds(3)}
    found = judged({"warm-into": arms}, "Run:ai")
    assert (found.value.split()[0], found.met) == ("3.00", False)


def test_a_ratio_that_the_limit_itself_does_not_come_to_is_called_out_of_reach() -> None:
    arms = {READER: seconds(1), LIMIT: seconds(0.8), MMAP: seconds(1.4), VLLM: seconds(1.3)}
    beyond = judged({"warm-into": arms}, "into parameters, times safetensors")
    within = judged({"warm-into": arms}, "vLLM")
    assert str(beyond).endswith("NOT MET, out of reach: the limit itself is 1.75 (1.75 to 1.75)")
    assert str(within).endswith(": NOT MET")


def test_what_was_not_measured_is_said_and_not_met_nor_missed() -> None:
    found = judged({"warm-into": {READER: seconds(1)}}, "vLLM")
    assert found.met is None
    assert VLLM in found.value
    assert str(found).endswith(": not measured")


def test_a_reader_is_behind_a_peer_that_was_faster_in_every_round() -> None:
    reader = seconds(1, 1)
    assert judged({"cold-into": {READER: reader, MMAP: seconds(0.9, 1.1)}}, "every peer").met is True
    behind = judged({"cold-into": {READER: reader, MMAP: seconds(0.9, 0.95)}}, "every peer")
    assert (behind.met, "behind safetensors mmap + copy" in behind.value) == (False, True)


def test_memory_is_judged_by_the_worst_round() -> None:
    rounds = [{"round": 0, "anon_beyond": 1 * MIB}, {"round": 1, "anon_beyond": 65 * MIB}]
    assert judged({"warm-into": {READER: rounds}}, "read_into").met is False
    slow = [{"round": 0, "anon_beyond": 264 * MIB}]
    assert judged({"memory-slow": {READER: slow}}, "slow consumer").met is True


def test_bytes_read_are_judged_against_the_bytes_wanted() -> None:
    warm = [{"round": 0, "bytes": 1000, "rchar": 1010, "read_bytes": 0}]
    cold = [{"round": 0, "bytes": 1000, "rchar": 1000, "read_bytes": 1011}]
    assert judged({"keys-warm": {READER: warm}}, "keys-warm").met is True
    assert judged({"rows-cold": {READER: cold}}, "rows-cold").met is False


def test_a_stall_is_shown_beside_those_of_the_same_run() -> None:
    arms = {READER: [{"stall": 0.002}, {"stall": 0.03}, {"stall": 0.004}], PREAD: [{"stall": 0.016}]}
    found = judged({"ticker-into": arms}, "ticker")
    assert (found.met, "4.0 ms" in found.value, "safetensors pread 16.0 ms" in found.value) == (True, True, True)


@pytest.mark.parametrize(("text", "size"), [("2GiB", 2 << 30), ("128 mib", 128 << 20), ("512", 512), ("3KiB", 3072)])
def test_sizes_are_written_in_binary_units(text: str, size: int) -> None:
    assert size == parse_size(text)


@pytest.mark.parametrize("text", ["", "2GB", "-1MiB", "1.5GiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
