# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of GGUF files holds, in core's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weight_readers import CheckpointMeta, FileMeta, TensorMeta
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.header import GGUFHeader
from weight_readers_gguf.tensors import GGUFTensor

MAX_TEXT = 1000
"""Characters of a value in `FileMeta.metadata`: a text may be as long as a header."""


class GGUFMeta(CheckpointMeta):
    """A `CheckpointMeta` that also holds the tensors as GGUF describes them, in ``gguf``.

    ``headers`` are kept for whoever else asks for those files, see `held_header`; pickles leave them out.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorMeta],
        files: Sequence[FileMeta],
        gguf: Mapping[str, GGUFTensor],
        headers: Sequence[GGUFHeader] = (),
    ) -> None:
        super().__init__(tensors, files)
        self.gguf = gguf
        self.headers = headers

    def __reduce__(self) -> tuple[Any, ...]:
        return GGUFMeta, (dict(self), self.files, dict(self.gguf))


def read_meta(paths: Sequence[str], dequantize: str | None) -> GGUFMeta:
    """Check the headers of a set of files. ``dequantize`` is the dtype asked for in place of packed weights."""
    checkpoint = read_checkpoint(paths)
    tensors = {name: tensor.meta(dequantize) for name, tensor in checkpoint.tensors.items()}
    files = [_file_meta(header) for header in checkpoint.headers]
    return GGUFMeta(tensors, files, checkpoint.tensors, checkpoint.headers)


def _file_meta(header: GGUFHeader) -> FileMeta:
    return FileMeta(
        path=header.path,
        format="gguf",
        nbytes=header.nbytes,
        header_bytes=header.header_bytes,
        # Of an array its type, of a long text its beginning: nobody who loads weights looks at a vocabulary.
        metadata={key: header.metadata.shown(key, MAX_TEXT) for key in header.metadata},
    )
