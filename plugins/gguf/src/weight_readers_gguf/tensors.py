# SPDX-License-Identifier: Apache-2.0
"""What a reader delivers for each tensor of a file: its blocks as they are, numbers, or numbers made of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from weight_readers.errors import CheckpointError, UnknownDtypeError, UnsupportedDtypeError
from weight_readers.tensors import UNKNOWN, TensorMeta
from weight_readers_gguf.header import GGUFHeader, TensorInfo
from weight_readers_gguf.orig_shape import logical_shape
from weight_readers_gguf.problems import Problems
from weight_readers_gguf.types import ACTIVATIONS, REMOVED, TYPES, GGMLType

WEIGHT, QWEIGHT = ".weight", ".qweight"


class Delivery(str, Enum):
    """In which form a tensor reaches the consumer."""

    PACKED = "packed"
    """Its blocks, ``uint8 [rows, row_bytes]``."""
    PLAIN = "plain"
    """Its numbers, in the dtype of the file."""
    DEQUANTIZED = "dequantized"
    """Numbers made of its blocks when it is loaded: a module that takes packed weights could not use it."""
    REFUSED = "refused"
    """Not at all: `GGUFTensor.refusal` says why."""


@dataclass(frozen=True, kw_only=True)
class GGUFTensor:
    """One tensor of a file, and how it is delivered.

    ``name`` is that in the file, ``type`` its ggml id and ``type_name`` what ggml calls it. ``shape`` is logical and in
    torch order. ``offset`` counts from the beginning of ``file``; ``nbytes`` is 0 where the type is unknown.
    ``reason`` says why a quantized tensor is not packed, or why one is refused. ``parameter`` is the name it is
    delivered under. ``stored_shape`` and ``stored_dtype`` are those of what is delivered, before any cast.
    """

    name: str
    type: int
    type_name: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    delivery: Delivery
    reason: str | None = None
    parameter: str
    stored_shape: tuple[int, ...]
    stored_dtype: str

    @property
    def is_packed(self) -> bool:
        return self.delivery is Delivery.PACKED

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row of a packed tensor; None for others."""
        return self.stored_shape[1] if self.is_packed else None

    def meta(self, dequantize: str | None = None) -> TensorMeta:
        """The tensor as `CheckpointMeta` lists it; ``dequantize`` is the dtype asked for in place of blocks."""
        packed = self.is_packed and dequantize is None
        return TensorMeta(
            name=self.name,
            dtype=self._dtype(dequantize),
            source_dtype=self.type_name,
            shape=self.shape,
            stored_shape=self.stored_shape if packed else self.shape,
            nbytes=self.nbytes,
            file=self.file,
            offset=self.offset,
            ggml_type=self.type if packed else None,
            parameter=self.parameter if packed else None,
            converted=self._converted(dequantize),
        )

    def _dtype(self, dequantize: str | None) -> str:
        quantized = self.delivery in (Delivery.PACKED, Delivery.DEQUANTIZED)
        return dequantize if quantized and dequantize else self.stored_dtype

    def _converted(self, dequantize: str | None) -> str | None:
        if self.delivery in (Delivery.DEQUANTIZED, Delivery.REFUSED):
            return self.reason
        return f"dequantize={dequantize}" if self.is_packed and dequantize else None

    def refusal(self) -> CheckpointError | None:
        """The error to raise when a refused tensor is asked for, else None."""
        if self.delivery is not Delivery.REFUSED:
            return None
        kind = UnsupportedDtypeError if self.type in TYPES else UnknownDtypeError
        return kind(f"the tensor cannot be delivered: {self.reason}", path=self.file, tensor=self.name)


def tensors_of(header: GGUFHeader, problems: Problems) -> Iterator[GGUFTensor]:
    """The tensors of one file in the order of its header; bad ``comfy.gguf.orig_shape`` keys go to ``problems``."""
    names = {info.name for info in header.tensors}
    for info in header.tensors:
        try:
            shape = logical_shape(header, info)
        except CheckpointError as error:
            problems.add(error)
            shape = info.shape
        yield _tensor(header.path, info, shape, sidecar=_sidecar(info, names))


def _sidecar(info: TensorInfo, names: set[str]) -> str | None:
    """The factor of a whole NVFP4 tensor, which lies beside it (ggml-org/llama.cpp#19769)."""
    if info.type not in TYPES or TYPES[info.type].name != "NVFP4":
        return None
    stem = info.name.removesuffix(WEIGHT)
    candidates = (f"{base}{end}" for base in (stem, info.name) for end in (".scale", ".input_scale"))
    return next((name for name in candidates if name in names), None)


def _tensor(path: str, info: TensorInfo, shape: tuple[int, ...], *, sidecar: str | None) -> GGUFTensor:
    type_ = TYPES.get(info.type)
    refused = _why_refused(info.type, type_, sidecar)
    unpackable = None if type_ is None or not type_.is_packed else _why_unpackable(info.name, shape, type_)
    delivery = _delivery(type_, refused, unpackable)
    packed = delivery is Delivery.PACKED and type_ is not None
    return GGUFTensor(
        name=info.name,
        type=info.type,
        type_name=type_.name if type_ else REMOVED.get(info.type, f"type {info.type}"),
        shape=shape,
        file=path,
        offset=info.offset,
        nbytes=info.nbytes or 0,
        delivery=delivery,
        reason=refused or unpackable,
        parameter=info.name.removesuffix(WEIGHT) + QWEIGHT if packed else info.name,
        stored_shape=packed_shape(shape, type_) if packed and type_ else shape,
        stored_dtype=_stored_dtype(delivery, type_),
    )


def packed_shape(shape: tuple[int, ...], type_: GGMLType) -> tuple[int, int]:
    """``(rows, row_bytes)`` of a packed tensor with the logical ``shape`` (rows, elements)."""
    rows, inner = shape
    return rows, inner // type_.block * type_.nbytes


def _delivery(type_: GGMLType | None, refused: str | None, unpackable: str | None) -> Delivery:
    if type_ is None or refused:
        return Delivery.REFUSED
    if not type_.is_packed:
        return Delivery.PLAIN
    return Delivery.DEQUANTIZED if unpackable else Delivery.PACKED


def _stored_dtype(delivery: Delivery, type_: GGMLType | None) -> str:
    if type_ is None or delivery is Delivery.REFUSED:
        return UNKNOWN
    return type_.dtype or ("uint8" if delivery is Delivery.PACKED else "float32")


def _why_unpackable(name: str, shape: tuple[int, ...], type_: GGMLType) -> str | None:
    if len(shape) != 2:
        return f"{len(shape)}-D: only matrices are packed"
    if not name.endswith(WEIGHT):
        return f"not named *{WEIGHT}: only weights of layers are packed"
    if shape[1] % type_.block:
        return f"a row of {shape[1]} elements is no whole number of {type_.name} blocks of {type_.block}"
    return None


def _why_refused(type_id: int, type_: GGMLType | None, sidecar: str | None) -> str | None:
    if type_id in REMOVED:
        return f"{REMOVED[type_id]} (type {type_id}) was removed from ggml; quantize the model anew"
    if type_ is None:
        known = ", ".join(f"{each.id} {each.name}" for each in TYPES.values())
        return f"type {type_id} is unknown; known are {known}. Update weight-readers-gguf if ggml has it by now"
    if type_.name in ACTIVATIONS:
        return f"{type_.name} (type {type_id}) is a format of activations, in which no weights are stored"
    return f"its factor {sidecar!r} would not be applied to it" if sidecar else None
