# SPDX-License-Identifier: Apache-2.0
"""What the native library's codes mean for a local file: it has one for all that the system refuses."""

from __future__ import annotations

import errno
import os

from weight_readers import CheckpointError, FileChangedError, TruncatedFileError, UnreadableFileError
from weight_readers_files import State, open_regular

NATIVE_LOG = "Set RUNAI_STREAMER_LOG_TO_STDERR=1 and RUNAI_STREAMER_LOG_LEVEL=DEBUG to see what the library did"

END_OF_FILE = 3
TOO_FEW_DESCRIPTORS = 6
BAD_PARAMETERS = 7


def of_file(code: int | None, words: str, path: str, tensor: str, *, timeout: float) -> CheckpointError:
    """The error for a local file that could not be read, from what the system says of it now."""
    if code is None:
        return UnreadableFileError(
            f"no byte arrived for {timeout:g} seconds",
            path=path,
            tensor=tensor,
            fix="Is its file system still there? Option timeout= waits longer",
        )
    try:
        with open_regular(path):
            pass
    except CheckpointError as error:
        error.tensor = tensor
        return error
    if code == END_OF_FILE:
        return TruncatedFileError(
            "the file ends within a tensor", path=path, tensor=tensor, found="the end of the file"
        )
    fix = {TOO_FEW_DESCRIPTORS: "Raise `ulimit -n`, or lower option concurrency="}.get(code, NATIVE_LOG)
    return UnreadableFileError("reading the file failed", path=path, tensor=tensor, found=words, fix=fix)


def require_same(path: str, expected: State | None, tensor: str) -> None:
    """Raise FileChangedError unless the file is as it was when its header was read."""
    if expected is None:
        return
    try:
        now = State.of(os.stat(path))
    except OSError as error:
        raise FileChangedError(
            "the file was removed after its header was read",
            path=path,
            tensor=tensor,
            found=errno.errorcode.get(error.errno or 0, str(error)),
            fix="Load again once its writer has finished; replace files by rename, never in place",
        ) from error
    expected.require(now, path=path, tensor=tensor)
