# SPDX-License-Identifier: Apache-2.0
"""Fused layers: shards of several types in one buffer, and their parts over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear
from unit.gguf.packed_layers import PLAIN, EngineLinear, blocks, config_of, create, dense, numbers, whole_numbers

from weight_readers import TargetMismatchError, UnsupportedDtypeError
from weight_readers_gguf.methods import GGUFConfig, Workspace, compute
from weight_readers_gguf.methods.compute import rows_of
from weight_readers_gguf.methods.segments import Group, lay_out
from weight_readers_gguf.types import BY_NAME

COLUMNS = 512
TYPES = {"q": "Q4_0", "k": "Q4_0", "v": "Q6_K"}
ROWS = {"q": 16, "k": 8, "v": 8}
SHARDS = {shard: blocks(TYPES[shard], ROWS[shard], COLUMNS, seed=at) for at, shard in enumerate("qkv")}
# In the file v comes first: the order of a layer is not that of the file.
HELD = {f"attn.{shard}_proj.weight": (TYPES[shard], SHARDS[shard]) for shard in "vkq"}
WEIGHT = torch.cat([dense(TYPES[shard], SHARDS[shard]) for shard in "qkv"])


@pytest.fixture
def config(tmp_path: Path) -> GGUFConfig:
    return config_of(tmp_path, HELD)


def qkv(**options: Any) -> EngineLinear:
    return EngineLinear(COLUMNS, list(ROWS.values()), **options)


def test_shards_of_several_types_lie_in_one_buffer_without_padding(config: GGUFConfig) -> None:
    layer = qkv()
    create(config, layer, "attn.qkv_proj")
    qweight: Any = layer.get_parameter("qweight")
    assert qweight.shape == (sum(shard.numel() for shard in SHARDS.values()),)
    assert qweight.ggml_type is None
    assert not hasattr(qweight, "output_dim")
    assert [(s.run.type.name, s.run.row, s.run.rows) for s in qweight.segments] == [
        ("Q4_0", 0, 16),
        ("Q4_0", 16, 8),
        ("Q6_K", 24, 8),
    ]


def test_a_fused_layer_of_several_types_computes_in_its_own_order(config: GGUFConfig) -> None:
    layer = qkv()
    method = create(config, layer, "attn.qkv_proj")
    for shard in ("v", "q", "k"):  # as the file has them
        method.load_shard(layer, SHARDS[shard], shard)
    x = numbers(2, 3, COLUMNS)
    assert method.apply(layer, x).equal(linear(x, WEIGHT))


def test_shards_are_known_by_letter_position_and_tensor_name(config: GGUFConfig) -> None:
    expected = torch.cat([SHARDS[shard].flatten() for shard in "qkv"])
    for names in ("qkv", range(3), [f"attn.{shard}_proj.weight" for shard in "qkv"]):
        layer = qkv()
        create(config, layer, "attn.qkv_proj")
        loader = layer.get_parameter("qweight").weight_loader  # type: ignore[attr-defined]
        for shard, name in zip("qkv", names, strict=True):
            loader(layer.get_parameter("qweight"), SHARDS[shard], name)
        assert layer.get_parameter("qweight").equal(expected)


def test_an_engines_loader_is_not_used_on_a_flat_buffer(config: GGUFConfig) -> None:
    layer = qkv()
    loader = object()
    create(config, layer, "attn.qkv_proj", weight_loader=loader)
    assert layer.get_parameter("qweight").weight_loader is not loader  # type: ignore[attr-defined]


def test_shards_of_one_type_are_one_matrix(tmp_path: Path) -> None:
    gate, up = blocks("Q8_0", 4, 64), blocks("Q8_0", 4, 64, seed=1)
    config = config_of(tmp_path, {"mlp.up_proj.weight": ("Q8_0", up), "mlp.gate_proj.weight": ("Q8_0", gate)})
    layer = EngineLinear(64, [4, 4])
    method = create(config, layer, "mlp.gate_up_proj")
    method.load_shard(layer, up, 1)
    method.load_shard(layer, gate, 0)
    assert layer.get_parameter("qweight").equal(torch.cat([gate, up]))


def test_a_tensor_fused_in_the_file_is_loaded_whole(tmp_path: Path) -> None:
    packed = blocks("Q4_0", 32, 64)
    layer = EngineLinear(64, [16, 8, 8])
    method = create(config_of(tmp_path, {"attn.qkv_proj.weight": ("Q4_0", packed)}), layer, "attn.qkv_proj")
    method.load_shard(layer, packed)
    assert layer.get_parameter("qweight").equal(packed)
    x = numbers(3, 64)
    assert method.apply(layer, x).equal(linear(x, dense("Q4_0", packed)))


@pytest.mark.parametrize("dtype", list(PLAIN))
def test_a_shard_of_plain_numbers_lies_beside_packed_ones(tmp_path: Path, dtype: torch.dtype) -> None:
    gate, up = blocks("MXFP4", 3, 32), whole_numbers(5, 32).to(dtype)  # 51 bytes, then numbers at an odd one
    config = config_of(tmp_path, {"gate_proj.weight": ("MXFP4", gate), "up_proj.weight": (PLAIN[dtype], up)})
    layer = EngineLinear(32, [3, 5])
    method = create(config, layer, "gate_up_proj")
    method.load_shard(layer, gate, 0)
    method.load_shard(layer, up, 1)
    assert layer.get_parameter("qweight").shape == (3 * 17 + 5 * 32 * dtype.itemsize,)
    x = numbers(2, 32)
    assert method.apply(layer, x).equal(linear(x, torch.cat([dense("MXFP4", gate), up.float()])))


def test_a_shard_of_integers_beside_packed_ones_is_refused(tmp_path: Path) -> None:
    held = {"gate_proj.weight": ("Q8_0", blocks("Q8_0", 2, 32)), "up_proj.weight": ("I32", torch.ones(2, 32).int())}
    with pytest.raises(UnsupportedDtypeError, match=r"beside packed ones .*'up_proj.weight' .*found I32"):
        create(config_of(tmp_path, held), EngineLinear(32, [2, 2]), "gate_up_proj")


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_of_a_fused_layer_together_compute_the_whole(config: GGUFConfig, world: int) -> None:
    x = numbers(3, COLUMNS)
    expected = linear(x, WEIGHT)
    outs = []
    for rank in range(world):
        layer = qkv(tp_rank=rank, tp_size=world)
        method = create(config, layer, "attn.qkv_proj")
        for shard in "qkv":
            method.load_shard(layer, SHARDS[shard], shard)
        sizes = [ROWS[shard] // world for shard in "qkv"]
        outs.append(method.apply(layer, x).split(sizes, dim=-1))
    whole = torch.cat([torch.cat([out[at] for out in outs], dim=-1) for at in range(3)], dim=-1)
    torch.testing.assert_close(whole, expected)


def test_ranks_that_share_a_kv_head_hold_the_same_rows(config: GGUFConfig) -> None:
    held = []
    for rank in range(4):
        layer = qkv(tp_rank=rank, tp_size=4, kv_replicas=2)
        method = create(config, layer, "attn.qkv_proj")
        assert layer.output_size > sum(ROWS.values())  # engines count replicas twice
        for shard in "qkv":
            method.load_shard(layer, SHARDS[shard], shard)
        held.append(layer.get_parameter("qweight"))
    for rank, found in enumerate(held):
        parts = [SHARDS["q"].chunk(4)[rank], SHARDS["k"].chunk(2)[rank // 2], SHARDS["v"].chunk(2)[rank // 2]]
        assert found.equal(torch.cat([part.flatten() for part in parts]))


@pytest.mark.parametrize("world", [1, 2])
def test_partial_sums_over_a_split_input_add_up_to_the_whole(config: GGUFConfig, world: int) -> None:
    x = numbers(3, COLUMNS)
    total = torch.zeros(3, WEIGHT.shape[0])
    for rank in range(world):
        layer = qkv(tp_rank=rank, tp_size=world, by_row=True)
        method = create(config, layer, "attn.qkv_proj")
        for shard in "qkv":
            method.load_shard(layer, SHARDS[shard], shard)
        total += method.apply(layer, x.chunk(world, dim=1)[rank])
    torch.testing.assert_close(total, linear(x, WEIGHT), rtol=1e-5, atol=1e-3)


def test_this_ranks_part_is_taken_as_well_as_the_whole(config: GGUFConfig) -> None:
    found = []
    for cut in (False, True):
        layer = qkv(tp_rank=1, tp_size=2)
        method = create(config, layer, "attn.qkv_proj")
        for shard in "qkv":
            method.load_shard(layer, SHARDS[shard].chunk(2)[1] if cut else SHARDS[shard], shard)
        found.append(layer.get_parameter("qweight"))
    assert found[0].equal(found[1])


def test_a_split_layer_that_does_not_know_its_rank_is_refused(config: GGUFConfig) -> None:
    layer = qkv(tp_size=2)
    method = create(config, layer, "attn.qkv_proj")
    with pytest.raises(ValueError, match="split over 2 ranks and nothing says which one this is"):
        method.load_shard(layer, SHARDS["q"], "q")
    method.load_shard(layer, SHARDS["q"], "q", rank=1)
    with pytest.raises(ValueError, match="there is no rank 2"):
        method.load_shard(layer, SHARDS["q"], "q", rank=2)


def test_an_unaligned_shard_of_one_type_refuses_the_split_of_all(tmp_path: Path) -> None:
    held = {"gate_proj.weight": ("Q8_0", blocks("Q8_0", 2, 256)), "up_proj.weight": ("Q6_K", blocks("Q6_K", 2, 256))}
    layer = EngineLinear(256, [2, 2], tp_rank=0, tp_size=2, by_row=True)
    with pytest.raises(TargetMismatchError, match=r"128 a rank, no whole number of Q6_K blocks of 256. .* size of 1"):
        create(config_of(tmp_path, held), layer, "gate_up_proj")


def test_shards_that_do_not_make_up_the_layer_are_refused(config: GGUFConfig) -> None:
    with pytest.raises(TargetMismatchError) as caught:
        create(config, EngineLinear(COLUMNS, [16, 8, 16]), "attn.qkv_proj")
    assert "attn.v_proj.weight [8, 512]" in str(caught.value)
    assert "the layer wants [40, 512] (outputs of [16, 8, 16] rows)" in str(caught.value)


def test_an_unknown_shard_is_refused_with_those_there_are(config: GGUFConfig) -> None:
    layer = qkv()
    method = create(config, layer, "attn.qkv_proj")
    for shard in (3, -1, "o", None):
        with pytest.raises(TargetMismatchError, match=r"no shard .*: 0 \(attn.q_proj.weight, Q4_0\), 1 "):
            method.load_shard(layer, SHARDS["q"], shard)


def test_bytes_of_another_width_or_dtype_are_refused(config: GGUFConfig) -> None:
    layer = qkv()
    method = create(config, layer, "attn.qkv_proj")
    with pytest.raises(TargetMismatchError, match=r"have shape \[8, 288\], expected \[8, 420\]"):
        method.load_shard(layer, SHARDS["k"], "v")
    with pytest.raises(TargetMismatchError, match=r"takes Q6_K as uint8 .*, not float32 \[8, 512\]"):
        method.load_shard(layer, torch.zeros(8, 512), "v")


def test_offsets_beyond_four_gibibytes_are_exact_and_shapes_beyond_two_thirty_one_elements_too() -> None:
    groups = [Group(name, BY_NAME[kind], 1 << 18, 1 << 18) for name, kind in (("a", "Q8_0"), ("b", "Q6_K"))]
    layout = lay_out("big", groups, columns=1 << 14, whole_columns=1 << 14, world=1)
    first, second = layout.runs
    assert second.offset == first.nbytes == (1 << 32) // 32 * 34
    assert layout.stored_shape == ((1 << 32) // 32 * 34 + (1 << 32) // 256 * 210,)
    with torch.device("meta"):
        qweight, x = torch.empty(layout.stored_shape, dtype=torch.uint8), torch.empty(2, 1 << 14)
    assert rows_of(qweight, second).storage_offset() == second.offset
    assert compute.linear(x, qweight, layout, None, Workspace()).shape == (2, 1 << 19)


def test_a_compiler_sees_one_graph(config: GGUFConfig) -> None:
    torch._dynamo.reset()
    layer = qkv()
    method = create(config, layer, "attn.qkv_proj")
    for shard in "qkv":
        method.load_shard(layer, SHARDS[shard], shard)
    compiled = torch.compile(lambda x: method.apply(layer, x), fullgraph=True, backend="aot_eager")
    x = numbers(3, COLUMNS)
    torch.testing.assert_close(compiled(x), linear(x, WEIGHT))
