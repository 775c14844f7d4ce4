# SPDX-License-Identifier: Apache-2.0
"""The byte ranges of one file against each other and against the size of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from weight_readers.errors import CheckpointError, TensorLayoutError, TrailingBytesError, TruncatedFileError

Placed = tuple[int, int, str]
"""``(begin, end, name)``, relative to the data section as in the header."""


def layout_problems(placed: Collection[Placed], path: str) -> Iterator[CheckpointError]:
    """Gaps and overlaps: the format wants every byte of the data section in exactly one tensor."""
    if _adjoin(placed):
        return
    reach, before = 0, ""
    # As a set: the same entry twice is a duplicate, and reported as one.
    for begin, end, name in sorted(set(placed)):
        if begin > reach:
            where = f"after tensor {before!r}" if before else "before the first tensor"
            yield TensorLayoutError(
                f"a gap: data bytes [{reach}, {begin}) {where} belong to no tensor",
                path=path,
                tensor=name,
                expected=f"a beginning at {reach}",
                found=begin,
            )
        elif begin < reach:
            yield TensorLayoutError(
                f"an overlap: data bytes [{begin}, {min(end, reach)}) also belong to tensor {before!r}",
                path=path,
                tensor=name,
                expected=f"a beginning at {reach}",
                found=begin,
            )
        if end >= reach:
            reach, before = end, name


def _adjoin(placed: Iterable[Placed]) -> bool:
    """Whether each tensor begins where the one before it ends, as most writers leave it: nothing to sort then."""
    reach = 0
    for begin, end, _ in placed:
        if begin != reach or end < begin:
            return False
        reach = end
    return True


def size_problems(placed: Collection[Placed], path: str, data_start: int, nbytes: int) -> Iterator[CheckpointError]:
    """The size the header speaks of against the ``nbytes`` of the file."""
    end = max((each[1] for each in placed), default=0)
    expected = data_start + end
    if expected > nbytes:
        lost = [name for _, stop, name in placed if data_start + stop > nbytes]
        yield TruncatedFileError(
            f"the file is cut (missing bytes: {expected - nbytes}; incomplete tensors: {len(lost)})",
            path=path,
            expected=f"{expected} bytes",
            found=f"{nbytes} bytes",
            fix=DOWNLOAD_AGAIN,
        )
    elif expected < nbytes:
        yield TrailingBytesError(
            f"data bytes [{end}, {nbytes - data_start}) at the end of the file belong to no tensor",
            path=path,
            expected=f"{expected} bytes",
            found=f"{nbytes} bytes",
            fix="Download the file again, or write it again with the safetensors library",
        )


DOWNLOAD_AGAIN = "Delete the file and download it again (an interrupted download, or a full disk)"
