# SPDX-License-Identifier: Apache-2.0
"""Reader `npz` keeps the contract of weight-readers."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from weight_readers import (
    ForeignContentError,
    HeaderError,
    ShapeError,
    TensorLayoutError,
    UnknownDtypeError,
    UnsafePickleError,
)
from weight_readers_testkit import Fault, ReaderContractTests, Stored

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


class TestNpz(ReaderContractTests):
    reader_name = "npz"
    dtypes = tuple(DTYPES)
    # Names of members of an archive: no separators that zipfile changes.
    names = ("", " ", "ß.weight", "重み", "a\tb", 'quote"d', "../up", "x" * 5000)
    many = 1000

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        arrays = {n: np.frombuffer(t.data, np.dtype(t.dtype)).reshape(t.shape) for n, t in tensors.items()}
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        """The directory at the end of the archive is what lists them."""
        self.write(path, tensors)
        with zipfile.ZipFile(path, "a") as archive:
            archive.filelist.sort(key=lambda member: names.index(member.filename.removesuffix(".npy")))
            archive.comment = b"sorted"  # or the directory is left as it was

    def faults(self) -> Mapping[str, Fault]:
        compressed = TensorLayoutError, lambda path: _save(path, np.savez_compressed, np.zeros(64))
        return {
            "compressed": Fault(*compressed),
            "Fortran order": Fault(TensorLayoutError, lambda path: _save(path, np.savez, np.zeros((2, 3)).T)),
            "big endian": Fault(UnknownDtypeError, lambda path: _save(path, np.savez, np.zeros(2, ">f4"))),
            "pickled objects": Fault(UnsafePickleError, lambda path: _save(path, np.savez, np.array([{}]))),
            "sizes below zero": Fault(ShapeError, lambda path: _write(path, _array("(-1, -2)", bytes(8)))),
            "sizes beyond 64 bits": Fault(ShapeError, lambda path: _write(path, _array(f"(0, {2**70})", b""))),
            "a bool for a size": Fault(ShapeError, lambda path: _write(path, _array("(True, 2)", bytes(8)))),
            "more dimensions than torch can use": Fault(
                ShapeError, lambda path: _write(path, _array(f"({'1,' * 65})", bytes(4)))
            ),
            "a header that no parser ends": Fault(HeaderError, lambda path: _write(path, _array("(" * 3000, b""))),
            "a header that is nested too deep": Fault(HeaderError, lambda path: _write(path, _array("-" * 3900, b""))),
            "two names of one member": Fault(TensorLayoutError, _one_member_twice),
            "an array by itself": Fault(ForeignContentError, lambda path: _save(path, np.save, np.zeros(2))),
        }


def _save(path: Path, save: object, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        save(file, array)  # type: ignore[operator]


def _array(shape: str, elements: bytes) -> bytes:
    """A member as numpy.lib.format has it, with any text in the place of its shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + elements


def _write(path: Path, *members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, member in enumerate(members):
            archive.writestr(f"w{number}.npy", member)


def _one_member_twice(path: Path) -> None:
    _write(path, _array("(2,)", bytes(8)), _array("(2,)", bytes(8)))
    content = bytearray(path.read_bytes())
    # Of the last entry of the directory, where its member begins.
    struct.pack_into("<I", content, content.rindex(b"PK\x01\x02") + 42, 0)
    path.write_bytes(content)
