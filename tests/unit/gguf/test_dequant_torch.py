# SPDX-License-Identifier: Apache-2.0
"""Dequantization in torch operations, judged by ggml's C code, libgguf and the gguf package."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from unit.gguf.oracles import Bytes, assert_same_floats, ggml, oracles_of
from unit.gguf.random_blocks import adversarial_blocks, every_position, random_blocks

from weight_readers_gguf.dequant import torch_ops
from weight_readers_gguf.types import BY_NAME, DEQUANTIZABLE

NAMES = sorted(DEQUANTIZABLE)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def decode(name: str, packed: Bytes, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    kind = BY_NAME[name]
    shape = (*packed.shape[:-1], packed.shape[-1] // kind.nbytes * kind.block)
    out = torch.full(shape, 7.0, dtype=dtype)
    torch_ops.dequantize_into(torch.from_numpy(packed), kind, out)
    return out


def test_every_type_that_weights_are_stored_in_is_supported() -> None:
    assert torch_ops.SUPPORTED == DEQUANTIZABLE
    assert torch_ops.absent() is None


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_have_the_bits_of_every_oracle(name: str) -> None:
    packed = random_blocks(name, 5 * 7).reshape(5, -1)
    for oracle in oracles_of(name).values():
        assert_same_floats(oracle(name, packed), decode(name, packed).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_is_read_for_its_own_place(name: str) -> None:
    packed = every_position(name)
    assert_same_floats(ggml(name, packed), decode(name, packed).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_special_scales_have_the_bits_of_ggml(name: str) -> None:
    packed = adversarial_blocks(name)
    assert_same_floats(ggml(name, packed), decode(name, packed).numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_narrower_results_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    packed = np.concatenate([random_blocks(name, 33), adversarial_blocks(name)])
    expected, actual = torch.from_numpy(ggml(name, packed)).to(dtype), decode(name, packed, dtype)
    number = ~expected.isnan()
    assert number.equal(~actual.isnan())
    assert actual.view(torch.int16)[number].equal(expected.view(torch.int16)[number])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("blocks", [1, 3, 6, 7])
def test_chunks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch, blocks: int, dtype: torch.dtype) -> None:
    for name in ("Q4_0", "Q6_K", "IQ3_XXS", "TQ1_0", "NVFP4"):
        monkeypatch.setattr(torch_ops, "_ON_CPU", 3 * BY_NAME[name].block)
        packed = random_blocks(name, blocks)
        assert decode(name, packed, dtype).equal(torch.from_numpy(ggml(name, packed)).to(dtype))


def test_a_chunk_is_at_least_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ops, "_ON_CPU", 1)
    packed = random_blocks("Q4_K", 3)
    assert_same_floats(ggml("Q4_K", packed), decode("Q4_K", packed).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_blocks_may_begin_at_an_odd_address(name: str) -> None:
    packed = random_blocks(name, 1)
    shifted = np.concatenate([np.zeros(1, np.uint8), packed.ravel()])[1:].reshape(packed.shape)
    assert_same_floats(ggml(name, packed), decode(name, shifted).numpy())


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
def test_the_default_dtype_of_torch_has_no_say(default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        found = {name: decode(name, random_blocks(name, 3)) for name in NAMES}
    finally:
        torch.set_default_dtype(torch.float32)
    for name, actual in found.items():
        assert_same_floats(ggml(name, random_blocks(name, 3)), actual.numpy())


def test_tables_made_in_inference_mode_serve_outside_of_it() -> None:
    torch_ops.constants.grid.cache_clear()
    torch_ops.constants.signs.cache_clear()
    packed = random_blocks("IQ2_S", 3)
    with torch.inference_mode():
        decode("IQ2_S", packed)
    assert not torch_ops.constants.grid("IQ2_S", torch.device("cpu")).is_inference()
    assert_same_floats(ggml("IQ2_S", packed), decode("IQ2_S", packed).numpy())


def test_a_chunk_beyond_the_range_of_32_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operation sees more than a chunk, so that only where it begins has to be counted in 64 bits."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(torch_ops, "_ON_CPU", 1 << 28)
    monkeypatch.setitem(torch_ops._DECODERS, "Q4_K", lambda some, out: seen.append((out.storage_offset(), out.numel())))
    packed = torch.zeros((1, 144), dtype=torch.uint8).expand((1 << 24) + 1, -1)
    torch_ops.dequantize_into(packed, BY_NAME["Q4_K"], torch.empty((packed.shape[0], 256), device="meta"))
    assert seen == [(at << 28, 1 << 28) for at in range(16)] + [(1 << 32, 256)]


def test_plain_numbers_are_none_of_its_business() -> None:
    assert not {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"} & torch_ops.SUPPORTED
