# SPDX-License-Identifier: Apache-2.0
"""Which ranges are asked for: exact, within one block of the file each, small ones joined."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weight_readers_files import FilePlan, Wanted
from weight_readers_runai.requests import BLOCK_BYTES, SMALL_BYTES, Load, loads_of, requests

MIB = 1 << 20


def wanted(name: str, *ranges: tuple[int, int]) -> Wanted:
    begin, end = ranges[0][0], sum(ranges[-1])
    total = sum(length for _, length in ranges)
    return Wanted(name, torch.uint8, (total,), None, ranges, begin, end, total)


def loads(*files: Sequence[Wanted]) -> list[Load]:
    return loads_of(FilePlan(f"/{number}", None, each, False) for number, each in enumerate(files))


def ranges(asked: list[Load], *, gap: int = 0) -> list[list[tuple[str, int, int]]]:
    return [[(b.path, b.offset, b.length) for b in request] for request in requests(asked, gap=gap)]


def test_a_long_tensor_is_cut_where_the_files_blocks_end() -> None:
    asked = ranges(loads([wanted("a", (100, 2 * BLOCK_BYTES))]))
    assert asked == [
        [("/0", 100, BLOCK_BYTES - 100)],
        [("/0", BLOCK_BYTES, BLOCK_BYTES)],
        [("/0", 2 * BLOCK_BYTES, 100)],
    ]


def test_small_neighbours_are_one_range() -> None:
    asked = requests(loads([wanted("a", (0, 10)), wanted("b", (10, 20)), wanted("c", (30, 5))]))
    ((block,),) = asked
    assert (block.offset, block.length, block.is_direct) == (0, 35, False)
    assert [tuple(piece) for piece in block.pieces] == [(0, 0, 0, 10), (1, 0, 10, 20), (2, 0, 30, 5)]


def test_unwanted_bytes_between_small_tensors_are_left_out_beyond_the_gap() -> None:
    apart = [wanted("a", (0, 10)), wanted("b", (110, 20))]
    assert ranges(loads(apart), gap=99) == [[("/0", 0, 10), ("/0", 110, 20)]]
    assert ranges(loads(apart), gap=100) == [[("/0", 0, 130)]]


def test_a_large_tensor_is_read_by_itself() -> None:
    large = SMALL_BYTES + 1
    asked = ranges(loads([wanted("a", (0, 10)), wanted("b", (10, large)), wanted("c", (10 + large, 10))]))
    assert asked == [[("/0", 0, 10), ("/0", 10, large), ("/0", 10 + large, 10)]]


def test_small_tensors_of_two_blocks_of_the_file_are_not_joined() -> None:
    asked = ranges(loads([wanted("a", (BLOCK_BYTES - 10, 10)), wanted("b", (BLOCK_BYTES, 10))]))
    assert asked == [[("/0", BLOCK_BYTES - 10, 10), ("/0", BLOCK_BYTES, 10)]]


def test_two_files_share_no_request() -> None:
    asked = ranges(loads([wanted("a", (0, 10))], [wanted("b", (0, 10))]))
    assert asked == [[("/0", 0, 10)], [("/1", 0, 10)]]


def test_a_request_has_at_most_a_block_of_bytes() -> None:
    asked = ranges(loads([wanted(str(n), (n * MIB, MIB)) for n in range(20)]))
    assert [len(request) for request in asked] == [8, 8, 4]


def test_a_slice_of_few_rows_is_exact_and_one_of_many_takes_the_gaps_along() -> None:
    few = wanted("few", *((n * 1000, 10) for n in range(64)))
    many = wanted("many", *((n * 1000, 10) for n in range(65)))
    assert sum(length for request in ranges(loads([few])) for _, _, length in request) == 640
    assert ranges(loads([many])) == [[("/0", 0, 64_010)]]


def test_a_tensor_without_elements_asks_for_nothing() -> None:
    assert ranges(loads([wanted("a", (5, 0))])) == []


def test_all_bytes_wanted_are_asked_for_once() -> None:
    sizes = [3, SMALL_BYTES, 7 * MIB, 0, 1, 9 * MIB, SMALL_BYTES + 1, 17]
    offsets = [8 + sum(sizes[:n]) for n in range(len(sizes))]
    asked = loads([wanted(str(n), (o, s)) for n, (o, s) in enumerate(zip(offsets, sizes, strict=True))])
    pieces = [p for request in requests(asked) for block in request for p in block.pieces]
    for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        own = sorted((p.begin, p.offset, p.length) for p in pieces if p.load == number)
        assert size == sum(length for _, _, length in own)
        assert all(at - offset == begin for begin, at, _ in own)
