# SPDX-License-Identifier: Apache-2.0
"""One file of torch.save, checked: its tensors, where their bytes lie, and what a person should know of it."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from weight_readers.errors import CheckpointError, ShapeError, TensorLayoutError, UnsupportedDtypeError
from weight_readers.reader import FileMeta
from weight_readers.tensors import TensorMeta
from weight_readers_files import Range, open_regular
from weight_readers_files.content import HEAD_BYTES, foreign_content, looks_like_safetensors
from weight_readers_pt.archive import read_archive
from weight_readers_pt.contents import Contents
from weight_readers_pt.legacy import read_legacy
from weight_readers_pt.records import Dense, Other
from weight_readers_pt.remarks import remarks
from weight_readers_pt.weights import Weights, find_weights

FORMAT = "pt"
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Header:
    """``dense`` are the tensors as the file describes them; ``data_bytes`` is what their storages take in it."""

    path: str
    nbytes: int = 0
    data_bytes: int = 0
    container: str = "nothing"
    dense: Mapping[str, Dense] = field(default_factory=dict)
    tensors: Mapping[str, TensorMeta] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def file_meta(self) -> FileMeta:
        return FileMeta(
            path=self.path,
            format=FORMAT,
            nbytes=self.nbytes,
            header_bytes=self.nbytes - self.data_bytes,
            metadata={"container": self.container},
            notices=self.notices,
        )


def scan_header(path: str) -> tuple[Header, tuple[CheckpointError, ...]]:
    """What the file holds as far as it can be told, and all that is wrong with it; raises no `CheckpointError`."""
    try:
        with open_regular(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), HEAD_BYTES, 0)
            contents = _reader_of(path, head)(file, path)
        weights = find_weights(contents.root, path)
    except CheckpointError as error:
        return Header(path=path), (error,)
    return _header(path, nbytes, contents, weights)


def _reader_of(path: str, head: bytes) -> Callable[[io.FileIO, str], Contents]:
    if head.startswith(b"PK\x03\x04"):
        return read_archive
    if head[:1] == b"\x80" and not looks_like_safetensors(head):
        return read_legacy
    raise foreign_content(path, head, expected="a zip archive or a pickle of torch.save", what="torch checkpoint")


def _header(path: str, nbytes: int, contents: Contents, weights: Weights) -> tuple[Header, tuple[CheckpointError, ...]]:
    problems = tuple(_problems(path, weights))
    wrong = {problem.tensor for problem in problems}
    dense = {name: t for name, t in weights.tensors.items() if isinstance(t, Dense) and name not in wrong}
    header = Header(
        path=path,
        nbytes=nbytes,
        data_bytes=sum(length for _, length in contents.places.values()),
        container=contents.container,
        dense=dense,
        tensors={name: _meta(name, tensor, path, contents.places) for name, tensor in dense.items()},
        notices=remarks(os.path.basename(path), contents, weights, dense),
    )
    return header, problems


def _meta(name: str, tensor: Dense, path: str, places: Mapping[str, Range]) -> TensorMeta:
    return TensorMeta(
        name=name,
        dtype=tensor.dtype,
        source_dtype=tensor.dtype,
        shape=tensor.shape,
        stored_shape=tensor.shape,
        nbytes=tensor.span,
        file=path,
        offset=places[tensor.storage.key][0] + tensor.begin,
    )


def _problems(path: str, weights: Weights) -> Iterator[CheckpointError]:
    for name, tensor in weights.tensors.items():
        if isinstance(tensor, Other):
            yield UnsupportedDtypeError(
                f"{tensor.what}, which no reader yields",
                path=path,
                tensor=name,
                expected="a dense tensor",
                fix="Convert it (.to_dense(), .dequantize(), .resolve_conj()) and save again",
            )
        elif math.prod(tensor.shape) * tensor.itemsize > _MOST_BYTES:
            yield ShapeError("a shape that no tensor can have", path=path, tensor=name, found=list(tensor.shape))
        elif tensor.span and tensor.begin - tensor.storage.skip + tensor.span > tensor.storage.nbytes:
            yield TensorLayoutError(
                "the tensor reaches past the end of its storage",
                path=path,
                tensor=name,
                expected=f"at most {tensor.storage.nbytes} bytes",
                found=f"bytes up to {tensor.begin - tensor.storage.skip + tensor.span}",
            )
