# SPDX-License-Identifier: Apache-2.0
"""What lies beside the weights (config, tokenizer, templates): taken to a folder on request, the rest named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weight_readers import FileChangedError, UnreadableFileError
from weight_readers_loader.arguments import flags, shown
from weight_readers_loader.resolve import Layout, LayoutFile
from weight_readers_loader.resolve.file_names import parse_index_name
from weight_readers_loader.resolve.formats import format_by_name
from weight_readers_loader.resolve.index import why_unsafe
from weight_readers_loader.resolve.listing import Entry, Listing
from weight_readers_loader.wording import counted, size

MOST_BYTES = 64 << 20
"""The largest file that is taken for a side file, and read at once. Tokenizers have some 30 MB."""

_FOREIGN = frozenset({".h5", ".msgpack", ".onnx", ".ot", ".tflite", ".npz", ".npy", ".pb", ".mlmodel", ".data"})
"""Suffixes of weights that no reader here reads."""

LeftOut = tuple[tuple[str, str], ...]
"""Names and the reason for each."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """``written`` are the names of the files that are in ``folder`` now, ``left_out`` those that were not taken."""

    folder: str
    written: tuple[str, ...]
    left_out: LeftOut

    def lines(self) -> list[str]:
        return [
            *self.written,
            f"{counted(len(self.written), 'file')} written to {self.folder}",
            *(f"left out: {name}: {reason}" for name, reason in self.left_out),
        ]

    def to_json(self) -> dict[str, Any]:
        left = [{"name": name, "reason": reason} for name, reason in self.left_out]
        return {"folder": self.folder, "written": list(self.written), "left_out": left}


class SideFiles:
    """The ``files`` beside the weights; ``left_out`` are the names that are no side files, with reasons."""

    def __init__(self, layout: Layout) -> None:
        self._listing = _listing_of(layout)
        names = (*self._listing.names(), *self._listing.unsafe())
        judged = [(name, *_judged(self._listing, name)) for name in names]
        self.files = tuple(file for _, file, _ in judged if file is not None)
        folders = [
            (f"{name}/", "a folder; its files are those of subfolder= (--subfolder)")
            for name in self._listing.folders()
        ]
        self.left_out: LeftOut = (*((name, why) for name, _, why in judged if why is not None), *folders)

    def copy_to(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Taken:
        """Write them to ``folder``, which is made where it is not there; nothing in it is deleted.

        A file that is there already is left as it is, and named, unless ``overwrite``. Each is written whole or not at
        all. Raises UnreadableFileError, with the file, for what cannot be read or written.
        """
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise TypeError(f"folder must be the path of a folder, not {shown(folder)}")
        flags(overwrite=overwrite)
        where = Path(folder)
        with _refused(str(where)):
            where.mkdir(parents=True, exist_ok=True)
        written = [file.name for file in self.files if self._copy(file, where, overwrite)]
        present = [file.name for file in self.files if file.name not in written]
        left = (*((name, "it is there already; overwrite=True (--overwrite) replaces it") for name in present),)
        return Taken(folder=str(where), written=tuple(written), left_out=(*left, *self.left_out))

    def _copy(self, file: LayoutFile, folder: Path, overwrite: bool) -> bool:
        """Whether it was written: under a name of its own first, which then becomes the file's at once."""
        target = folder / file.name
        if not overwrite and os.path.lexists(target):
            return False
        data = self._listing.read_bytes(file.name, file.size + 1)
        if len(data) != file.size:
            raise FileChangedError(
                "the file was changed while it was read",
                path=file.path,
                expected=f"{file.size} bytes",
                found=f"{len(data)} bytes",
                fix="Try again once its writer has finished",
            )
        with _refused(str(target)), tempfile.TemporaryDirectory(dir=folder, prefix=".side-files-") as beside:
            new = Path(beside) / "new"
            new.write_bytes(data)
            return _place(new, target, overwrite)


def _place(new: Path, target: Path, overwrite: bool) -> bool:
    """Give ``new`` the name ``target``. False where somebody else was quicker, and that is not to be overwritten."""
    if not overwrite:
        try:
            os.link(new, target)
            return True
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if os.path.lexists(target):
                return False
    new.replace(target)
    return True


def _listing_of(layout: Layout) -> Listing:
    if layout.listing is None:
        raise ValueError(f"the layout of {layout.root} was made without a listing")
    return layout.listing


def _judged(listing: Listing, name: str) -> tuple[LayoutFile | None, str | None]:
    """The file where it is a side file, else why it is left out."""
    if (reason := why_unsafe(name)) is not None or "/" in name:
        return None, f"its name is no plain name: {reason or 'it has a slash'}"
    if (kind := _other_kind(name)) is not None:
        return None, kind
    entry = listing.entry(name)
    if entry is None or entry.fault is not None:
        return None, entry.fault if entry is not None else "it is not there any more"
    return _of_size(listing, entry)


def _other_kind(name: str) -> str | None:
    if name.startswith("."):
        return "a hidden file"
    if format_by_name(name) is not None:
        return "weights"
    if parse_index_name(name) is not None:
        return "an index of weights"
    return "weights of another framework" if os.path.splitext(name)[1].lower() in _FOREIGN else None


def _of_size(listing: Listing, entry: Entry) -> tuple[LayoutFile | None, str | None]:
    if entry.size > MOST_BYTES:
        return None, f"{size(entry.size)}, and side files have at most {size(MOST_BYTES)}"
    return LayoutFile(name=entry.name, path=listing.path_of(entry.name), size=entry.size), None


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """Raise UnreadableFileError for what the file system refuses."""
    try:
        yield
    except OSError as error:
        raise UnreadableFileError(
            "the file cannot be written",
            path=path,
            found=error.strerror or str(error),
            fix="Name a folder that this user may write to",
        ) from error
