# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels without a GPU: run by Triton's interpreter against ggml's C code, and compiled for one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np
import pytest
import torch
from unit.gguf import triton_interpreted
from unit.gguf.oracles import assert_same_floats, ggml
from unit.gguf.random_blocks import HALVES, adversarial_blocks, every_position, random_blocks

from weight_readers_gguf.dequant import triton_kernels
from weight_readers_gguf.types import BY_NAME, DEQUANTIZABLE

triton = pytest.importorskip("triton", reason="triton has wheels for Linux only")

ALL = sorted(DEQUANTIZABLE)
ROUNDED = ["IQ2_XS", "MXFP4", "Q4_1", "Q4_K"]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def blocks_of(name: str) -> np.ndarray:
    """Each code on its own, every special scale, and random ones: an odd number, so that the last program is short."""
    special = adversarial_blocks(name)
    if len(HALVES.get(name, ())) == 2:
        # Pairs of special scales are hundreds, and every third has each scale in each place.
        special = special[::3]
    found = np.concatenate([every_position(name), special, random_blocks(name, 40)])
    return found[: len(found) - 1 + len(found) % 2]


def tails_of(name: str) -> dict[str, np.ndarray]:
    """One block, and one more and one less than a program takes."""
    each = 2048 // BY_NAME[name].block
    counts = (1, each - 1, each, each + 1)
    return {f"{name}/float32/{count} as on a device": random_blocks(name, count, seed=count) for count in counts}


@pytest.fixture(scope="module")
def packed() -> Mapping[str, np.ndarray]:
    """What the interpreter is given, by ``TYPE/dtype`` (and a count of blocks)."""
    tasks = {f"{name}/float32": blocks_of(name) for name in ALL}
    for name in ROUNDED:
        tasks |= {f"{name}/float16": blocks_of(name), f"{name}/bfloat16": blocks_of(name)}
    return tasks | tails_of("Q6_K") | tails_of("Q5_0")


@pytest.fixture(scope="module")
def interpreted(packed: Mapping[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, np.ndarray]:
    """What came of it, as bytes, by the same names."""
    folder = tmp_path_factory.mktemp("triton")
    np.savez(folder / "in.npz", **packed)
    subprocess.run(
        [sys.executable, triton_interpreted.__file__, str(folder / "in.npz"), str(folder / "out.npz")],
        check=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        timeout=600,
    )
    with np.load(folder / "out.npz") as results:
        return dict(results)


def elements(found: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(found).view(DTYPES[dtype])[: -triton_interpreted.GUARD]


def test_every_packed_type_has_a_kernel() -> None:
    from weight_readers_gguf.dequant.triton_kernels import launch

    assert set(launch.KERNELS) == DEQUANTIZABLE == triton_kernels.SUPPORTED


@pytest.mark.parametrize("name", ALL)
def test_kernels_equal_ggml_bit_for_bit(name: str, packed: Mapping, interpreted: Mapping) -> None:
    expected = ggml(name, packed[f"{name}/float32"]).reshape(-1)

    assert_same_floats(expected, elements(interpreted[f"{name}/float32"], "float32").numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ROUNDED)
def test_other_dtypes_are_the_float32_rounded_once(
    name: str, dtype: str, packed: Mapping, interpreted: Mapping
) -> None:
    expected = torch.from_numpy(ggml(name, packed[f"{name}/{dtype}"]).reshape(-1)).to(DTYPES[dtype])

    assert_same_floats(expected.float().numpy(), elements(interpreted[f"{name}/{dtype}"], dtype).float().numpy())


@pytest.mark.parametrize("key", [*tails_of("Q6_K"), *tails_of("Q5_0")])
def test_a_program_that_is_not_full_decodes_the_blocks_there_are(
    key: str, packed: Mapping, interpreted: Mapping
) -> None:
    expected = ggml(key.split("/")[0], packed[key]).reshape(-1)

    assert_same_floats(expected, elements(interpreted[key], "float32").numpy())


def test_nothing_is_written_behind_the_last_block(interpreted: Mapping) -> None:
    for key, found in interpreted.items():
        if key != "imported":
            dtype = DTYPES[key.split("/")[1]]
            behind = torch.from_numpy(found).view(dtype)[-triton_interpreted.GUARD :]
            assert torch.equal(torch.full_like(behind, -7.0), behind), key


def test_triton_is_not_imported_before_a_tensor_is_dequantized(interpreted: Mapping) -> None:
    assert not interpreted["imported"]


def test_absence_is_told_without_importing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "is_installed", lambda name: False)

    assert "triton is not installed" in str(triton_kernels.absent())


def test_presence_is_no_reason() -> None:
    assert triton_kernels.absent() is None


def test_tensors_that_are_not_on_a_cuda_device_are_refused() -> None:
    packed, out = torch.zeros(144, dtype=torch.uint8), torch.zeros(256)

    with pytest.raises(ValueError, match=r"tensors of one CUDA device, not packed on cpu and out on cpu"):
        triton_kernels.dequantize_into(packed, BY_NAME["Q4_K"], out)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Mapping[str, str]]]:
    """Compiles a type's kernel for a GPU of compute capability 9.0, which takes no GPU; keeps no cache."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from weight_readers_gguf.dequant.triton_kernels import launch

    @cache
    def to_ptx(name: str) -> Mapping[str, str]:
        function = launch.KERNELS[name].function
        blocks = launch.ELEMENTS // BY_NAME[name].block
        types = {"packed": "*u8", "out": "*bf16", "table": "*i8", "count": "i32", "blocks": "constexpr"}
        source = ASTSource(function, {each: types[each] for each in function.arg_names}, {"blocks": blocks})
        options = {"num_warps": 4, "enable_fp_fusion": False}
        return triton.compile(source, GPUTarget("cuda", 90, 32), options).asm

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield to_ptx


@pytest.mark.parametrize("name", ALL)
def test_kernels_compile_for_a_gpu_with_every_rounding_that_ggml_has(name: str, compiled: Callable) -> None:
    asm = compiled(name)

    assert re.search(r"\bcvt\.rn\.bf16", asm["ptx"]), "no rounding to the nearest bfloat16"
    assert not re.findall(r"\bfma\.\S+", asm["ptx"]), "a fused multiply-add"
    assert not re.findall(r"\S+\.ftz\S*", asm["ptx"]), "denormals are flushed"


@pytest.mark.parametrize("name", ALL)
def test_no_index_is_multiplied_before_it_has_64_bits(name: str, compiled: Callable) -> None:
    ttir = compiled(name)["ttir"]

    program = re.findall(r"(%\w+) = tt.get_program_id x", ttir)
    assert len(program) == 1
    uses = [line for line in ttir.splitlines() if re.search(rf"{program[0]}\b", line.split(" loc(")[0])][1:]
    assert uses
    assert all("arith.extsi" in use for use in uses)
