# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes: their place is tried before anything is read, and they appear whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class WholeFile:
    """Raises OSError when made, where no file can be written at ``path``; what is there stays until `put`.

    Raises ValueError for a name that no file has.
    """

    def __init__(self, path: str) -> None:
        if not path.strip():
            raise ValueError("that is no name of a file")
        # A link stays a link, to the new file.
        self._path = Path(path).resolve()
        if self._path.exists() and not self._path.is_file():
            raise FileExistsError("it is a folder" if self._path.is_dir() else "it is there and is no file")
        self._write(b"").unlink()

    def put(self, content: bytes) -> None:
        """Put ``content`` there, in place of what was there. Raises OSError."""
        temporary = self._write(content)
        try:
            temporary.replace(self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._blamed(error) from error

    def _write(self, content: bytes) -> Path:
        """A new file beside the one that is to be, so that it can take its place in one step."""
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):  # its folder may be none
                temporary.unlink()
            raise self._blamed(error) from error
        return temporary

    def _blamed(self, error: OSError) -> OSError:
        """The same error, of the file that was asked for rather than of the one that nobody knows."""
        folder = self._path.parent
        if not folder.is_dir():
            return OSError(error.errno, error.strerror, str(folder))
        if isinstance(error, FileNotFoundError):  # /proc: a folder of the kernel's, in which nobody makes files
            return FileNotFoundError(f"no file can be made in the folder {folder}")
        return OSError(error.errno, error.strerror, str(self._path))


def cannot_write(path: str | None, error: Exception) -> str:
    """What to say of a file that a command was to write and cannot."""
    name = path if path and path.strip() else repr(path)
    advice = "Give a file in a folder that is there and that you may write in"
    return f"cannot write {name}: {error}. {advice}"


class ReportFile(WholeFile):
    """The file of ``--report``: new, or in place of an earlier report. Other files stay: they may be the weights."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if self._path.exists() and self._path.stat().st_size and not _is_report(self._path):
            raise FileExistsError("it is there and is no report")

    def write(self, data: Mapping[str, Any]) -> None:
        """Put ``data`` there as JSON. Raises OSError."""
        self.put((json.dumps(data, indent=2) + "\n").encode())


_REPORT_BYTES = 64 << 20
"""No report is larger."""


def _is_report(path: Path) -> bool:
    try:
        data = json.loads(path.read_bytes()) if path.stat().st_size <= _REPORT_BYTES else None
    except ValueError:
        return False
    return isinstance(data, dict) and "reader" in data and not data.keys().isdisjoint({"selection", "read_by_rank"})
