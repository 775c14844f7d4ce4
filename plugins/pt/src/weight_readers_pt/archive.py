# SPDX-License-Identifier: Apache-2.0
"""The zip archive of torch 1.6 and later: a pickle, and each storage as a record that is stored as it is.

Format: ``<name>/data.pkl``, ``<name>/data/<key>`` for each storage, ``<name>/byteorder``, ``<name>/version``
(torch/serialization.py, ``_save``; caffe2/serialize/inline_container.h).
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Iterable, Mapping

from weight_readers.errors import (
    CheckpointError,
    ForeignContentError,
    HeaderError,
    TensorLayoutError,
    TruncatedFileError,
)
from weight_readers_files import Range
from weight_readers_files.content import DOWNLOAD_AGAIN
from weight_readers_files.source import fill
from weight_readers_pt.contents import Contents, refuse_imports
from weight_readers_pt.records import Storage
from weight_readers_pt.unpickling import MAX_PICKLE_BYTES, Malformed, load_inert

_LOCAL = struct.Struct("<4s22xHH")  # the local header of a record: signature, lengths of its name and extra field
_END = b"PK\x05\x06"
_END_BYTES = 22  # and a comment
_MAX_DIRECTORY_BYTES = 256 << 20  # 100,000 records take about 10 MiB
_TAIL_BYTES = _END_BYTES + 0xFFFF


def read_archive(file: io.FileIO, path: str) -> Contents:
    """Read the directory and the pickle; of the tensors only where they lie. Raises CheckpointError."""
    records = _Records(file, path)
    records.require_little_endian()
    try:
        root, seen = load_inert(io.BytesIO(records.pickle()))
    except Malformed as error:
        raise HeaderError(
            f"the pickle in the archive cannot be read: {error}", path=path, fix=DOWNLOAD_AGAIN
        ) from error
    refuse_imports(seen.unknown, path)
    places = records.places(seen.storages.values())
    return Contents(root, places, seen.storages, "zip archive of torch")


class _Limited:
    """The file for `zipfile`, which reads a directory of whatever length the file claims."""

    def __init__(self, file: io.FileIO, nbytes: int) -> None:
        self._nbytes = nbytes
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._nbytes - self._file.tell())
        wanted = left if count < 0 else min(count, left)
        if wanted > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"it claims to have {wanted} bytes")
        return self._file.read(wanted)


class _Records:
    """The records of the archive by name. Compressed ones and two of one name are refused where they are needed."""

    def __init__(self, file: io.FileIO, path: str) -> None:
        self._file = file
        self._path = path
        self._nbytes = os.fstat(file.fileno()).st_size
        self._infos = {info.filename: info for info in self._directory()}
        self._prefix = self._find_prefix()

    def pickle(self) -> bytes:
        return self._read("data.pkl", MAX_PICKLE_BYTES)

    def require_little_endian(self) -> None:
        if f"{self._prefix}/byteorder" in self._infos and (order := self._read("byteorder", 16)) != b"little":
            raise HeaderError(
                "saved on a machine of another byte order", path=self._path, expected="little", found=order
            )

    def places(self, storages: Iterable[Storage]) -> Mapping[str, Range]:
        return {storage.key: self._place_of(storage) for storage in storages}

    def _place_of(self, storage: Storage) -> Range:
        offset, nbytes = self._place(f"data/{storage.key}")
        if nbytes < storage.nbytes:
            raise TensorLayoutError(
                f"the record of storage {storage.key} is smaller than the storage",
                path=self._path,
                expected=f"{storage.nbytes} bytes",
                found=f"{nbytes} bytes",
                fix=DOWNLOAD_AGAIN,
            )
        return offset, storage.nbytes

    def _directory(self) -> list[zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(_Limited(self._file, self._nbytes)) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise self._no_directory(error) from error
        if len({info.filename for info in infos}) < len(infos):
            raise HeaderError("the archive has two records of one name", path=self._path, fix="Get the file again")
        return infos

    def _no_directory(self, error: Exception) -> CheckpointError:
        tail = self._bytes(max(0, self._nbytes - _TAIL_BYTES), min(self._nbytes, _TAIL_BYTES))
        if _END not in tail or len(tail) - tail.rindex(_END) < _END_BYTES:
            what = "the file ends before the directory of its archive, which lies at its end"
            return TruncatedFileError(what, path=self._path, found=f"{self._nbytes} bytes", fix=DOWNLOAD_AGAIN)
        return HeaderError(f"the directory of the archive is damaged: {error}", path=self._path, fix=DOWNLOAD_AGAIN)

    def _find_prefix(self) -> str:
        folders = {name.partition("/")[0] for name in self._infos}
        found = [folder for folder in sorted(folders) if f"{folder}/data.pkl" in self._infos]
        if len(found) != 1:
            raise ForeignContentError(
                "a zip archive that torch.save did not write",
                path=self._path,
                expected="one <name>/data.pkl",
                found=f"{len(found)} of those among {len(self._infos)} records",
                fix="Unpack it, and load the files inside",
            )
        if f"{found[0]}/constants.pkl" in self._infos:
            raise ForeignContentError(
                "a TorchScript archive: a program with its weights, which is never run here",
                path=self._path,
                expected="a checkpoint of torch.save",
                found="TorchScript",
                fix="Save the state dict of the module: torch.save(torch.jit.load(FILE).state_dict(), NEW)",
            )
        return found[0]

    def _read(self, name: str, limit: int) -> bytes:
        offset, nbytes = self._place(name)
        if nbytes > limit:
            raise HeaderError(
                f"{name} of the archive is too long", path=self._path, expected=f"{limit} bytes", found=nbytes
            )
        return self._bytes(offset, nbytes)

    def _place(self, name: str) -> Range:
        """Where the bytes of a record lie; its local header says how long it is itself."""
        info = self._infos.get(f"{self._prefix}/{name}")
        if info is None:
            raise HeaderError(f"the archive lacks the record {name}", path=self._path, fix=DOWNLOAD_AGAIN)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise HeaderError(
                f"the record {name} is compressed or encrypted", path=self._path, expected="stored as it is"
            )
        raw = self._bytes(info.header_offset, _LOCAL.size)
        signature, name_bytes, extra_bytes = _LOCAL.unpack(raw) if len(raw) == _LOCAL.size else (b"", 0, 0)
        offset = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
        if signature != b"PK\x03\x04" or offset + info.file_size > self._nbytes:
            raise TruncatedFileError(
                f"the record {name} does not lie where the directory of the archive says",
                path=self._path,
                expected=f"{info.file_size} bytes at {offset}",
                found=f"a file of {self._nbytes} bytes",
                fix=DOWNLOAD_AGAIN,
            )
        return offset, info.file_size

    def _bytes(self, offset: int, count: int) -> bytes:
        buffer = bytearray(max(0, min(count, self._nbytes - offset)) if offset >= 0 else 0)
        done = fill(lambda into, at: os.preadv(self._file.fileno(), [into], at), memoryview(buffer), offset)
        return bytes(buffer[:done])
