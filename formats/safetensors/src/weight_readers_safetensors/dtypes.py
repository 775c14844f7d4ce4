# SPDX-License-Identifier: Apache-2.0
"""The dtypes of safetensors 0.8: the one table that every reader uses."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weight_readers.errors import UnknownDtypeError, UnsupportedDtypeError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dtype:
    """One dtype: its name in the header, its size in bits, and what torch calls it.

    ``packing`` is how many logical elements one element of the torch dtype holds: 2 for ``F4``, of which
    torch stores pairs, 1 for every other.
    """

    name: str
    bits: int
    torch_name: str
    packing: int = 1

    @property
    def unit(self) -> int:
        """The smallest number of elements that fills whole bytes: 2 for ``F4``, 4 for ``F6_*``, else 1."""
        return 8 // math.gcd(self.bits, 8)


DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("BOOL", 8, "bool"),
        Dtype("F4", 4, "float4_e2m1fn_x2", packing=2),
        # No torch has the two 6-bit types; the names are those torch's scheme would give them.
        Dtype("F6_E2M3", 6, "float6_e2m3fn"),
        Dtype("F6_E3M2", 6, "float6_e3m2fn"),
        Dtype("U8", 8, "uint8"),
        Dtype("I8", 8, "int8"),
        Dtype("F8_E5M2", 8, "float8_e5m2"),
        Dtype("F8_E4M3", 8, "float8_e4m3fn"),
        Dtype("F8_E8M0", 8, "float8_e8m0fnu"),
        Dtype("F8_E4M3FNUZ", 8, "float8_e4m3fnuz"),
        Dtype("F8_E5M2FNUZ", 8, "float8_e5m2fnuz"),
        Dtype("I16", 16, "int16"),
        Dtype("U16", 16, "uint16"),
        Dtype("F16", 16, "float16"),
        Dtype("BF16", 16, "bfloat16"),
        Dtype("I32", 32, "int32"),
        Dtype("U32", 32, "uint32"),
        Dtype("F32", 32, "float32"),
        Dtype("C64", 64, "complex64"),
        Dtype("F64", 64, "float64"),
        Dtype("I64", 64, "int64"),
        Dtype("U64", 64, "uint64"),
    )
}
"""Header name -> `Dtype`, in the order of the ``Dtype`` enum of the safetensors crate."""


def dtype_of(source_dtype: str, *, path: str | os.PathLike[str], tensor: str | None = None) -> Dtype:
    """The table's row for the header's ``source_dtype``. Raises `UnknownDtypeError` naming file and tensor."""
    try:
        return DTYPES[source_dtype]
    except KeyError:
        raise unknown_dtype(source_dtype, path=path, tensor=tensor) from None


def unknown_dtype(source_dtype: str, *, path: str | os.PathLike[str], tensor: str | None) -> UnknownDtypeError:
    """The error for a dtype that safetensors does not have, with the near miss where it is one of case."""
    near = source_dtype.upper()
    return UnknownDtypeError(
        f"unknown dtype {source_dtype[:64]!r}",
        path=path,
        tensor=tensor,
        expected=f"one of {' '.join(DTYPES)}",
        found=repr(source_dtype[:64]),
        fix=f"Did the writer mean {near!r}? Names of dtypes are in capitals" if near in DTYPES else None,
    )


def torch_dtype(source_dtype: str, *, path: str | os.PathLike[str], tensor: str | None = None) -> torch.dtype:
    """The torch dtype of the header's ``source_dtype``, looked up now and not at import.

    Raises `UnknownDtypeError` for a dtype safetensors does not have, and `UnsupportedDtypeError` for one that
    the installed torch does not have (an older torch still reads every other dtype).
    """
    import torch

    dtype = dtype_of(source_dtype, path=path, tensor=tensor)
    found = getattr(torch, dtype.torch_name, None)
    if not isinstance(found, torch.dtype):
        raise _unsupported(dtype, torch.__version__, path, tensor)
    return found


def _unsupported(dtype: Dtype, version: str, path: str | os.PathLike[str], tensor: str | None) -> UnsupportedDtypeError:
    mend = "No release of torch has it: convert the tensor"
    if not dtype.name.startswith("F6_"):
        mend = "Run `pip install --upgrade torch`"
    return UnsupportedDtypeError(
        f"torch {version} has no dtype for {dtype.name}",
        path=path,
        tensor=tensor,
        expected=f"torch.{dtype.torch_name}",
        found=f"torch {version}",
        fix=mend,
    )
