# SPDX-License-Identifier: Apache-2.0
"""Reader `npz` keeps the contract of weight-readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weight_readers import ForeignContentError, TensorLayoutError, UnknownDtypeError, UnsafePickleError
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

    def faults(self) -> Mapping[str, Fault]:
        compressed = TensorLayoutError, lambda path: _save(path, np.savez_compressed, np.zeros(64))
        return {
            "compressed": Fault(*compressed),
            "Fortran order": Fault(TensorLayoutError, lambda path: _save(path, np.savez, np.zeros((2, 3)).T)),
            "big endian": Fault(UnknownDtypeError, lambda path: _save(path, np.savez, np.zeros(2, ">f4"))),
            "pickled objects": Fault(UnsafePickleError, lambda path: _save(path, np.savez, np.array([{}]))),
            "an array by itself": Fault(ForeignContentError, lambda path: _save(path, np.save, np.zeros(2))),
        }


def _save(path: Path, save: object, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        save(file, array)  # type: ignore[operator]
