# SPDX-License-Identifier: Apache-2.0
"""Linear and embedding layers whose weight stays packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from weight_readers_gguf.methods import compute, low_rank
from weight_readers_gguf.methods.segments import Group, Layout, lay_out
from weight_readers_gguf.methods.workspace import Workspace
from weight_readers_gguf.model.weight import PackedWeight
from weight_readers_gguf.types import TYPES, GGMLType

_EXTRA = "_extra_state"


class PackedLayer(nn.Module):
    """What packed layers share: the parameter ``qweight`` (uint8 ``[rows, row_bytes]``) in the place of ``weight``.

    ``layout`` says the type and the logical shape, and ``compute_dtype`` is the dtype that the model declared, which
    follows ``.to(dtype)`` while the bytes stay as they are. A state dict holds ``qweight`` and, as a small tensor,
    type and logical shape (``_extra_state``); bytes of another type are refused by ``load_state_dict``.
    """

    qweight: nn.Parameter
    layout: Layout
    workspace: Workspace
    compute_dtype: torch.dtype

    @property
    def ggml_type(self) -> GGMLType:
        return self.layout.runs[0].type

    @property
    def logical_shape(self) -> torch.Size:
        return torch.Size(self.layout.shape)

    @property
    def weight(self) -> PackedWeight:
        """A stand-in for the weight; see `PackedWeight`."""
        return PackedWeight(self.qweight, self.ggml_type, self.logical_shape, self.compute_dtype)

    @weight.setter
    def weight(self, other: object) -> None:
        """Share the bytes of another packed layer, as models tie weights; anything else is a TypeError."""
        own = self.ggml_type.id, self.logical_shape
        if not isinstance(other, PackedWeight) or (other.type.id, other.shape) != own:
            raise TypeError(self._not_settable(other))
        self._parameters["qweight"] = cast(nn.Parameter, other.packed)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "weight":
            raise TypeError(self._not_settable(param))
        super().register_parameter(name, param)

    def _not_settable(self, value: object) -> str:
        given = repr(value) if isinstance(value, PackedWeight) else type(value).__name__
        return (
            f"the weight of layer {self.layout.prefix!r} is packed as {self.ggml_type.name} {list(self.logical_shape)}"
            f" and cannot be set to {given}; prepare the layer with dequantize to have plain numbers in its place"
        )

    def reset_parameters(self) -> None:
        """Refused: random numbers cannot be written to packed bytes."""
        raise TypeError(
            f"the weight of layer {self.layout.prefix!r} is packed as {self.ggml_type.name} and cannot be initialized;"
            " build the model anew, or prepare the layer with dequantize to have plain numbers in its place"
        )

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor([self.ggml_type.id, *self.logical_shape], device="cpu")

    def set_extra_state(self, state: torch.Tensor) -> None:
        pass  # compared before any byte is copied, in `_load_from_state_dict`

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if fault := self._fault(state_dict, prefix):
            error_msgs.append(fault)
            return
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def _fault(self, state_dict: Mapping[str, Any], prefix: str) -> str | None:
        """Why the state dict's bytes are not this layer's: types of one block size would pass for each other."""
        bytes_, extra = state_dict.get(f"{prefix}qweight"), state_dict.get(f"{prefix}{_EXTRA}")
        if isinstance(bytes_, torch.Tensor) and bytes_.dtype is not torch.uint8:
            return f"{prefix}qweight is {bytes_.dtype}: packed weights are uint8"
        if extra is None:
            return None
        saved = _type_and_shape(extra)
        if saved is None:
            return (
                f"{prefix}{_EXTRA} is damaged: it is {_brief(extra)}, expected a tensor of three whole numbers"
                f" (type and logical shape, here {self.get_extra_state().tolist()}). Save the state anew"
            )
        if saved == self.get_extra_state().tolist():
            return None
        type_id, *shape = saved
        found = TYPES[type_id].name if type_id in TYPES else f"type {type_id}"
        return (
            f"{prefix}qweight holds {found} {shape} in the state dict, and this layer was prepared for"
            f" {self.ggml_type.name} {list(self.logical_shape)}: prepare the model for the file that was saved"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedLayer:
        bytes_, numbers = (fn(torch.empty(0, dtype=dtype, device="cpu")) for dtype in (torch.uint8, self.compute_dtype))
        if bytes_.dtype is not torch.uint8:
            raise TypeError(
                f"a packed weight ({self.ggml_type.name}) is bytes and cannot be converted to {bytes_.dtype};"
                " use .to(dtype), which converts floating-point parameters only"
            )
        if numbers.dtype not in compute.ACTIVATIONS:
            raise TypeError(
                f"layer {self.layout.prefix!r} has a packed weight ({self.ggml_type.name}) and computes in float32,"
                f" float16 or bfloat16, not in {numbers.dtype}; prepare it with dequantize to have plain numbers"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.compute_dtype = numbers.dtype
        return self

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, type={self.ggml_type.name}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = super().__reduce_ex__(protocol)
        base = type(self).__dict__.get("_packed_from")
        # Classes made at run time do not pickle by name.
        return plain if base is None else (_rebuild, (base,), plain[2])


class PackedLinear(PackedLayer, nn.Linear):  # type: ignore[misc]
    """A linear layer that dequantizes its weight to the dtype of ``x`` for each call.

    ``forward``: ``x`` ``[..., in_features]`` -> ``[..., out_features]`` in the dtype of ``x`` (of autocast where it
    is on). The bias takes part in that dtype too.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in nn.Linear
        out = compute.linear(input, self.qweight, self.layout, self.bias, self.workspace)
        return low_rank.added(self, input, out)

    def attach_low_rank(self, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> None:
        """Add ``scale * x @ a.T @ b.T`` (a LoRA) to the output; ``a [rank, in_features]``, ``b [out_features, rank]``.

        The packed bytes stay as they are. Raises TargetMismatchError for other shapes, ValueError where there is one.
        """
        low_rank.attach(self, self.layout, a, b, scale)

    def detach_low_rank(self) -> bool:
        """Take the addition away again; False where there was none."""
        return low_rank.detach(self)


class PackedEmbedding(PackedLayer, nn.Embedding):  # type: ignore[misc]
    """An embedding that gathers packed rows and dequantizes only those, to ``compute_dtype``.

    ``forward``: ``input`` integers ``[...]`` -> ``[..., embedding_dim]``.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in nn.Embedding
        return compute.embedding(input, self.qweight, self.layout, self.compute_dtype)


_MADE: dict[type[nn.Module], type[PackedLayer]] = {nn.Linear: PackedLinear, nn.Embedding: PackedEmbedding}


def packed_class(base: type[nn.Module]) -> type[PackedLayer]:
    """The packed class of a linear or embedding class, the same one each time.

    A subclass of nn.Linear or nn.Embedding keeps its own ``forward``: where that calls ``super().forward`` it
    reaches the packed layer's, where it takes ``self.weight`` it gets a `PackedWeight`. Raises TypeError for any
    other class.
    """
    if base not in _MADE:
        kind = next((kind for kind in (nn.Linear, nn.Embedding) if issubclass(base, kind)), None)
        if kind is None:
            raise TypeError(f"{base.__qualname__} is neither nn.Linear nor nn.Embedding")
        own = {"_packed_from": base, "__module__": base.__module__, "__doc__": base.__doc__}
        _MADE[base] = type(f"Packed{base.__name__}", (base, _MADE[kind]), own)
    return _MADE[base]


def pack(layer: nn.Module, name: str, qweight: nn.Parameter, ggml_type: GGMLType, workspace: Workspace) -> None:
    """Turn the layer into its packed form in place, ``qweight`` in the place of its parameter ``weight``."""
    weight = layer._parameters["weight"]
    assert weight is not None  # noqa: S101 - the plan is of parameters that exist
    rows, columns = weight.shape
    group = Group(f"{name}.weight", ggml_type, rows, rows)
    layout = lay_out(name, [group], columns=columns, whole_columns=columns, world=1)
    layer.__class__ = packed_class(type(layer))
    del layer._parameters["weight"]
    layer._parameters["qweight"] = qweight
    qweight.ggml_type = ggml_type.id  # type: ignore[attr-defined] # what loads into it compares that
    layer.__dict__.update(layout=layout, workspace=workspace, compute_dtype=weight.dtype)


def _type_and_shape(extra: Any) -> list[int] | None:
    """What ``get_extra_state`` gave, as numbers; None for anything else, since files can be damaged."""
    try:
        numbers = torch.as_tensor(extra, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None
    if numbers.dtype is not torch.int64 or numbers.shape != (3,):
        return None
    found: list[int] = numbers.tolist()
    return found


def _brief(extra: Any) -> str:
    if isinstance(extra, torch.Tensor):
        return f"a tensor of {extra.dtype} {list(extra.shape)}"
    return f"{type(extra).__name__} {extra!r:.40}"


def _rebuild(base: type[nn.Module]) -> PackedLayer:
    made = packed_class(base)
    return made.__new__(made)
