# SPDX-License-Identifier: Apache-2.0
"""The table of tensors: names, shapes and types, each entry held against the rules for itself.

Format: ``gguf_tensor_info_t`` in docs/gguf.md of ggml-org/ggml; dimensions come innermost first.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from weight_readers.errors import CheckpointError, ShapeError
from weight_readers_gguf.header import _limits as limits
from weight_readers_gguf.header._names import checked_name
from weight_readers_gguf.header._window import U32, Window
from weight_readers_gguf.types import TYPES

LEAST_BYTES = 25
"""The shortest entry: a name of one letter, and no dimension."""

_RESTS = tuple(struct.Struct(f"<{rank}QIQ") for rank in range(limits.MAX_DIMS + 1))


class TensorInfo(NamedTuple):
    """One entry. ``shape`` is in torch order, the reverse of the file's.

    ``type`` is the ggml id, known or not; ``offset`` is counted from the beginning of the file; ``nbytes`` is None
    for unknown types.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    nbytes: int | None

    @property
    def end(self) -> int:
        """The offset behind the last byte, as far as it is known."""
        if self.nbytes is None:
            return self.offset + (1 if math.prod(self.shape) else 0)
        return self.offset + self.nbytes


def read_info(window: Window, problems: list[CheckpointError]) -> TensorInfo:
    """Read one entry, its ``offset`` still relative to the data section; what is wrong with it goes to ``problems``."""
    name = checked_name(window, problems)
    rank = window.number(U32)
    if rank > limits.MAX_DIMS:
        raise ShapeError(
            "too many dimensions", path=window.path, tensor=name, expected=f"at most {limits.MAX_DIMS}", found=rank
        )
    *dims, type_id, offset = window.take(_RESTS[rank])
    shape = tuple(reversed(dims))
    faults = list(_shape_problems(window.path, name, shape, type_id))
    problems += faults
    return TensorInfo(name, shape, type_id, offset, None if faults else _nbytes(shape, type_id))


def is_addressable(shape: tuple[int, ...]) -> bool:
    """Whether torch can make a tensor of this shape, whatever its dtype. It multiplies sizes beside one of 0 too."""
    return math.prod(max(1, size) for size in shape) < limits.MAX_ELEMENTS


def _shape_problems(path: str, name: str, shape: tuple[int, ...], type_id: int) -> Iterator[CheckpointError]:
    if not is_addressable(shape):
        yield ShapeError(
            "more elements than any memory holds",
            path=path,
            tensor=name,
            expected="a product of the dimensions below 2^60",
            found=list(shape),
        )
    type_ = TYPES.get(type_id)
    inner = shape[-1] if shape else 1
    if type_ is not None and inner % type_.block:
        yield ShapeError(
            f"a row of {inner} elements is no whole number of {type_.name} blocks",
            path=path,
            tensor=name,
            expected=f"a multiple of {type_.block}",
            found=inner,
            fix="The file was written by a faulty converter: convert it again",
        )


def _nbytes(shape: tuple[int, ...], type_id: int) -> int | None:
    type_ = TYPES.get(type_id)
    return None if type_ is None else math.prod(shape) // type_.block * type_.nbytes
