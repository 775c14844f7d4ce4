# SPDX-License-Identifier: Apache-2.0
"""From names in the file to names in the model, and from a layer to its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from weight_readers import DuplicateTensorError
from weight_readers_gguf.methods.fit import Source
from weight_readers_gguf.tensors import QWEIGHT, WEIGHT

if TYPE_CHECKING:
    from weight_readers_gguf.tensors import GGUFTensor

Rename = Callable[[str], "str | None"] | Mapping[str, "str | None"]
"""A function from a name in the file to one in the model (None: not of this model), or a table of names and
leading parts of names (``{"blk": "model.layers", "output.weight": "lm_head.weight"}``; the longest counts)."""

FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Layers that engines build in the place of several; their models declare their own (``packed_modules_mapping``)."""


def renamed(tensors: Iterable[GGUFTensor], rename: Rename | None) -> dict[str, GGUFTensor]:
    """The tensors by their names in the model. Raises `DuplicateTensorError` for two that share a name there.

    ``x.weight``, packed, becomes the parameter ``x.qweight``, and must not meet a tensor of that name.
    """
    to_model = _function(rename)
    found: dict[str, GGUFTensor] = {}
    taken: dict[str, GGUFTensor] = {}
    for tensor in tensors:
        name = to_model(tensor.name)
        if name is None:
            continue
        parameter = parameter_name(name, tensor)
        other = taken.setdefault(parameter, tensor)
        if other is not tensor or name in found:
            raise _collision(parameter, other, tensor)
        found[name] = tensor
    return found


def parameter_name(name: str, tensor: GGUFTensor) -> str:
    """The parameter that takes the tensor: its own name, ``.qweight`` in the place of ``.weight`` if packed."""
    return name.removesuffix(WEIGHT) + QWEIGHT if tensor.is_packed else name


def sources_of(
    prefix: str, tensors: Mapping[str, GGUFTensor], fused: Mapping[str, Sequence[str]], tied: Mapping[str, str]
) -> tuple[list[Source], list[str]]:
    """The layer's tensors in its order, and the names it was looked for under and that are missing.

    A fused layer is one tensor where the file has it so, its shards otherwise.
    """
    prefix = tied.get(prefix, prefix)
    whole = prefix + WEIGHT
    if whole in tensors:
        return [Source(whole, tensors[whole])], []
    parent, dot, last = prefix.rpartition(".")
    names = [f"{parent}{dot}{shard}{WEIGHT}" for shard in fused.get(last, ())] or [whole]
    found = [Source(name, tensors[name]) for name in names if name in tensors]
    return found, [name for name in names if name not in tensors]


def check_rename(rename: object) -> None:
    """Raise TypeError for what is neither a function of names nor a table of them."""
    if rename is None or callable(rename):
        return
    if not isinstance(rename, Mapping):
        raise TypeError(f"rename must be a function of a name, or a table of names, not {rename!r}")
    for old, new in rename.items():
        if not isinstance(old, str) or not isinstance(new, str | None):
            raise TypeError(f"rename must have a name, or None, for each name, and has {new!r} for {old!r}")


def _function(rename: Rename | None) -> Callable[[str], str | None]:
    check_rename(rename)
    if rename is None:
        return lambda name: name
    if callable(rename):
        return rename
    return partial(by_table, rename)


def by_table(table: Mapping[str, str | None], name: str) -> str | None:
    """The name by the table's longest entry that is the name, or a leading part of it; the name itself by none."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (head := ".".join(parts[:end])) in table:
            mapped = table[head]
            return None if mapped is None else ".".join([mapped, *parts[end:]])
    return name


def _collision(name: str, one: GGUFTensor, other: GGUFTensor) -> DuplicateTensorError:
    return DuplicateTensorError(
        f"tensors {one.name!r} and {other.name!r} of the file are both {name!r} in the model",
        path=other.file,
        tensor=other.name,
        fix="Mend the rename, or leave one of them out",
    )
