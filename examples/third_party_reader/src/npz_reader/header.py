# SPDX-License-Identifier: Apache-2.0
"""The directory of .npz files: what is in them, and every way in which they can be wrong.

Format: a zip archive with one `<name>.npy` for each array (numpy.savez); each is a magic word, the header of
numpy.lib.format, and the elements.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import struct
import tokenize
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from weight_readers import (
    CheckpointError,
    CheckpointMeta,
    CheckpointProblems,
    DuplicateTensorError,
    FileMeta,
    HeaderError,
    ShapeError,
    TensorLayoutError,
    TensorMeta,
    TruncatedFileError,
    UnknownDtypeError,
    UnsafePickleError,
)
from weight_readers_files import open_regular
from weight_readers_files.content import DOWNLOAD_AGAIN, HEAD_BYTES, foreign_content
from weight_readers_files.sets import common_folder, shared

DTYPES = {
    np.dtype(name).newbyteorder("<"): name
    for name in [
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
}
"""The dtypes that NumPy and torch have in common, by torch's name."""
_MAGIC = b"PK\x03\x04"
_EMPTY = b"PK\x05\x06"
_LOCAL = struct.Struct("<4s22xHH")  # the header before a member: signature, lengths of its name and extra field
_NO_HEADER = (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)  # of text that is parsed
_MAX_DIMS, _MAX_ELEMENTS = 64, 2**63 - 1  # what torch can use
_NPY_BYTES = 4096  # more than NumPy writes before the elements of an array without fields


def read_headers(paths: Sequence[str]) -> CheckpointMeta:
    """Check all files, given in natural order; no tensor is read. Raises all that is wrong with them at once."""
    files: list[FileMeta] = []
    tensors: dict[str, TensorMeta] = {}
    names: list[tuple[str, list[str]]] = []
    problems: list[CheckpointError] = []
    for path in paths:
        try:
            file, found = read_header(path)
        except CheckpointError as error:
            problems += error.problems
        else:
            files.append(file)
            names.append((path, [tensor.name for tensor in found]))
            tensors.update((tensor.name, tensor) for tensor in found)
    problems += shared(names)
    CheckpointProblems.raise_any(problems, path=common_folder(paths))
    return CheckpointMeta(tensors, files)


def read_header(path: str) -> tuple[FileMeta, list[TensorMeta]]:
    """One file and its tensors, in the order of the archive. Raises the CheckpointError for what is wrong."""
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        if not head.startswith((_MAGIC, _EMPTY)) or b"/data.pkl" in head[:512]:
            raise foreign_content(path, head, expected=repr(_MAGIC), what=".npz")
        members = _directory(file, path)
        tensors = [_tensor(file, path, member) for member in members]
    _check_twice(path, tensors)
    _check_apart(path, tensors)
    header_bytes = nbytes - sum(tensor.nbytes for tensor in tensors)
    return FileMeta(path=path, format="npz", nbytes=nbytes, header_bytes=header_bytes), tensors


def _directory(file: io.FileIO, path: str) -> list[zipfile.ZipInfo]:
    file.seek(0)
    try:
        # zipfile wants buffered reads of its own; the directory is at the end, and nothing else is read.
        return sorted(zipfile.ZipFile(file).infolist(), key=lambda member: member.header_offset)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise TruncatedFileError(
            f"the directory at the end of the archive is not there ({error})", path=path, fix=DOWNLOAD_AGAIN
        ) from error


def _tensor(file: io.FileIO, path: str, member: zipfile.ZipInfo) -> TensorMeta:
    name = member.filename.removesuffix(".npy")
    if member.compress_type != zipfile.ZIP_STORED:
        raise TensorLayoutError(
            "the member is compressed", path=path, tensor=name, fix="Write it with numpy.savez, not savez_compressed"
        )
    begin = _begin(file, path, member)
    shape, dtype, header_bytes = _npy(file, path, name, begin)
    nbytes = member.file_size - header_bytes
    found = math.prod(shape) * np.dtype(dtype).itemsize
    if found != nbytes:
        raise TensorLayoutError(
            "the member has another size than its array", path=path, tensor=name, expected=found, found=nbytes
        )
    return TensorMeta(
        name=name,
        dtype=dtype,
        source_dtype=dtype,
        shape=shape,
        stored_shape=shape,
        nbytes=nbytes,
        file=path,
        offset=begin + header_bytes,
    )


def _begin(file: io.FileIO, path: str, member: zipfile.ZipInfo) -> int:
    """Where the member's own bytes begin: the lengths in the directory are not those of the local header."""
    file.seek(member.header_offset)
    local = file.read(_LOCAL.size)
    if len(local) < _LOCAL.size or not local.startswith(_MAGIC):
        raise HeaderError("the directory points at no member", path=path, tensor=member.filename, fix=DOWNLOAD_AGAIN)
    _, name_bytes, extra_bytes = _LOCAL.unpack(local)
    return member.header_offset + _LOCAL.size + name_bytes + extra_bytes


def _npy(file: io.FileIO, path: str, name: str, begin: int) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and the bytes before the elements. Raises for arrays that are not elements in C order."""
    file.seek(begin)
    head = io.BytesIO(file.read(_NPY_BYTES))
    try:
        read: Any = np.lib.format.read_array_header_1_0
        if np.lib.format.read_magic(head) != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, in_fortran_order, dtype = read(head)
    except _NO_HEADER as error:
        raise HeaderError(f"the member is no array ({error})", path=path, tensor=name, fix=DOWNLOAD_AGAIN) from error
    if dtype.hasobject:
        raise UnsafePickleError(
            "the array holds Python objects, pickled; nothing was loaded",
            path=path,
            tensor=name,
            fix="Write arrays of numbers",
        )
    if dtype not in DTYPES:
        raise UnknownDtypeError("torch has no such dtype", path=path, tensor=name, found=dtype)
    if in_fortran_order and len(shape) > 1:
        fix = "Write numpy.ascontiguousarray(array)"
        raise TensorLayoutError("the array is in Fortran order", path=path, tensor=name, fix=fix)
    if not _is_shape(shape):
        raise ShapeError("torch has no such shape", path=path, tensor=name, found=str(shape)[:80])
    return tuple(shape), DTYPES[dtype], head.tell()


def _is_shape(shape: Sequence[Any]) -> bool:
    """Whether torch can count in it; zeros are no way out, since strides are computed as if they were ones."""
    whole = all(type(size) is int and size >= 0 for size in shape)
    return whole and len(shape) <= _MAX_DIMS and math.prod(size or 1 for size in shape) <= _MAX_ELEMENTS


def _check_twice(path: str, tensors: Sequence[TensorMeta]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise DuplicateTensorError("the archive has this name twice", path=path, tensor=tensor.name)
        seen.add(tensor.name)


def _check_apart(path: str, tensors: Sequence[TensorMeta]) -> None:
    """The directory may say of two members that they are at one place."""
    for before, tensor in itertools.pairwise(tensors):
        if tensor.offset < before.offset + max(1, before.nbytes):
            what = f"the member lies within that of {before.name!r}"
            raise TensorLayoutError(what, path=path, tensor=tensor.name, fix=DOWNLOAD_AGAIN)
