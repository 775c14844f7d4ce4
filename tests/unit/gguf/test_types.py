# SPDX-License-Identifier: Apache-2.0
"""The table of types against those of ggml's C code and of the gguf package."""

from __future__ import annotations

import re

import gguf
import pytest
import torch
from unit.gguf.header_oracles import ggml_sizes

from weight_readers_gguf.types import ACTIVATIONS, BY_NAME, DEQUANTIZABLE, REMOVED, TYPES


def same_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@pytest.mark.parametrize("type_", TYPES.values(), ids=lambda type_: type_.name)
def test_a_type_has_the_block_that_ggml_gives_it(type_: object) -> None:
    name, block, nbytes = ggml_sizes(type_.id)
    assert (same_name(name), block, nbytes) == (same_name(type_.name), type_.block, type_.nbytes)


def test_every_type_of_ggml_is_known() -> None:
    highest = max(TYPES)
    named = {type_id for type_id in range(highest + 1) if ggml_sizes(type_id)[2]}
    assert named == set(TYPES)


@pytest.mark.parametrize("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_a_type_has_the_block_that_the_gguf_package_gives_it(kind: gguf.GGMLQuantizationType) -> None:
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    if kind.name == "Q8_1":
        assert nbytes in (36, 40)
        nbytes = 36  # ggml-org/llama.cpp#29036
    assert (kind.name, block, nbytes) == (TYPES[kind].name, TYPES[kind].block, TYPES[kind].nbytes)


def test_numbers_have_a_torch_dtype_of_their_size() -> None:
    sizes = {t.name: getattr(torch, t.dtype).itemsize for t in TYPES.values() if t.dtype is not None}
    assert sizes == {t.name: t.nbytes for t in TYPES.values() if t.block == 1}


def test_removed_ids_are_no_types() -> None:
    assert not set(REMOVED) & set(TYPES)
    assert not set(REMOVED) & {int(kind) for kind in gguf.GGMLQuantizationType}


def test_activations_are_packed_types_that_cannot_be_dequantized() -> None:
    assert set(BY_NAME) >= ACTIVATIONS
    assert not ACTIVATIONS & DEQUANTIZABLE
    assert all(BY_NAME[name].is_packed for name in ACTIVATIONS | DEQUANTIZABLE)
