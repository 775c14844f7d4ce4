# SPDX-License-Identifier: Apache-2.0
"""What ``layer.weight`` is once the weight is packed: a stand-in that knows its shape, and dequantizes when used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from weight_readers_gguf.dequant import dequantize
from weight_readers_gguf.types import GGMLType


def _through(name: str) -> Callable[..., Any]:
    """The operator of that name, on the dequantized weight."""

    def operate(self: PackedWeight, *others: Any) -> Any:
        return getattr(self.dequantize(), name)(*others)

    return operate


def _refusing(name: str) -> Callable[..., Any]:
    """The operator of that name, which would write."""

    def operate(self: PackedWeight, *others: Any) -> Any:
        raise TypeError(_refusal(name))

    return operate


class PackedWeight:
    """The weight of a packed layer for code that looks at ``layer.weight``, as models and adapters do.

    ``shape`` (logical), ``dtype`` (declared by the model) and ``device`` cost nothing. Whatever computes with it
    (a torch function, an index, a method of tensors) gets the weight dequantized to ``dtype``, anew each time:
    right, and slow next to the layer's own ``forward``. What would write to it raises TypeError, since the write
    would be lost.
    """

    __slots__ = ("dtype", "packed", "shape", "type")

    def __init__(self, packed: torch.Tensor, ggml_type: GGMLType, shape: torch.Size, dtype: torch.dtype) -> None:
        self.packed = packed
        self.type = ggml_type
        self.shape = shape
        self.dtype = dtype

    @property
    def device(self) -> torch.device:
        return self.packed.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        return False

    @property
    def is_meta(self) -> bool:
        return self.packed.is_meta

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.shape.numel()

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weight as plain numbers in ``dtype`` (the declared one where None), in memory of its own."""
        return dequantize(self.packed.detach(), self.type.name, dtype=dtype or self.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if any(isinstance(leaf, cls) for leaf in tree_leaves(_written(name, args, kwargs))):
            raise TypeError(_refusal(name))
        args, kwargs = tree_map(lambda a: a.dequantize() if isinstance(a, cls) else a, (args, kwargs))
        return func(*args, **kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("numbers of a packed weight are made anew: there is none that need not be copied")
        return self.dequantize().numpy().__array__(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.dequantize())

    def __getattr__(self, name: str) -> Any:
        if _writes(name) or name in ("data", "grad"):
            raise TypeError(_refusal(name))
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"a packed weight has no attribute {name!r}")
        return getattr(self.dequantize(), name)

    def __repr__(self) -> str:
        return f"PackedWeight({self.type.name}, shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"


# Python looks for operators on the class, past `__getattr__`, and without one compares or converts the object itself. A
# tensor as the left operand finds `__torch_function__`.
for _name in (
    *("__getitem__", "__neg__", "__abs__", "__contains__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__"),
    *("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rpow__", "__rmatmul__"),
):
    setattr(PackedWeight, _name, _through(_name))
for _name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"):
    setattr(PackedWeight, _name, _refusing(_name))


def _writes(name: str) -> bool:
    """Whether the function of that name changes the tensor it is called on, as torch names such functions."""
    return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__")


def _written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that the function of that name writes to: ``out``, and where it works in place the first one.

    The functions of ``torch.nn.init`` hand all of theirs over by name.
    """
    in_place = _writes(name) or kwargs.get("inplace") is True
    first = [*args, *kwargs.values()][:1] if in_place else []
    return [kwargs.get("out"), *first]


def _refusal(name: str) -> str:
    return (
        f"{name} would write to a packed weight, which holds quantized blocks."
        " Prepare the layer with dequantize to have plain numbers in its place"
    )
