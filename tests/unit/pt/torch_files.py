# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save, whole and hostile. torch itself writes them, or they are pickled and zipped by hand."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

MAGIC = 0x1950A86A20F9469CFC6C
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


class Bomb:
    """Runs a command when it is unpickled by anything that runs what a pickle says."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def tensors() -> OrderedDict[str, Any]:
    """Every way in which a tensor can lie over its storage, and dtypes of each size."""
    whole, tied = torch.arange(12.0).reshape(3, 4), torch.randn(5, 2).to(torch.bfloat16)
    return OrderedDict(
        whole=whole,
        transposed=whole.t(),
        columns=whole[:, 1:3],
        tied=tied,
        again=tied,
        small=torch.arange(1000.0)[10:20],
        empty=torch.empty(0, 3),
        scalar=torch.tensor(3),
        expanded=torch.full((1,), 2.5).expand(7),
        parameter=torch.nn.Parameter(torch.ones(2, 2)),
        flags=torch.tensor([True, False]),
        half=torch.arange(6, dtype=torch.float16).reshape(1, 6, 1),
        double=torch.linspace(0, 1, 5, dtype=torch.float64),
        numbers=torch.arange(24, dtype=torch.int8).reshape(2, 3, 4),
        complex=torch.view_as_complex(torch.randn(3, 2)),
    )


def newer() -> dict[str, torch.Tensor]:
    """Dtypes that torch saves by way of untyped storages; the format before 1.6 cannot hold them."""
    return {
        "f8": torch.arange(4.0).to(torch.float8_e4m3fn),
        "f8e5": torch.arange(4.0).to(torch.float8_e5m2),
        "u16": torch.arange(3).to(torch.uint16),
    }


def save(path: Path, what: Any, *, legacy: bool = False, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(what, path, _use_new_zipfile_serialization=not legacy, **options)
    return path


def write_zip(path: Path, records: Mapping[str, bytes], *, compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive with these records below ``archive/``."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(f"archive/{name}", data)
    return path


def zipped(path: Path, pickled: bytes, **storages: bytes) -> Path:
    """A torch archive around a pickle of any content."""
    return write_zip(
        path,
        {
            "data.pkl": pickled,
            "version": b"3\n",
            "byteorder": b"little",
            **{f"data/{k}": v for k, v in storages.items()},
        },
    )


def legacy(path: Path, pickled: bytes, rest: bytes = b"") -> Path:
    """A file of torch before 1.6 around a pickle of any content; ``rest`` are the storages."""
    head = b"".join(pickle.dumps(each, 2) for each in (MAGIC, 1001, SYSTEM))
    path.write_bytes(head + pickled + pickle.dumps([], 2) + rest)
    return path


def dumped(what: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(what, protocol)


def one_tensor(
    *,
    key: str = "0",
    numel: int = 4,
    offset: Any = 0,
    shape: Any = (4,),
    strides: Any = (1,),
    kind: str = "FloatStorage",
) -> bytes:
    """The pickle of ``{"w": tensor}`` with these numbers in it, whether they fit or not."""
    written = io.BytesIO()
    pickler = _Writer(written, 2)
    pickler.dump({"w": _Rebuilt((_Stored(key, numel, kind), offset, shape, strides, False, OrderedDict()))})
    return written.getvalue()


class _Stored:
    def __init__(self, key: str, numel: int, kind: str) -> None:
        self.pid = ("storage", getattr(torch, kind), key, "cpu", numel)


class _Rebuilt:
    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.arguments


class _Writer(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.pid if isinstance(value, _Stored) else None


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)
