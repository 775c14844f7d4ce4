# SPDX-License-Identifier: Apache-2.0
"""The format of torch before 1.6: five pickles one after the other, then each storage as its length and its bytes.

Format: magic number, version, system information, the object, the keys of the storages in order; then for each key
the number of elements (8 bytes, little endian) and the elements (torch/serialization.py, ``_legacy_save``).
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from weight_readers.errors import (
    CheckpointError,
    ForeignContentError,
    HeaderError,
    TensorLayoutError,
    TrailingBytesError,
    TruncatedFileError,
)
from weight_readers_files import Range
from weight_readers_files.content import DOWNLOAD_AGAIN
from weight_readers_pt.contents import Contents, refuse_imports
from weight_readers_pt.records import ITEMSIZE, Storage
from weight_readers_pt.unpickling import Bounded, InertUnpickler, Malformed, load_inert

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
_COUNT_BYTES = 8


def read_legacy(file: io.FileIO, path: str) -> Contents:
    """Read the pickles and the lengths of the storages. Raises CheckpointError."""
    buffered = io.BufferedReader(file)
    try:
        pickles = _Pickles(Bounded(buffered), path)
        pickles.require_torch()
        root, keys = pickles.next(), pickles.next()
        refuse_imports(pickles.unknown, path)
        places = dict(_places(buffered, keys, pickles.storages, path))
    finally:
        buffered.detach()  # it would close the file, which is the caller's
    if missing := set(pickles.storages) - set(places):
        raise _corrupt("a storage is used that the file does not list", path, found=sorted(missing)[0][:64])
    return Contents(root, places, pickles.storages, "pickle of torch before 1.6")


class _Pickles:
    """The pickles of one file, one by one, and what all of them asked for."""

    def __init__(self, file: Bounded, path: str) -> None:
        self._file = file
        self._path = path
        self.unknown: dict[str, None] = {}
        self.storages: Mapping[str, Storage] = {}

    def next(self) -> Any:
        try:
            value, seen = load_inert(self._file)
        except Malformed as error:
            kind = TruncatedFileError if isinstance(error.__cause__, EOFError) else HeaderError
            raise kind(f"the pickle cannot be read: {error}", path=self._path, fix=DOWNLOAD_AGAIN) from error
        self._take(seen)
        return value

    def require_torch(self) -> None:
        """Raise for a pickle of anything else, one whose imports are the news first."""
        magic = self.next()
        if magic != MAGIC:
            refuse_imports(self.unknown, self._path)
            raise ForeignContentError(
                "a pickle that torch.save did not write",
                path=self._path,
                expected="the magic number of torch",
                found=type(magic).__name__,
                fix="Save the tensors with safetensors, or with torch.save",
            )
        version, system = self.next(), self.next()
        if version != VERSION:
            raise _corrupt("an unknown version of the format", self._path, expected=VERSION, found=repr(version)[:64])
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise _corrupt("saved on a machine of another byte order", self._path, expected="little endian")

    def _take(self, seen: InertUnpickler) -> None:
        self.unknown.update(seen.unknown)
        self.storages = {**self.storages, **seen.storages}


def _places(file: BinaryIO, keys: Any, storages: Mapping[str, Storage], path: str) -> Iterator[tuple[str, Range]]:
    nbytes, at = os.fstat(file.fileno()).st_size, file.tell()
    for key in _listed(keys, storages, path):
        storage = storages[key]
        file.seek(at)
        count = int.from_bytes(file.read(_COUNT_BYTES), "little")
        begin, length = at + _COUNT_BYTES, count * ITEMSIZE[storage.dtype]
        at = begin + length
        if at > nbytes:
            expected = f"at least {min(at, begin + storage.nbytes)} bytes"
            raise TruncatedFileError(
                f"the file ends within storage {key[:64]}",
                path=path,
                expected=expected,
                found=f"{nbytes} bytes",
                fix=DOWNLOAD_AGAIN,
            )
        if length < storage.nbytes:
            raise TensorLayoutError(
                f"storage {key[:64]} is shorter than its tensors say", path=path, expected=storage.nbytes, found=length
            )
        yield key, (begin, storage.nbytes)
    if at < nbytes:
        raise TrailingBytesError(
            f"data bytes [{at}, {nbytes}) at the end of the file belong to no storage",
            path=path,
            expected=f"{at} bytes",
            found=f"{nbytes} bytes",
            fix=DOWNLOAD_AGAIN,
        )


def _listed(keys: Any, storages: Mapping[str, Storage], path: str) -> Iterable[str]:
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in storages for key in keys):
        raise _corrupt("the list of storages does not fit the tensors", path)
    return keys


def _corrupt(what: str, path: str, *, expected: object = None, found: object = None) -> CheckpointError:
    return HeaderError(what, path=path, expected=expected, found=found, fix=DOWNLOAD_AGAIN)
