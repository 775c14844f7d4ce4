# SPDX-License-Identifier: Apache-2.0
"""The judges agree with one another, and our tables with them, before any code of ours is judged."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from unit.gguf.oracles import assert_same_floats, ggml, ggml_has, oracles_of, traits
from unit.gguf.random_blocks import adversarial_blocks, every_position, places_of_scales, random_blocks

from weight_readers_gguf.dequant import tables
from weight_readers_gguf.types import BY_NAME, DEQUANTIZABLE

NAMES = sorted(DEQUANTIZABLE)


@pytest.mark.parametrize("name", NAMES)
def test_all_oracles_that_know_a_type_give_the_same_bits(name: str) -> None:
    packed = np.concatenate([random_blocks(name, 33), every_position(name), adversarial_blocks(name)])
    expected = ggml(name, packed)
    for oracle in oracles_of(name).values():
        assert_same_floats(expected, oracle(name, packed))


def test_ggml_knows_every_type_and_the_others_all_but_the_newest() -> None:
    assert all(ggml_has(name) for name in NAMES)
    assert {name for name in NAMES if len(oracles_of(name)) < 3} == {"Q1_0", "Q2_0"}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_have_the_size_that_ggml_gives_them(name: str) -> None:
    found = traits(BY_NAME[name].id)
    assert (found.blck_size, found.type_size) == (BY_NAME[name].block, BY_NAME[name].nbytes)


@pytest.mark.parametrize("name", NAMES)
def test_adversarial_blocks_reach_what_is_no_number(name: str) -> None:
    numbers = ggml(name, adversarial_blocks(name))
    assert np.isnan(numbers).any() == (name not in ("MXFP4", "NVFP4"))
    assert np.isinf(numbers).any() == (name != "NVFP4")
    assert (numbers == 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_a_block_matters(name: str) -> None:
    """So that none can go unread and unnoticed; the bytes of scales are for `adversarial_blocks`."""
    base, *flipped = ggml(name, every_position(name))
    silent = {at for at, row in enumerate(flipped) if np.array_equal(base, row)}
    assert silent == places_of_scales(name)


def test_the_byte_scales_are_those_of_the_gguf_package() -> None:
    byte = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(gguf.quants.MXFP4.e8m0_to_fp32_half(byte), tables.scales("MXFP4"))
    np.testing.assert_array_equal(gguf.quants.NVFP4.ue4m3_to_fp32(byte), tables.scales("NVFP4"))


def test_the_values_and_signs_are_those_of_the_gguf_package() -> None:
    for name, owner in [("IQ4_NL", "IQ4_NL"), ("IQ4_XS", "IQ4_NL"), ("MXFP4", "MXFP4"), ("NVFP4", "NVFP4")]:
        assert tuple(getattr(gguf.quants, owner).kvalues) == tuple(tables.values(name).tolist())
    assert gguf.quants.IQ2_XXS.ksigns == tables.ksigns().tobytes()


def test_tables_are_shared_and_cannot_be_written() -> None:
    for table in (tables.grid("IQ1_S"), tables.ksigns(), tables.values("MXFP4"), tables.scales("NVFP4")):
        assert not table.flags.writeable
    assert tables.grid("IQ2_S") is tables.grid("IQ2_S")
    assert tables.grid("IQ2_S").shape == (1024, 8)
    assert tables.grid("IQ3_S").shape == (512, 4)
