# SPDX-License-Identifier: Apache-2.0
"""Packed tensors: renamed, cut and joined by whole rows, and refused by an adapter that does not say it takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import AdapterError, TensorMeta
from weight_readers_loader import open_checkpoint
from weight_readers_loader.adapters import Adapter, Concat, Dtype, GroupedQKV, Made, Prefix, Rename, Split

Q8_0, F32 = 8, 0
BLOCKS = gguf.quantize(
    np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0
)
"""Eight rows of two blocks, as bytes."""


class Doubling(Adapter):
    """Does not say that it takes packed tensors."""

    def plan(self, tensors: Mapping[str, TensorMeta]) -> list[Made]:
        return [Made(meta=meta, sources=(name,), make=lambda t: t * 2) for name, meta in tensors.items()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {
        "blk.0.qkv.weight": (Q8_0, (8, 64), BLOCKS.tobytes()),
        "blk.0.q.weight": (Q8_0, (4, 64), BLOCKS[:4].tobytes()),
        "blk.0.k.weight": (Q8_0, (4, 64), BLOCKS[4:].tobytes()),
        "blk.0.norm.weight": (F32, (64,), bytes(256)),
    }
    return write_gguf(tmp_path / "m.gguf", tensors, {"general.architecture": "tiny"})


def test_a_renamed_packed_tensor_goes_to_the_parameter_of_its_new_name(path: Path) -> None:
    checkpoint = open_checkpoint(path, adapters=[Rename(patterns=[(r"^blk\.", "layers.")]), Prefix("m.")])
    assert checkpoint.adapted["m.layers.0.q.weight"].target == "m.layers.0.q.qweight"
    target = {"m.layers.0.q.qweight": torch.zeros(4, 68, dtype=torch.uint8)}
    checkpoint.load_into(target, strict=False)
    assert np.array_equal(target["m.layers.0.q.qweight"].numpy(), BLOCKS[:4])


def test_a_new_last_part_leaves_no_parameter_for_packed_bytes(path: Path) -> None:
    with pytest.raises(AdapterError, match=r"keeps the last part of its name: .* \(expected weight, found w\)"):
        open_checkpoint(path, adapters=[Rename(patterns=[(r"q\.weight$", "q.w")])])


def test_rows_are_whole_in_packed_bytes(path: Path) -> None:
    split = open_checkpoint(path, adapters=[Split("qkv", {"q_proj": 6, "k_proj": 2})])
    found = split.state_dict()
    assert np.array_equal(found["blk.0.q_proj.weight"].numpy(), BLOCKS[:6])
    assert np.array_equal(found["blk.0.k_proj.weight"].numpy(), BLOCKS[6:])
    assert (split.adapted["blk.0.q_proj.weight"].shape, split.adapted["blk.0.q_proj.weight"].nbytes) == ((6, 64), 408)
    joined = open_checkpoint(path, adapters=[Concat(["k", "q"], into="kq")]).state_dict()
    assert np.array_equal(joined["blk.0.kq.weight"].numpy(), np.concatenate([BLOCKS[4:], BLOCKS[:4]]))
    # Two heads of one row and one group: q0 q1 k v stay; four heads of one row in two groups move.
    ordered = open_checkpoint(path, adapters=[GroupedQKV("qkv", heads=4, kv_heads=2, head_dim=1)]).state_dict()
    assert np.array_equal(ordered["blk.0.qkv.weight"].numpy(), BLOCKS[[0, 1, 4, 5, 2, 6, 3, 7]])


def test_dtypes_of_numbers_are_converted_and_packed_tensors_stay(path: Path) -> None:
    found = open_checkpoint(path, adapters=[Dtype("bfloat16")]).state_dict()
    assert found["blk.0.norm.weight"].dtype is torch.bfloat16
    assert np.array_equal(found["blk.0.qkv.weight"].numpy(), BLOCKS)


def test_an_adapter_that_does_not_take_packed_tensors_is_refused_with_the_way_out(path: Path) -> None:
    with pytest.raises(AdapterError) as caught:
        open_checkpoint(path, adapters=[Doubling()])
    assert str(caught.value) == (
        f"adapter Doubling cannot change packed tensors: {path}, tensor 'blk.0.qkv.weight' "
        "(expected numbers, found Q8_0). dequantize='bfloat16' (--dequantize bfloat16) reads numbers"
    )
    numbers = torch.from_numpy(gguf.dequantize(BLOCKS, gguf.GGMLQuantizationType.Q8_0).copy())
    found = open_checkpoint(path, adapters=[Doubling()], dequantize="float32").state_dict()
    assert torch.equal(found["blk.0.qkv.weight"], numbers * 2)


def test_tensors_of_another_packed_type_are_not_joined(tmp_path: Path) -> None:
    halves = np.zeros((4, 64), dtype=np.float32)
    other = gguf.quantize(halves, gguf.GGMLQuantizationType.Q4_0)
    tensors = {"q.weight": (Q8_0, (4, 64), BLOCKS[:4].tobytes()), "k.weight": (2, (4, 64), other.tobytes())}
    path = write_gguf(tmp_path / "m.gguf", tensors, {"general.architecture": "tiny"})
    with pytest.raises(AdapterError, match=r"cannot be joined: .*'k\.weight' \(expected Q8_0 \[64\] of 'q\.weight'"):
        open_checkpoint(path, adapters=[Concat(["q", "k"], into="qk")])


def test_a_plan_may_not_name_what_is_not_there(path: Path) -> None:
    class Inventing(Adapter):
        def plan(self, tensors: Mapping[str, TensorMeta]) -> list[Made]:
            first = next(iter(tensors.values()))
            return [Made(meta=replace(first, name="new"), sources=("nothing",))]

    with pytest.raises(AdapterError, match="adapter Inventing plans 'new' of nothing, which is not there"):
        open_checkpoint(path, adapters=[Inventing()])
