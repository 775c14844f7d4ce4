# SPDX-License-Identifier: Apache-2.0
"""The shapes that converters of image models keep beside the tensors they reshaped.

ComfyUI-GGUF stores a tensor whose rows are no whole number of blocks as rows of 256 elements, with its own shape in
``comfy.gguf.orig_shape.<name>`` (tools/convert.py of city96/ComfyUI-GGUF).
"""

from __future__ import annotations

import math

from weight_readers.errors import HeaderError, ShapeError
from weight_readers_gguf.header import GGUFHeader, TensorInfo, is_addressable

PREFIX = "comfy.gguf.orig_shape."
MAX_RANK = 5

_ACCEPTED = frozenset(f"ARRAY[{sign}INT{bits}]" for sign in ("", "U") for bits in (8, 16, 32, 64))


def logical_shape(header: GGUFHeader, info: TensorInfo) -> tuple[int, ...]:
    """The shape of a tensor in torch order: the original one where the file keeps it, else the stored one.

    Raises HeaderError for a value that is no array of integers, and ShapeError for one that is no shape of the tensor.
    """
    key = PREFIX + info.name
    if key not in header.metadata:
        return info.shape
    type_name = header.metadata.type_name(key)
    if type_name not in _ACCEPTED:
        raise HeaderError(
            f"the metadata key {key[:200]!r} is no shape",
            path=header.path,
            tensor=info.name,
            expected="an array of integers",
            found=type_name,
        )
    # Its length comes first: an array may be as large as the header.
    if not 1 <= (rank := header.metadata.length(key)) <= MAX_RANK:
        raise _no_shape(f"has {rank} dimensions, not 1 to {MAX_RANK}", header.path, info, found=f"{rank} sizes")
    return _checked(tuple(header.metadata[key]), header.path, info)


def _checked(shape: tuple[int, ...], path: str, info: TensorInfo) -> tuple[int, ...]:
    if any(size < 0 for size in shape):
        fault = "has a negative size"
    elif math.prod(shape) != math.prod(info.shape):
        fault = f"has {math.prod(shape)} elements where the tensor has {math.prod(info.shape)}"
    elif not is_addressable(shape):
        fault = (
            "has sizes that no tensor can have, though it is empty: their product without those of 0 is 2^60 or more"
        )
    else:
        return shape
    raise _no_shape(fault, path, info, found=list(shape))


def _no_shape(fault: str, path: str, info: TensorInfo, *, found: object) -> ShapeError:
    return ShapeError(
        f"its original shape ({PREFIX}*) {fault}",
        path=path,
        tensor=info.name,
        expected=f"a shape of as many elements as {list(info.shape)}",
        found=found,
    )
