# SPDX-License-Identifier: Apache-2.0
"""Which part of a packed tensor each rank gets: all of them together are the tensor, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from unit.gguf.packed_layers import ALL, blocks, dense, whole_numbers

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods.parallel import Part, byte_ranges, column, merged, qkv, row, slice_packed, vocab
from weight_readers_gguf.types import BY_NAME, TYPES

every_type = pytest.mark.parametrize("name", [TYPES[each].name for each in ALL])
WORLDS = (1, 2, 4)


@dataclass(frozen=True)
class Meta:
    """What a header says of a tensor."""

    type: int
    shape: tuple[int, ...]
    name: str = "blk.0.ffn_down.weight"


def tensor(name: str, rows: int, columns: int) -> tuple[Meta, torch.Tensor]:
    return Meta(BY_NAME[name].id, (rows, columns)), blocks(name, rows, columns)


def by_blocks(name: str) -> int:
    """Columns that four ranks can share."""
    return 4 * BY_NAME[name].block


@every_type
def test_rows_of_all_ranks_concatenate_to_the_tensor_and_multiply_like_it(name: str) -> None:
    meta, packed = tensor(name, 8, by_blocks(name))
    x = whole_numbers(3, meta.shape[1]).sign()  # sums are exact in any order
    expected = x @ dense(name, packed).T
    for world in WORLDS:
        parts = [slice_packed(packed, column(meta, rank=rank, world=world)) for rank in range(world)]
        assert torch.cat(parts).equal(packed)
        assert torch.cat([x @ dense(name, part).T for part in parts], dim=1).equal(expected)


@every_type
def test_columns_of_all_ranks_concatenate_to_the_tensor_and_add_up_like_it(name: str) -> None:
    meta, packed = tensor(name, 8, by_blocks(name))
    x = whole_numbers(3, meta.shape[1]).sign()  # sums are exact in any order
    expected = x @ dense(name, packed).T
    for world in WORLDS:
        parts = [slice_packed(packed, row(meta, rank=rank, world=world)) for rank in range(world)]
        assert torch.cat(parts, dim=1).equal(packed)
        halves = zip(x.chunk(world, dim=1), parts, strict=True)
        total = torch.stack([some @ dense(name, part.contiguous()).T for some, part in halves]).sum(0)
        assert total.equal(expected)


@every_type
def test_a_columns_part_holds_the_numbers_of_the_dense_slice(name: str) -> None:
    meta, packed = tensor(name, 2, by_blocks(name))
    whole = dense(name, packed)
    for rank in range(4):
        part = slice_packed(packed, row(meta, rank=rank, world=4)).contiguous()
        assert dense(name, part).equal(whole.chunk(4, dim=1)[rank])


def test_each_output_of_a_merged_tensor_is_split_by_itself() -> None:
    meta, packed = tensor("Q4_K", 12, 256)
    gate, up = packed[:8], packed[8:]
    parts = [slice_packed(packed, merged(meta, [8, 4], rank=rank, world=2)) for rank in range(2)]
    assert parts[0].equal(torch.cat([gate[:4], up[:2]]))
    assert parts[1].equal(torch.cat([gate[4:], up[2:]]))


def test_heads_of_a_fused_qkv_are_split_by_themselves() -> None:
    meta, packed = tensor("Q4_0", 16, 32)  # 4 heads, 2 kv heads, 2 rows each
    q, k, v = packed[:8], packed[8:12], packed[12:]
    for rank in range(2):
        parts = qkv(meta, heads=4, kv_heads=2, rank=rank, world=2)
        expected = torch.cat([q.chunk(2)[rank], k.chunk(2)[rank], v.chunk(2)[rank]])
        assert slice_packed(packed, parts).equal(expected)


def test_ranks_share_a_kv_head_where_there_are_more_ranks_than_kv_heads() -> None:
    meta, packed = tensor("Q4_0", 16, 32)
    q, k, v = packed[:8], packed[8:12], packed[12:]
    for rank in range(4):
        parts = qkv(meta, heads=4, kv_heads=2, rank=rank, world=4)
        expected = torch.cat([q.chunk(4)[rank], k.chunk(2)[rank // 2], v.chunk(2)[rank // 2]])
        assert slice_packed(packed, parts).equal(expected)


def test_ranks_differ_and_none_is_the_first_by_default() -> None:
    meta, packed = tensor("Q8_0", 8, 32)
    parts = [slice_packed(packed, column(meta, rank=rank, world=4)) for rank in range(4)]
    assert all(not parts[0].equal(other) for other in parts[1:])
    with pytest.raises(TypeError, match="rank"):
        column(meta, world=4)  # type: ignore[call-arg]


def test_a_padded_vocabulary_ends_in_rows_of_zeros() -> None:
    meta, packed = tensor("Q6_K", 5, 256)
    parts = [vocab(meta, padded_rows=12, rank=rank, world=3) for rank in range(3)]
    assert [(part.rows, part.padding) for part in parts] == [(4, 0), (1, 3), (0, 4)]
    together = torch.cat([slice_packed(packed, part) for part in parts])
    assert together[:5].equal(packed)
    assert together.shape == (12, packed.shape[1])
    assert not together[5:].any()


@every_type
def test_zero_bytes_are_zeros_in_every_type(name: str) -> None:
    kind = BY_NAME[name]
    assert not dense(name, torch.zeros(1, kind.nbytes, dtype=torch.uint8)).any()


@pytest.mark.parametrize(
    ("columns", "world", "sizes"), [(1024, 8, "4"), (1024, 3, "2 or 4"), (2304, 2, "1 or 3"), (256, 2, "1")]
)
def test_a_cut_through_a_block_is_refused_with_the_sizes_that_fit(columns: int, world: int, sizes: str) -> None:
    with pytest.raises(TargetMismatchError) as caught:
        row(Meta(BY_NAME["Q4_K"].id, (8, columns)), rank=0, world=world)
    message = str(caught.value)
    assert "'blk.0.ffn_down.weight' cannot be split over" in message
    assert f"{columns} columns make {columns / world:g} a rank, no whole number of Q4_K blocks of 256" in message
    assert f"Use a tensor-parallel size of {sizes}," in message


def test_a_block_of_32_can_be_split_where_a_super_block_could_not() -> None:
    assert row(Meta(BY_NAME["IQ4_NL"].id, (8, 128)), rank=3, world=4) == Part(0, 8, 54, 18)


def test_rows_that_the_ranks_do_not_divide_are_refused() -> None:
    meta = Meta(BY_NAME["Q4_0"].id, (10, 32))
    with pytest.raises(TargetMismatchError, match="over 4 ranks along its output: 10 rows"):
        column(meta, rank=0, world=4)
    with pytest.raises(TargetMismatchError, match="by heads: it has 4 heads and 3 kv heads"):
        qkv(meta, heads=4, kv_heads=3, rank=0, world=3)
    with pytest.raises(TargetMismatchError, match="by heads: it has 4 heads and 3 kv heads"):
        qkv(meta, heads=4, kv_heads=3, rank=0, world=2)


def test_outputs_that_do_not_add_up_to_the_tensor_are_refused() -> None:
    with pytest.raises(TargetMismatchError, match=r"has 10 rows, the outputs in it have 12 \(\[8, 4\]\)"):
        merged(Meta(BY_NAME["Q4_0"].id, (10, 32)), [8, 4], rank=0, world=2)


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_of_the_group_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {world} ranks"):
        column(Meta(BY_NAME["Q4_0"].id, (8, 32)), rank=rank, world=world)


def test_whole_rows_are_one_range_of_the_file_and_columns_are_one_per_row() -> None:
    meta = Meta(BY_NAME["Q4_0"].id, (4, 64))
    assert list(byte_ranges(column(meta, rank=1, world=2), row_bytes=36, offset=1000)) == [(1072, 72)]
    cut = list(byte_ranges(row(meta, rank=1, world=2), row_bytes=36, offset=1000))
    assert cut == [(1018, 18), (1054, 18), (1090, 18), (1126, 18)]


def test_offsets_of_tensors_beyond_two_thirty_one_elements_are_exact() -> None:
    meta = Meta(BY_NAME["Q8_0"].id, (1 << 18, 1 << 16))
    ranges = list(byte_ranges(column(meta, rank=3, world=4), row_bytes=34 << 11, offset=7))
    assert ranges == [(7 + 3 * (1 << 16) * (34 << 11), (1 << 16) * (34 << 11))]


def test_a_part_without_padding_is_a_view() -> None:
    meta, packed = tensor("Q4_0", 4, 64)
    part = slice_packed(packed, row(meta, rank=1, world=2))
    assert part.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()
