# SPDX-License-Identifier: Apache-2.0
"""Files of each format, valid and wrong, written without any reader: by hand, or by the library of the format."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from support.files import entry, floats, write_safetensors, write_tensors
from unit.gguf.gguf_bytes import ALIGNMENT, write_gguf

from weight_readers import (
    CheckpointError,
    DuplicateTensorError,
    ForeignContentError,
    HeaderError,
    ShapeError,
    TensorLayoutError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownDtypeError,
    UnsafePickleError,
)
from weight_readers_testkit import Fault, Stored

SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "float4_e2m1fn_x2": "F4",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
"""Every dtype of safetensors 0.8 that torch can hold, by torch's name."""

GGUF_DTYPES = {
    "float32": 0,
    "float16": 1,
    "int8": 24,
    "int16": 25,
    "int32": 26,
    "int64": 27,
    "float64": 28,
    "bfloat16": 30,
}
GGUF_BLOCKS = {"Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
"""Type id, elements of a block and its bytes (ggml.h and ggml-common.h of ggml-org/ggml)."""

TORCH_DTYPES = sorted(set(SAFETENSORS_DTYPES) - {"float4_e2m1fn_x2"} | {"complex128"})


def write_safetensors_of(path: Path, tensors: Mapping[str, Stored]) -> None:
    write_tensors(path, {n: (SAFETENSORS_DTYPES[t.dtype], [*_logical(t)], t.data) for n, t in tensors.items()})


def write_safetensors_listed(path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
    """The header in the order of ``names``, the bytes in that of ``tensors``; so are the two below."""
    ends = dict(zip(tensors, accumulate(len(each.data) for each in tensors.values()), strict=True))
    header = {
        name: entry(SAFETENSORS_DTYPES[each.dtype], [*_logical(each)], ends[name] - len(each.data), ends[name])
        for name, each in ((name, tensors[name]) for name in names)
    }
    write_safetensors(path, header, b"".join(each.data for each in tensors.values()))


def _logical(tensor: Stored) -> tuple[int, ...]:
    """The shape that a header says: in elements, where torch counts pairs of them."""
    if tensor.dtype != "float4_e2m1fn_x2":
        return tensor.shape
    return (*tensor.shape[:-1], 2 * tensor.shape[-1])


def write_gguf_of(path: Path, tensors: Mapping[str, Stored]) -> None:
    write_gguf(path, {name: _ggml(tensor) for name, tensor in tensors.items()}, {"general.architecture": "test"})


def write_gguf_listed(path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
    sizes = [-(-len(each.data) // ALIGNMENT) * ALIGNMENT for each in tensors.values()]
    offsets = dict(zip(tensors, accumulate(sizes[:-1], initial=0), strict=True))
    write_gguf(path, {name: _ggml(tensors[name]) for name in names}, offsets=offsets)


def _ggml(tensor: Stored) -> tuple[int, tuple[int, ...], bytes]:
    if tensor.packed is None:
        return GGUF_DTYPES[tensor.dtype], tensor.shape, tensor.data
    kind, elements, nbytes = GGUF_BLOCKS[tensor.packed]
    rows, row_bytes = tensor.shape
    return kind, (rows, row_bytes // nbytes * elements), tensor.data


def write_torch(path: Path, tensors: Mapping[str, Stored]) -> None:
    torch.save({name: _tensor(tensor) for name, tensor in tensors.items()}, path)


def write_torch_listed(path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
    """As torch.save lists them, which numbers the storages in that order; their members are then sorted."""
    write_torch(path, {name: tensors[name] for name in names})
    places = {f"/data/{names.index(name)}": place for place, name in enumerate(tensors)}
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    members.sort(key=lambda member: places.get(member[0][member[0].index("/") :], -1))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)


def _tensor(tensor: Stored) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if not tensor.data:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).view(tensor.shape)


# --- wrong ones --------------------------------------------------------------------------------------------------

_SOUND = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}
_BODY = floats(1, 2, 3, 4)
_TWICE = b'{"a":%b,"a":%b}' % ((json.dumps(_SOUND["a"]).encode(),) * 2)


def _header(kind: type[CheckpointError], content: dict[str, object] | bytes, body: bytes = _BODY) -> Fault:
    return Fault(kind, lambda path: write_safetensors(path, content, body))


def _content(kind: type[CheckpointError], data: bytes) -> Fault:
    return Fault(kind, lambda path: path.write_bytes(data))


def _sound_but(kind: type[CheckpointError], change: Callable[[bytes], bytes]) -> Fault:
    return Fault(kind, lambda path: path.write_bytes(change(write_safetensors(path, _SOUND, _BODY).read_bytes())))


SAFETENSORS_FAULTS: dict[str, Fault] = {
    "a zip": _content(ForeignContentError, b"PK\x03\x04" + bytes(40)),
    "a pickle": _content(ForeignContentError, b"\x80\x02}q\x00." + bytes(40)),
    "GGUF": _content(ForeignContentError, b"GGUF" + bytes(40)),
    "a whole tensor short": _sound_but(TruncatedFileError, lambda data: data[:-8]),
    "cut in the header": _sound_but(TruncatedFileError, lambda data: data[:-40]),
    "one byte too many": _sound_but(TrailingBytesError, lambda data: data + b"\0"),
    "a length beyond reason": _content(HeaderError, struct.pack("<Q", 2**62) + b"{}" + bytes(20)),
    "not JSON": _header(HeaderError, b"{'a': 1}", b""),
    "not UTF-8": _header(HeaderError, b'{"\xff":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4)),
    "a list": _header(HeaderError, b"[1]", b""),
    "no offsets": _header(HeaderError, {"a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
    "metadata of numbers": _header(HeaderError, {"__metadata__": {"step": 7}, **_SOUND}),
    "a name twice": _header(DuplicateTensorError, _TWICE, bytes(8)),
    "an unknown dtype": _header(UnknownDtypeError, {"a": entry("Q9_9", [2], 0, 8)}, bytes(8)),
    "a shape that overflows": _header(ShapeError, {"a": entry("F32", [2**32, 2**32], 0, 0)}, b""),
    "a shape that does not fill its range": _header(TensorLayoutError, {"a": entry("F32", [3], 0, 8)}, bytes(8)),
    "a gap": _header(TensorLayoutError, {**_SOUND, "b": entry("F32", [2], 12, 20)}, bytes(20)),
    "an overlap": _header(TensorLayoutError, {**_SOUND, "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "an end before the beginning": _header(TensorLayoutError, {"a": entry("F32", [0], 8, 0)}, bytes(8)),
}


def _gguf_short_of_a_byte(path: Path) -> None:
    """Without padding at the end, so that the last byte is one of a tensor."""
    write_gguf(path, {"a": (0, (8,), bytes(32))})
    path.write_bytes(path.read_bytes()[:-1])


GGUF_FAULTS: dict[str, Fault] = {
    "one byte short": Fault(TruncatedFileError, _gguf_short_of_a_byte),
    "a version of the future": _content(HeaderError, b"GGUF" + struct.pack("<IQQ", 99, 0, 0) + bytes(8)),
    "another magic word": _content(ForeignContentError, b"GGJT" + bytes(40)),
}


class _Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


TORCH_FAULTS: dict[str, Fault] = {
    "code": Fault(UnsafePickleError, lambda path: torch.save({"w": torch.ones(1), "x": _Bomb()}, path)),
    "GGUF": _content(ForeignContentError, b"GGUF" + bytes(40)),
}
