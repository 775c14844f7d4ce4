# SPDX-License-Identifier: Apache-2.0
"""What stands in for the few names that a file of plain tensors imports. None of them is the thing itself.

The names are those that ``torch.load(weights_only=True)`` allows (torch/_weights_only_unpickler.py); a file may ask for
any other and gets nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weight_readers_pt.records import ITEMSIZE, MAX_DIMENSIONS, Dense, Dtype, Other, Storage, StorageType


class Call(NamedTuple):
    """Something that the file may call. It builds a record, and is itself as immutable as one."""

    build: Callable[..., Any]


class Opaque:
    """A value that is no part of any tensor: what goes into it is gone."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...

    def add(self, value: object) -> None: ...


def _opaque(*arguments: object) -> Opaque:
    return Opaque()


IGNORED = Call(_opaque)
"""Stands for every name whose value does not matter."""


def _whole(*numbers: object) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)


def _sizes(sizes: object) -> tuple[int, ...]:
    if not isinstance(sizes, (tuple, list)) or len(sizes) > MAX_DIMENSIONS or not _whole(*sizes):
        raise pickle.UnpicklingError("the sizes of a tensor are no whole numbers")
    return tuple(sizes)


def _dense(storage: object, dtype: str, offset: object, shape: object, strides: object) -> Dense:
    if not isinstance(storage, Storage) or not _whole(offset):
        raise pickle.UnpicklingError("a tensor is built of something that is no storage")
    sizes, steps = _sizes(shape), _sizes(strides)
    if len(sizes) != len(steps):
        raise pickle.UnpicklingError("a tensor has more or fewer strides than dimensions")
    assert isinstance(offset, int)  # noqa: S101 - for mypy: said above
    return Dense(storage, dtype, offset, sizes, steps)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Dense | Other:
    """``_rebuild_tensor`` and ``_rebuild_tensor_v2``: the last of three more arguments are its conj and neg bits."""
    metadata = rest[2] if len(rest) > 2 else None
    dense = _dense(storage, getattr(storage, "dtype", ""), offset, shape, strides)
    return Other("a lazily conjugated or negated tensor") if metadata else dense


def _tensor_of_dtype(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> Dense | Other:
    if not isinstance(dtype, Dtype):
        raise pickle.UnpicklingError("the dtype of a tensor is none")
    dense = _dense(storage, dtype.name, offset, shape, strides)
    return Other("a lazily conjugated or negated tensor") if metadata else dense


def _parameter(data: Any, *rest: Any) -> Any:
    return data


def _with_attributes(build: Any, kind: Any, arguments: Any, state: Any = None) -> Any:
    """A tensor to which attributes were attached; those are dropped."""
    if not isinstance(build, Call) or not isinstance(arguments, tuple):
        raise pickle.UnpicklingError("a tensor with attributes is built of no tensor")
    return build.build(*arguments) if kind is PLAIN_TENSOR else Other("a tensor of a class of its own")


def _other(what: str) -> Call:
    return Call(lambda *arguments: Other(what))


PLAIN_TENSOR = Call(_parameter)

_DTYPES = {f"torch.{name}": Dtype(name) for name in ITEMSIZE}
_STORAGES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}

STAND_INS: Mapping[str, Any] = {
    **_DTYPES,
    **{f"torch.{name}Storage": StorageType(dtype) for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": StorageType("uint8"),
    "torch.UntypedStorage": StorageType("uint8"),
    "torch._utils._rebuild_tensor": Call(_tensor),
    "torch._utils._rebuild_tensor_v2": Call(_tensor),
    "torch._utils._rebuild_tensor_v3": Call(_tensor_of_dtype),
    "torch._utils._rebuild_parameter": Call(_parameter),
    "torch._utils._rebuild_parameter_with_state": Call(_parameter),
    "torch._tensor._rebuild_from_type_v2": Call(_with_attributes),
    "torch.Tensor": PLAIN_TENSOR,
    "torch._tensor.Tensor": PLAIN_TENSOR,
    "torch.nn.parameter.Parameter": PLAIN_TENSOR,
    "torch.nn.parameter.Buffer": PLAIN_TENSOR,
    "torch.Size": Call(_sizes),
    "torch._utils._rebuild_sparse_tensor": _other("a sparse tensor"),
    "torch._utils._rebuild_sparse_csr_tensor": _other("a sparse tensor"),
    "torch._utils._rebuild_qtensor": _other("a quantized tensor of torch"),
    "torch._utils._rebuild_nested_tensor": _other("a nested tensor"),
    "torch._utils._rebuild_meta_tensor_no_storage": _other("a tensor of the meta device, without its data"),
    "torch._utils._rebuild_wrapper_subclass": _other("a tensor of a class of its own"),
    "torch._utils._rebuild_device_tensor_from_numpy": _other("a tensor that was saved as numpy data"),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _other("a tensor of a device that torch saves apart"),
    **dict.fromkeys(
        (
            "_codecs.encode",
            "builtins.bytearray",
            "builtins.complex",
            "builtins.set",
            "__builtin__.bytearray",
            "__builtin__.complex",
            "__builtin__.set",
            "collections.Counter",
            "torch.device",
            "torch.serialization._get_layout",
            "torch.per_tensor_affine",
            "torch.per_channel_affine",
        ),
        IGNORED,
    ),
    **dict.fromkeys(
        ("torch.QInt8Storage", "torch.QUInt8Storage"),
        # Storages as any other; what is built of them is refused by its name.
        StorageType("uint8"),
    ),
    "torch.QInt32Storage": StorageType("int32"),
}
"""``module.name`` -> what the file gets."""
