# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels on a GPU: against ggml's C code, on what the interpreter and the compiler cannot show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from unit.gguf.oracles import assert_same_floats, ggml
from unit.gguf.random_blocks import adversarial_blocks, every_position, random_blocks

from weight_readers_gguf.dequant import dequantize, triton_kernels
from weight_readers_gguf.types import BY_NAME, DEQUANTIZABLE

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(triton_kernels.absent() is not None, reason="needs triton"),
]

ALL = sorted(DEQUANTIZABLE)


def blocks_of(name: str) -> np.ndarray:
    found = np.concatenate([every_position(name), adversarial_blocks(name), random_blocks(name, 501)])
    return found[: len(found) - 1 + len(found) % 2]


def on_gpu(name: str, packed: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return dequantize(packed.cuda(), name, dtype=dtype, backend="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_kernels_equal_ggml_and_round_once(name: str, dtype: torch.dtype) -> None:
    packed = blocks_of(name)
    expected = torch.from_numpy(ggml(name, packed)).to(dtype)

    found = on_gpu(name, torch.from_numpy(packed), dtype).cpu()

    assert found.dtype == dtype
    assert_same_floats(expected.float().numpy(), found.float().numpy())


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "IQ4_NL", "IQ2_S"])
def test_packed_bytes_may_begin_anywhere(name: str) -> None:
    packed = blocks_of(name)
    memory = torch.zeros(packed.size + 1, dtype=torch.uint8, device="cuda")
    memory[1:] = torch.from_numpy(packed.reshape(-1))

    found = dequantize(memory[1:], name, backend="triton").cpu()

    assert_same_floats(ggml(name, packed.reshape(-1)), found.numpy())


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
def test_weights_of_more_than_2_31_elements_are_decoded_to_the_last(name: str) -> None:
    kind = BY_NAME[name]
    count = 2**31 // kind.block + 3
    if torch.cuda.mem_get_info()[0] < 1.2 * count * (kind.nbytes + 2 * kind.block):
        pytest.skip("needs more memory on the device")
    last = random_blocks(name, 5)
    packed = torch.zeros((count, kind.nbytes), dtype=torch.uint8, device="cuda")
    packed[-5:] = torch.from_numpy(last)

    found = dequantize(packed, name, dtype=torch.bfloat16, backend="triton")

    expected = torch.from_numpy(ggml(name, last)).bfloat16()
    assert torch.equal(expected, found[-5:].cpu())
    assert not found[:-5].any()


def test_the_current_stream_does_the_work_and_nobody_waits_for_it() -> None:
    packed = torch.from_numpy(random_blocks("IQ3_S", 4097))
    device, stream = packed.cuda(), torch.cuda.Stream()
    # The first launch compiles, and uploads the codebook.
    expected = dequantize(device, "IQ3_S", backend="triton")
    torch.cuda.synchronize()

    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            found = dequantize(device, "IQ3_S", backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")

    stream.synchronize()
    assert torch.equal(expected, found)


def test_launches_can_be_captured_in_a_graph() -> None:
    packed = torch.from_numpy(random_blocks("Q5_K", 300)).cuda()
    out = torch.empty((300, 256), device="cuda")
    expected = dequantize(packed, "Q5_K", backend="triton")

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dequantize(packed, "Q5_K", out=out, backend="triton")
    out.zero_()
    graph.replay()

    assert torch.equal(expected, out)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_device_of_the_tensor_does_the_work() -> None:
    packed = random_blocks("IQ2_XS", 33)

    found = dequantize(torch.from_numpy(packed).to("cuda:1"), "IQ2_XS", backend="triton")

    assert found.device == torch.device("cuda:1")
    assert_same_floats(ggml("IQ2_XS", packed), found.cpu().numpy())
