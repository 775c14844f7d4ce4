# SPDX-License-Identifier: Apache-2.0
"""Memory as buffers: writes land in the tensor, whatever its dtype."""

from __future__ import annotations

import math
from copy import deepcopy as copy_of
from pathlib import Path

import pytest
import torch
from support.measure import memory

from weight_readers_files.memory import HUGE_BYTES, MAPPED_BYTES, buffer_at, copy, fresh, private


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (1 << 21, 3), (MAPPED_BYTES - 1,), (MAPPED_BYTES,)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.uint64])
def test_a_fresh_tensor_has_the_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = fresh(shape, dtype)
    assert (shape, dtype, "cpu", True) == (
        tuple(tensor.shape),
        tensor.dtype,
        tensor.device.type,
        tensor.is_contiguous(),
    )
    assert math.prod(shape) * dtype.itemsize == tensor.untyped_storage().nbytes()
    assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0


def test_a_fresh_tensor_is_in_host_memory_whatever_the_default_device() -> None:
    with torch.device("meta"):
        assert fresh((2,), torch.float32).device.type == "cpu"


def test_a_large_tensor_is_given_back_to_the_system_when_it_is_freed() -> None:
    """Not so with malloc: of a freed mapping it learns to keep the next one of that size."""
    torch.empty(MAPPED_BYTES, dtype=torch.bfloat16).zero_()  # starts torch's own threads, whose stacks count too
    before = memory("VmData")
    for _ in range(3):
        tensors = [fresh((MAPPED_BYTES,), torch.bfloat16).zero_() for _ in range(100)]
        assert memory("VmData") - before > 150 * MAPPED_BYTES
        del tensors
        assert memory("VmData") - before < 20 * MAPPED_BYTES


def test_a_large_tensor_is_no_view_and_can_do_what_others_can() -> None:
    tensor = fresh((MAPPED_BYTES, 2), torch.float32)
    assert not tensor._is_view()
    parameter = torch.nn.Parameter(tensor.zero_())
    (parameter + 1).sum().backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    assert copy_of(parameter).equal(tensor)
    tensor.share_memory_()
    assert tensor.is_shared()


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        fresh((1 << 60,), torch.uint8)


def test_a_buffer_is_the_memory_of_the_tensor() -> None:
    tensor = torch.zeros(4, dtype=torch.int32)
    buffer = buffer_at(tensor.data_ptr() + 4, 8)
    buffer[:] = bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert tensor.tolist() == [0, 1, 258, 0]
    assert (buffer.format, buffer.ndim, buffer.nbytes, buffer.readonly) == ("B", 1, 8, False)


def test_bytes_are_copied_between_buffers() -> None:
    target, source = bytearray(5), bytearray(b"abcde")
    copy(memoryview(target)[1:4], memoryview(source)[2:5])
    copy(memoryview(target)[:0], memoryview(source)[:0])
    assert bytes(target) == b"\0cde\0"


def test_scratch_memory_begins_at_a_page() -> None:
    scratch = torch.frombuffer(private(8192), dtype=torch.uint8)
    assert (scratch.data_ptr() % 4096, scratch.numel()) == (0, 8192)


def flags_at(address: int) -> list[str]:
    """``VmFlags`` of the mapping that holds ``address``; ``hg`` is the advice for huge pages."""
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in (span := line.split(maxsplit=1)[0]):
            begin, end = (int(each, 16) for each in span.split("-"))
            ours = begin <= address < end
        elif ours and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise LookupError(hex(address))


@pytest.mark.parametrize("huge_pages", [False, True])
def test_huge_pages_are_asked_for_on_request_only(huge_pages: bool) -> None:
    tensor = fresh((HUGE_BYTES,), torch.uint8, huge_pages=huge_pages)
    assert ("hg" in flags_at(tensor.data_ptr())) == huge_pages
