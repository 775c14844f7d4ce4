# SPDX-License-Identifier: Apache-2.0
"""Headers that somebody holds are not read again: a config, a plan and a reader of one file parse it once."""

from __future__ import annotations

import os
from typing import NamedTuple
from weakref import WeakValueDictionary

from weight_readers.errors import CheckpointError
from weight_readers_files import State
from weight_readers_gguf.header._read import GGUFHeader, scan_header


class _Key(NamedTuple):
    """A file as it is now. The inode too: what takes the place of a file may have its size and its time."""

    path: str
    device: int
    inode: int
    state: State


_held: WeakValueDictionary[_Key, GGUFHeader] = WeakValueDictionary()


def held_header(path: str) -> tuple[GGUFHeader, tuple[CheckpointError, ...]]:
    """`scan_header`, or what it gave for the same file before; a header with problems is read again each time."""
    key = _key(path)
    if key is not None and (found := _held.get(key)) is not None:
        return found, ()
    header, problems = scan_header(path)
    if key is not None and not problems and header.state == key.state and key.state.is_settled:
        _held[key] = header
    return header, problems


def _key(path: str) -> _Key | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None  # whoever reads the header says what is wrong
    return _Key(path, status.st_dev, status.st_ino, State.of(status))
