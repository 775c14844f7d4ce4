# SPDX-License-Identifier: Apache-2.0
"""The byte ranges of one file against each other and against the size of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import le
from typing import NamedTuple

from weight_readers.errors import CheckpointError, TensorLayoutError, TrailingBytesError, TruncatedFileError


class Placed(NamedTuple):
    """Where tensors begin and end, relative to the data section as in the header, each in the order of the header."""

    names: list[str]
    begins: list[int]
    ends: list[int]

    def add(self, names: Iterable[str], begins: Iterable[int], ends: Iterable[int]) -> None:
        self.names.extend(names)
        self.begins.extend(begins)
        self.ends.extend(ends)


def layout_problems(placed: Placed, path: str) -> Iterator[CheckpointError]:
    """Gaps and overlaps: the format wants every byte of the data section in exactly one tensor."""
    if _adjoin(placed.begins, placed.ends):
        return
    reach, before = 0, ""
    # As a set: the same entry twice is a duplicate, and reported as one.
    for begin, end, name in sorted(set(zip(placed.begins, placed.ends, placed.names, strict=True))):
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


def _adjoin(begins: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether each tensor begins where the one before it ends, as most writers leave it: nothing to sort then."""
    return begins == [0, *ends][:-1] and all(map(le, begins, ends))


def size_problems(placed: Placed, path: str, data_start: int, nbytes: int) -> Iterator[CheckpointError]:
    """The size the header speaks of against the ``nbytes`` of the file."""
    end = max(placed.ends, default=0)
    expected = data_start + end
    if expected > nbytes:
        lost = [end for end in placed.ends if data_start + end > nbytes]
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
