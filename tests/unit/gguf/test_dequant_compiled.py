# SPDX-License-Identifier: Apache-2.0
"""The compiled CPU path, held against ggml's C code."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numba.core import caching, config
from support.measure import exit_code_of
from unit.gguf.oracles import assert_same_floats, ggml
from unit.gguf.random_blocks import adversarial_blocks, every_position, random_blocks

from weight_readers_gguf import dequant
from weight_readers_gguf.dequant import compiled
from weight_readers_gguf.dequant.compiled import _build, _pages, _run, _threads
from weight_readers_gguf.dequant.compiled.kernels import KERNELS
from weight_readers_gguf.types import BY_NAME, DEQUANTIZABLE

NAMES = sorted(DEQUANTIZABLE)
FEW = ("Q4_0", "Q4_K")
"""What all types have in common is tested with these."""


def dequantized(name: str, packed: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    kind = BY_NAME[name]
    out = torch.full((len(packed), packed.shape[1] // kind.nbytes * kind.block), 7.0, dtype=dtype)
    compiled.dequantize_into(torch.from_numpy(packed), kind, out)
    return out


def test_every_type_that_weights_are_stored_in_has_a_kernel() -> None:
    assert compiled.SUPPORTED == DEQUANTIZABLE


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_equal_ggml_bit_for_bit(name: str) -> None:
    packed = random_blocks(name, 33)
    assert_same_floats(ggml(name, packed), dequantized(name, packed).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_each_byte_of_a_block_is_read_where_ggml_reads_it(name: str) -> None:
    packed = every_position(name)
    assert_same_floats(ggml(name, packed), dequantized(name, packed).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_scales_that_are_no_ordinary_numbers_come_out_as_ggml_has_them(name: str) -> None:
    packed = adversarial_blocks(name)
    assert_same_floats(ggml(name, packed), dequantized(name, packed).numpy())


def test_every_half_is_converted_as_numpy_converts_it() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    packed = np.zeros((1 << 16, 34), np.uint8)
    packed[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    packed[:, 2] = 1  # Q8_0: the first element is one scale
    with np.errstate(invalid="ignore"):
        expected = halves.view(np.float16).astype(np.float32)
    assert_same_floats(expected, dequantized("Q8_0", packed).numpy()[:, 0].copy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FEW)
def test_other_dtypes_are_the_exact_result_rounded_once(name: str, dtype: torch.dtype) -> None:
    packed = np.concatenate([random_blocks(name, 500), adversarial_blocks(name)])
    expected = torch.from_numpy(ggml(name, packed)).to(dtype)
    assert_same_floats(expected.float().numpy(), dequantized(name, packed, dtype).float().numpy())


@pytest.mark.parametrize(("bits", "rounded"), [(0x7C01, None), (0x7C00, float("inf")), (0x0001, 2.0**-24)])
def test_nan_infinity_and_denormals_survive_the_rounding(bits: int, rounded: float | None) -> None:
    packed = np.zeros((1, 34), np.uint8)
    packed[0, :3] = bits & 0xFF, bits >> 8, 1
    found = dequantized("Q8_0", packed, torch.float16)[0, 0]
    assert torch.isnan(found) if rounded is None else found.item() == rounded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_of_many_ranges_is_complete_and_in_order(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "_DIRECT_ELEMENTS", 1 << 10)
    monkeypatch.setattr(_run, "_SCRATCH_ELEMENTS", 1 << 10)
    packed = random_blocks("Q4_K", 4 * 37 + 1)
    expected = torch.from_numpy(ggml("Q4_K", packed)).to(dtype)
    assert torch.equal(expected.nan_to_num(), dequantized("Q4_K", packed, dtype).nan_to_num())


@pytest.mark.parametrize("name", ["Q4_0", "TQ1_0", "IQ2_XXS", "IQ3_S", "IQ4_XS"])
def test_results_written_past_the_caches_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "_STREAMED_BYTES", 0)
    packed = random_blocks(name, 65)
    assert_same_floats(ggml(name, packed), dequantized(name, packed).numpy())
    assert (KERNELS[name].function, True) in _build._built


def test_memory_that_is_not_aligned_for_it_is_not_written_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "_STREAMED_BYTES", 0)
    packed, memory = random_blocks("Q4_0", 64), torch.empty(64 * 32 + 1)
    compiled.dequantize_into(torch.from_numpy(packed), BY_NAME["Q4_0"], memory[1:])
    assert_same_floats(ggml("Q4_0", packed).ravel(), memory[1:].numpy())


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_memory_is_new_until_it_is_written() -> None:
    memory = torch.frombuffer(mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE), dtype=torch.float32)
    assert _pages.is_new(memory)
    memory.zero_()
    assert not _pages.is_new(memory)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_asking_for_huge_pages_changes_no_number() -> None:
    memory = torch.arange(3 << 20, dtype=torch.float32)
    _pages.ask_for_huge_pages(memory[1:])
    assert torch.equal(torch.arange(3 << 20, dtype=torch.float32), memory)


def test_where_there_are_no_such_pages_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pages, "_c_function", lambda *_: None)
    _pages.ask_for_huge_pages(torch.empty(2 << 20))
    assert not _pages.is_new(torch.empty(2 << 20))


def test_nothing_at_all_is_no_call() -> None:
    out = torch.empty(0)
    compiled.dequantize_into(torch.empty(0, dtype=torch.uint8), BY_NAME["Q4_0"], out)
    assert out.numel() == 0


def test_only_the_bytes_of_the_result_are_written() -> None:
    packed, memory = random_blocks("Q4_0", 3), torch.full((5 * 32,), 7.0)
    compiled.dequantize_into(torch.from_numpy(packed), BY_NAME["Q4_0"], memory[32:128])
    assert memory[:32].eq(7).all()
    assert memory[128:].eq(7).all()
    assert_same_floats(ggml("Q4_0", packed.reshape(1, -1))[0], memory[32:128].numpy())


def test_packed_bytes_may_begin_at_an_odd_address() -> None:
    packed = random_blocks("Q4_K", 2)
    shifted = torch.from_numpy(np.concatenate([[0], packed.ravel()]).astype(np.uint8))[1:]
    out = torch.empty(2, 256)
    compiled.dequantize_into(shifted, BY_NAME["Q4_K"], out)
    assert_same_floats(ggml("Q4_K", packed), out.numpy())


def test_results_made_in_inference_mode_are_written_by_all_threads(many_ranges: None) -> None:
    packed = random_blocks("Q4_K", 64)
    with torch.inference_mode():
        found = dequantized("Q4_K", packed, torch.bfloat16)
    expected = torch.from_numpy(ggml("Q4_K", packed)).to(torch.bfloat16)
    assert torch.equal(expected.nan_to_num(), found.nan_to_num())


def test_a_parameter_is_written_without_a_graph() -> None:
    out = torch.nn.Parameter(torch.empty(1, 32))
    compiled.dequantize_into(torch.from_numpy(random_blocks("Q4_0", 1)), BY_NAME["Q4_0"], out)
    assert out.grad_fn is None


def test_calls_from_several_threads_at_once_are_all_right(many_ranges: None) -> None:
    packed = random_blocks("Q4_K", 64)
    expected = ggml("Q4_K", packed)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: dequantized("Q4_K", packed), range(32)):
            assert_same_floats(expected, found.numpy())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(many_ranges: None) -> None:
    packed = random_blocks("Q4_K", 64)
    expected = dequantized("Q4_K", packed)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if torch.equal(expected.nan_to_num(), dequantized("Q4_K", packed).nan_to_num()) else 1)
        finally:
            os._exit(2)
    assert exit_code_of(child) == 0


def test_an_error_in_one_thread_ends_the_others_and_is_raised() -> None:
    def failing() -> Callable[[int, int], None]:
        def work(start: int, stop: int) -> None:
            raise MemoryError(f"at {start}")

        return work

    with pytest.raises(MemoryError):
        _threads.share_out(1000, 1, failing)


def test_there_are_no_more_threads_than_torch_would_use() -> None:
    seen: set[int] = set()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _threads.share_out(50, 1, lambda: lambda start, stop: seen.add(threading.get_ident()))
    finally:
        torch.set_num_threads(before)
    assert seen == {threading.get_ident()}


def test_where_no_thread_can_be_had_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*work: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    seen: list[int] = []
    monkeypatch.setattr(_threads, "available_cpus", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(_threads, "_pool", lambda: SimpleNamespace(submit=refuse))
    _threads.share_out(5, 1, lambda: lambda start, stop: seen.append(start))
    assert seen == [0, 1, 2, 3, 4]


def test_what_a_pool_took_before_it_refused_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def refuse(*work: Any) -> None:
        taken.append(work)
        raise RuntimeError("can't start new thread")

    made: list[int] = []
    monkeypatch.setattr(_threads, "available_cpus", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(_threads, "_pool", lambda: SimpleNamespace(submit=refuse))
    _threads.share_out(2, 1, lambda: made.append(1) or (lambda start, stop: None))  # type: ignore[func-returns-value]
    for function, *arguments in taken:
        function(*arguments)
    assert made == [1]


def test_a_kernel_is_compiled_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = []
    monkeypatch.setattr(_build, "_built", {})
    monkeypatch.setattr(_build, "_compile", lambda kernel, streamed: compilations.append(kernel) or kernel.function)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: _build.compiled(KERNELS["Q4_0"]), range(16)))
    assert len(compilations) == 1


def test_where_no_cache_can_be_written_the_kernel_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "_built", {})
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [caching.UserProvidedCacheLocator])
    monkeypatch.setattr(config, "CACHE_DIR", "/proc/nowhere")
    packed = random_blocks("Q8_0", 3)
    assert_same_floats(ggml("Q8_0", packed), dequantized("Q8_0", packed).numpy())


def test_a_broken_file_in_the_cache_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    packed = random_blocks("Q8_0", 3)
    for _ in range(2):
        monkeypatch.setattr(_build, "_built", {})
        assert_same_floats(ggml("Q8_0", packed), dequantized("Q8_0", packed).numpy())
        files = list(tmp_path.rglob("*.nb?"))
        assert files
        for file in files:
            file.write_bytes(b"\x80")


def test_without_numba_the_path_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "is_installed", lambda name: False)
    assert compiled.absent() == 'numba is not installed: pip install "weight-readers-gguf[compiled]"'


def test_with_numba_nothing_is_absent() -> None:
    assert compiled.absent() is None


def test_a_numba_that_cannot_be_imported_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled._backend.cache_clear()
    monkeypatch.setitem(sys.modules, "weight_readers_gguf.dequant.compiled._run", None)
    monkeypatch.delattr(compiled, "_run")
    with pytest.raises(ImportError, match=r"numba cannot be imported.*backend=\"torch\""):
        dequantized("Q4_0", random_blocks("Q4_0", 1))


def test_numba_is_imported_only_when_a_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "weight_readers_gguf.dequant.compiled"
    for module in [each for each in sys.modules if each.split(".")[0] in ("numba", "llvmlite") or name in each]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(dequant, "compiled", compiled)
    assert import_module(name).SUPPORTED


@pytest.fixture
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are shared out over threads as large ones are."""
    monkeypatch.setattr(_run, "_DIRECT_ELEMENTS", 1 << 10)
    monkeypatch.setattr(_run, "_SCRATCH_ELEMENTS", 1 << 10)


def test_the_cache_of_machine_code_is_that_of_these_sources(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("scale = 1")
    first = _build.sources_digest.__wrapped__(tmp_path)
    (tmp_path / "bits.py").write_text("")
    second = _build.sources_digest.__wrapped__(tmp_path)
    (tmp_path / "bits.py").write_text("half = 2")
    assert len({first, second, _build.sources_digest.__wrapped__(tmp_path)}) == 3
    function = _build._copied(KERNELS["Q4_K"])
    assert _build.sources_digest() in function.__qualname__
