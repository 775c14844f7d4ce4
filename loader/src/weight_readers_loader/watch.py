# SPDX-License-Identifier: Apache-2.0
"""Whether the files of a checkpoint are still those whose headers were checked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from weight_readers import FileChangedError


class _Identity(NamedTuple):
    device: int
    inode: int
    size: int
    modified: int


class Watch:
    """Remembers files as they are now, before their headers are read.

    A file that is written in place changes under a mapping without a word (ggml-org/llama.cpp#6774); one that is
    replaced by rename goes on being read in its old form, if its reader has it open by then.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._known = {path: _identity(path) for path in paths}

    def check(self, path: str) -> None:
        """Raise FileChangedError unless ``path`` is still the same, unmodified file: for the moment of opening it."""
        self._compare(path, _identity(path))

    def check_contents(self, paths: Iterable[str]) -> None:
        """Raise FileChangedError for a file that was written to. One that was replaced or deleted is not one."""
        for path in paths:
            now, known = _identity(path), self._known[path]
            if now is not None and known is not None and now[:2] == known[:2]:
                self._compare(path, now)

    def _compare(self, path: str, now: _Identity | None) -> None:
        if now != self._known[path]:
            raise FileChangedError(
                "the file was changed after the checkpoint was opened",
                path=path,
                expected=_said(self._known[path]),
                found=_said(now, before=self._known[path]),
                fix="Open it again once its writer has finished; replace files by rename, never in place",
            )


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _said(found: _Identity | None, before: _Identity | None = None) -> str:
    if found is None:
        return "nothing there"
    state = "unmodified" if before is None else "modified" if before[:2] == found[:2] else "another file"
    return f"{found.size} bytes, {state}"
