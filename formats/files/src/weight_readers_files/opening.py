# SPDX-License-Identifier: Apache-2.0
"""Opening a checkpoint file: only regular files, without blocking, with errors that name the path."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from weight_readers.errors import CheckpointError, CheckpointNotFoundError, UnreadableFileError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@contextmanager
def open_regular(path: str) -> Iterator[io.FileIO]:
    """Open the regular file at ``path`` for reading, unbuffered.

    Raises `CheckpointNotFoundError` where there is nothing and `UnreadableFileError` for all else, an I/O error
    inside the ``with`` block included.
    """
    try:
        _require_regular(path, os.stat(path))
        with io.FileIO(path, opener=_opener) as file:
            # Between the two calls another file may have taken the name.
            _require_regular(path, os.fstat(file.fileno()))
            yield file
    except CheckpointError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_found(path) from error
    except OSError as error:
        fix = "Check the permissions of the file and of its folders" if isinstance(error, PermissionError) else None
        raise UnreadableFileError(f"the file cannot be read: {error.strerror or error}", path=path, fix=fix) from error
    except ValueError as error:
        # os.stat says so of a path with a NUL in it.
        raise CheckpointNotFoundError(f"no file can have this name ({error})", path=path) from error


def _opener(path: str, flags: int) -> int:
    # A FIFO that appears after the check would block an ordinary open until somebody writes.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            # Read-ahead would pull in megabytes of tensors that nobody may want.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor


def _require_regular(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "a special file")
        fix = "Give the files in it" if stat.S_ISDIR(status.st_mode) else None
        raise UnreadableFileError(f"{kind}, not a file", path=path, expected="a regular file", found=kind, fix=fix)


def _not_found(path: str) -> CheckpointNotFoundError:
    if os.path.islink(path):
        return CheckpointNotFoundError(
            f"a link to {os.readlink(path)}, where nothing is", path=path, fix="Download the file again"
        )
    return CheckpointNotFoundError("no such file", path=path)
