# SPDX-License-Identifier: Apache-2.0
"""Where copies of stored files lie: a folder of the user's, and in it one for each version of each file."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weight_readers import CheckpointError, FileVersion, UnreadableFileError
from weight_readers_loader.wording import size

_ROOM_LEFT = 64 << 20
"""Bytes of the file system that are left alone."""
FIX = "Name another folder: cache_dir= (--cache-dir), or WEIGHT_READERS_CACHE_DIR"


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """``given``, else ``weight-readers`` where caches lie: in XDG_CACHE_HOME, or in ~/.cache."""
    if given is not None:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "weight-readers"


def folder_of(cache: Path, uri: str, version: FileVersion, place: str) -> Path:
    """The folder of one version of a file. Files of one folder of a store are in the order of their names there.

    ``place`` tells stores apart in which the same URI means something else: the endpoint.
    """
    parent, _, name = uri.rpartition("/")
    beside = _short(f"{place}\n{parent}")
    return cache / "objects" / beside / name / _short(f"{version.nbytes}\n{version.tag}")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@contextmanager
def refused_by_disk(path: Path, uri: str) -> Iterator[None]:
    """Raise UnreadableFileError for what the file system of the cache refuses."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        found = f"{error.strerror or error}: {error.filename or path}"
        raise UnreadableFileError("the local copy cannot be kept", path=uri, found=found, fix=FIX) from error


def require_room(folder: Path, nbytes: int, uri: str) -> None:
    """Raise UnreadableFileError unless there is room for ``nbytes`` more."""
    free = shutil.disk_usage(folder).free
    if nbytes + _ROOM_LEFT > free:
        raise UnreadableFileError(
            "there is no room for the local copy",
            path=uri,
            expected=f"{size(nbytes + _ROOM_LEFT)} free in {folder}",
            found=f"{size(free)}",
            fix=f"Delete what is not needed there. {FIX}",
        )
