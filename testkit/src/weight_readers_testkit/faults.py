# SPDX-License-Identifier: Apache-2.0
"""Files that are wrong whatever their format is, each with the error that every reader has for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weight_readers import (
    CheckpointError,
    CheckpointNotFoundError,
    EmptyFileError,
    ForeignContentError,
    LfsPointerError,
    UnreadableFileError,
)

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4974351112\n".encode()


@dataclass(frozen=True)
class Fault:
    """How to put a wrong file at a path, and the class of the error that a reader has to raise for it.

    A file that the format does not tell from a sound one is no fault: leave it out.
    """

    error: type[CheckpointError]
    make: Callable[[Path], object]


def of_bytes(data: bytes, error: type[CheckpointError]) -> Fault:
    return Fault(error, lambda path: path.write_bytes(data))


ANY_FORMAT: Mapping[str, Fault] = {
    "empty": of_bytes(b"", EmptyFileError),
    "a git-lfs pointer": of_bytes(POINTER, LfsPointerError),
    "a web page": of_bytes(b"<!DOCTYPE html>\n<html><body>Not found</body></html>\n", ForeignContentError),
    "missing": Fault(CheckpointNotFoundError, lambda path: None),
}
OF_FILE_SYSTEMS: Mapping[str, Fault] = {
    "a dangling link": Fault(CheckpointNotFoundError, lambda path: path.symlink_to("nowhere")),
    "a folder": Fault(UnreadableFileError, lambda path: path.mkdir()),
    "a link to itself": Fault(UnreadableFileError, lambda path: path.symlink_to(path)),
    "a named pipe": Fault(UnreadableFileError, lambda path: os.mkfifo(path)),
}
"""What no store can hold."""


def cut(write: Callable[[Path], object], keep: Callable[[int], int], error: type[CheckpointError]) -> Fault:
    """A sound file of which only the first ``keep(size)`` bytes are there."""

    def make(path: Path) -> None:
        write(path)
        data = path.read_bytes()
        path.write_bytes(data[: keep(len(data))])

    return Fault(error, make)
