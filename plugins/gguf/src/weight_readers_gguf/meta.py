# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of GGUF files holds, in core's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weight_readers import CheckpointMeta, FileMeta, TensorMeta
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.header import GGUFHeader
from weight_readers_gguf.tensors import Delivery, GGUFTensor

UNKNOWN = "unknown"
"""The dtype of a tensor that cannot be read; its name, shape and place are known."""


class GGUFMeta(CheckpointMeta):
    """A `CheckpointMeta` that also holds the tensors as GGUF describes them, in ``gguf``."""

    def __init__(
        self, tensors: Mapping[str, TensorMeta], files: Sequence[FileMeta], gguf: Mapping[str, GGUFTensor]
    ) -> None:
        super().__init__(tensors, files)
        self.gguf = gguf

    def __reduce__(self) -> tuple[Any, ...]:
        return GGUFMeta, (dict(self), self.files, dict(self.gguf))


def read_meta(paths: Sequence[str], dequantize: str | None) -> GGUFMeta:
    """Check the headers of a set of files. ``dequantize`` is the dtype asked for in place of packed weights."""
    checkpoint = read_checkpoint(paths)
    tensors = {name: tensor_meta(tensor, dequantize) for name, tensor in checkpoint.tensors.items()}
    return GGUFMeta(tensors, [_file_meta(header) for header in checkpoint.headers], checkpoint.tensors)


def tensor_meta(tensor: GGUFTensor, dequantize: str | None) -> TensorMeta:
    """The tensor as the reader yields it."""
    packed = tensor.delivery is Delivery.PACKED and dequantize is None
    return TensorMeta(
        name=tensor.name,
        dtype=_dtype(tensor, dequantize),
        source_dtype=tensor.type_name,
        shape=tensor.shape,
        stored_shape=tensor.stored_shape if packed else tensor.shape,
        nbytes=tensor.nbytes or 0,
        file=tensor.file,
        offset=tensor.offset,
        ggml_type=tensor.type if packed else None,
        parameter=tensor.parameter if packed else None,
        converted=_why(tensor, dequantize),
    )


def _dtype(tensor: GGUFTensor, dequantize: str | None) -> str:
    if tensor.delivery is Delivery.REFUSED:
        return UNKNOWN
    if tensor.delivery is Delivery.DEQUANTIZED or (tensor.delivery is Delivery.PACKED and dequantize):
        return dequantize or "float32"
    return tensor.stored_dtype


def _why(tensor: GGUFTensor, dequantize: str | None) -> str | None:
    if tensor.delivery is Delivery.DEQUANTIZED:
        return tensor.reason
    return f"dequantize={dequantize}" if tensor.delivery is Delivery.PACKED and dequantize else None


def _file_meta(header: GGUFHeader) -> FileMeta:
    return FileMeta(
        path=header.path,
        format="gguf",
        nbytes=header.nbytes,
        header_bytes=header.header_bytes,
        metadata={key: _text(value) for key, value in header.metadata.items()},
    )


def _text(value: Any) -> str:
    return str(value)
