# SPDX-License-Identifier: Apache-2.0
"""What the decoders are made of: fields of blocks, codes out of words, and the product with the scale.

A decoder gets ``blocks``, uint8 ``[n, nbytes]``, and ``out``, float32 ``[n, elements]``, contiguous. All of them work
alike: whole numbers are put together in words of eight bytes, become int8, then float32, and are multiplied with
the scale of their group, in ggml's order of operations, so that each result has ggml's bits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def field(blocks: Tensor, at: int, nbytes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """The bytes ``at`` ... of every block, as ``dtype``: ``[n, nbytes // itemsize]``, in memory of its own.

    A view would need every block to begin at a multiple of the item's size.
    """
    return blocks[:, at : at + nbytes].clone(memory_format=torch.contiguous_format).view(dtype)


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte ``at`` of every block, as float32 ``[n, 1]``."""
    return field(blocks, at, 2, torch.float16).to(torch.float32)


def words(blocks: Tensor, at: int, nbytes: int, *shape: int) -> Tensor:
    """The bytes ``at`` ... of every block, eight to a word: int64 ``[n, *shape]``, of all words where none is given."""
    found = field(blocks, at, nbytes, torch.int64)
    return found.view(-1, *shape) if shape else found


def every(byte: int) -> int:
    """A word of eight times ``byte``."""
    return int.from_bytes(bytes([byte]) * 8, "little", signed=True)


def pick(found: Tensor, shift: int, mask: int) -> Tensor:
    """``byte >> shift & mask`` of every byte of words.

    The bits that come in from the next byte are those that ``mask`` has to clear: it fits in ``8 - shift`` bits.
    """
    return (found >> shift).bitwise_and_(every(mask)) if shift else found & every(mask)


def put(out: Tensor, codes: Tensor, scale: Tensor, plus: Tensor | None = None) -> None:
    """Write ``codes * scale + plus``, each step rounded to float32, as C does without contraction.

    ``codes`` are words, or whole numbers of any type, of ``out``'s shape; ``scale`` and ``plus`` broadcast to it.
    """
    numbers = codes.view(torch.int8) if codes.dtype == torch.int64 else codes
    torch.mul(numbers.view(out.shape).to(torch.float32), scale, out=out)
    if plus is not None:
        out.add_(plus)


def centred(codes: Tensor, middle: int) -> Tensor:
    """Words of unsigned codes as int8 less ``middle``."""
    return codes.view(torch.int8).sub_(middle)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` of a table of one dimension; ``index`` holds whole numbers of any type."""
    return torch.take(table, index.to(torch.int64))
