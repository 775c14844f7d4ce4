# SPDX-License-Identifier: Apache-2.0
"""Where the tensors lie: against the alignment, against each other and against the size of the file.

Any order and gaps are allowed: readers go by offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weight_readers.errors import CheckpointError, TensorLayoutError, TruncatedFileError
from weight_readers_files.content import DOWNLOAD_AGAIN
from weight_readers_gguf.header._tensor_infos import TensorInfo


def layout_problems(
    tensors: Collection[TensorInfo], *, path: str, data_start: int, alignment: int, nbytes: int
) -> Iterator[CheckpointError]:
    """All that is wrong with the places of ``tensors`` in a file of ``nbytes``."""
    yield from _unaligned(tensors, path, data_start, alignment)
    yield from _overlaps(tensors, path)
    yield from _truncation(tensors, path, nbytes)


def _unaligned(
    tensors: Collection[TensorInfo], path: str, data_start: int, alignment: int
) -> Iterator[CheckpointError]:
    for tensor in tensors:
        if tensor.offset % alignment:
            yield TensorLayoutError(
                "an unaligned offset",
                path=path,
                tensor=tensor.name,
                expected=f"a multiple of {alignment}",
                found=tensor.offset - data_start,
            )


def _apart(tensors: Collection[TensorInfo]) -> bool:
    """Whether each tensor begins behind the one before it, as most writers leave them: nothing to sort then."""
    reach = 0
    for tensor in tensors:
        if tensor.offset < reach:
            return False
        reach = tensor.end
    return True


def _overlaps(tensors: Collection[TensorInfo], path: str) -> Iterator[CheckpointError]:
    if _apart(tensors):
        return
    before: TensorInfo | None = None
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.end)):
        if tensor.end == tensor.offset:
            continue
        if before is not None and tensor.offset < before.end:
            yield TensorLayoutError(
                f"an overlap with tensor {before.name!r}: bytes {tensor.offset}..{min(tensor.end, before.end)} "
                "belong to both",
                path=path,
                tensor=tensor.name,
                expected=f"an offset of at least {before.end}",
                found=tensor.offset,
            )
        if before is None or tensor.end > before.end:
            before = tensor


def _truncation(tensors: Collection[TensorInfo], path: str, nbytes: int) -> Iterator[CheckpointError]:
    if max((each.end for each in tensors), default=0) <= nbytes:
        return
    lost = sorted((each for each in tensors if each.end > max(nbytes, each.offset)), key=lambda each: each.offset)
    if not lost:
        return
    first, needed = lost[0], max(each.end for each in lost)
    yield TruncatedFileError(
        f"the file is cut: it has {nbytes} bytes and its header needs {needed} (missing bytes: {needed - nbytes}; "
        f"incomplete tensors: {len(lost)}, the first at bytes {first.offset}..{first.end})",
        path=path,
        tensor=first.name,
        expected=f"{needed} bytes",
        found=f"{nbytes} bytes",
        fix=DOWNLOAD_AGAIN,
    )
