# SPDX-License-Identifier: Apache-2.0
"""Compare a checkpoint with what it is loaded into, both ways, before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weight_readers import TargetMismatchError, TensorMeta
from weight_readers_loader.adapters.made import is_packed
from weight_readers_loader.targets import Target
from weight_readers_loader.wording import NUMBERS, some

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What goes where: checkpoint name -> target names, and what is left over on each side."""

    assignments: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    aliases: Mapping[str, str]
    cast: Mapping[str, int]


def audit(
    tensors: Mapping[str, TensorMeta],
    targets: Mapping[str, Target],
    *,
    tied: Sequence[tuple[str, ...]],
    aliases: Mapping[str, str],
    resolve_aliases: bool,
    strict: bool,
    cast: bool,
) -> Plan:
    """The plan of a load.

    Raises TargetMismatchError for shapes that differ, for dtypes that differ unless ``cast`` (packed weights: in
    any case), and for missing or unexpected names if ``strict``. A name is not missing while a name tied to it is
    in the checkpoint.
    """
    offered = {name: source for name, source in aliases.items() if name in targets and name not in tensors}
    used = offered if resolve_aliases else {}
    sources = _sources(tensors, targets, used)
    satisfied = {name for group in tied for name in group if any(other in sources for other in group)}
    missing = tuple(name for name in targets if name not in sources and name not in satisfied)
    taken = set(sources.values())
    unexpected = tuple(name for name in tensors if name not in taken)
    shapes, dtypes = _differences(tensors, targets, sources)
    packed = tuple(difference for difference in dtypes if is_packed(tensors[sources[difference[0]]]))
    said = _Differences(
        missing=missing if strict else (),
        unexpected=unexpected if strict else (),
        shapes=shapes,
        dtypes=packed if cast else dtypes,
        packed=any(tensors[sources[name]].ggml_type is not None for name, _, _ in (*shapes, *dtypes)),
    )
    said.refuse(castable=len(dtypes) > len(packed), aliases=[name for name in missing if name in offered])
    return Plan(
        assignments=_by_source(sources),
        missing=missing,
        unexpected=unexpected,
        aliases={name: source for name, source in used.items() if name in sources},
        cast=_counts(dtypes),
    )


def _sources(
    tensors: Mapping[str, TensorMeta], targets: Mapping[str, Target], used: Mapping[str, str]
) -> dict[str, str]:
    """Target -> the tensor for it. A packed tensor is for the parameter of another name that holds packed bytes.

    Where there is none, it stands against the parameter of its own name, so that the difference is said.
    """
    packed = {meta.parameter: name for name, meta in tensors.items() if meta.parameter in targets}
    taken = set(packed.values())
    found = {name: packed.get(name, used.get(name, name)) for name in targets}
    return {
        name: source for name, source in found.items() if source in tensors and (name in packed or source not in taken)
    }


_Difference = tuple[str, str, str]


def _differences(
    tensors: Mapping[str, TensorMeta], targets: Mapping[str, Target], sources: Mapping[str, str]
) -> tuple[tuple[_Difference, ...], tuple[_Difference, ...]]:
    shapes: list[_Difference] = []
    dtypes: list[_Difference] = []
    for name, source in sources.items():
        meta, tensor = tensors[source], targets[name].tensor
        if meta.stored_shape != targets[name].shape:
            shapes.append((name, _held(meta), str(list(targets[name].shape))))
        elif meta.dtype != (wanted := str(tensor.dtype).removeprefix("torch.")):
            dtypes.append((name, meta.dtype, wanted))
        elif other := _other_blocks(meta, tensor):
            dtypes.append((name, f"{meta.source_dtype}, ggml type {meta.ggml_type}", other))
    return tuple(shapes), tuple(dtypes)


def _other_blocks(meta: TensorMeta, target: torch.Tensor) -> str | None:
    """What the target's packed bytes are where those of the checkpoint are others: blocks of two types can have one
    size. A parameter says so in its attribute ``ggml_type``; one that says nothing takes any.
    """
    wanted = getattr(target, "ggml_type", None)
    if meta.ggml_type is None or wanted is None or wanted == meta.ggml_type:
        return None
    return f"ggml type {wanted}"


def _held(meta: TensorMeta) -> str:
    packed = f"{list(meta.shape)} packed as {meta.source_dtype}, "
    return f"{packed if meta.ggml_type is not None else ''}{list(meta.stored_shape)}"


_PACKED = (
    f"{NUMBERS} for packed weights, and a module that was prepared for them"
    " (weight_readers_gguf.prepare_module) takes them as they are"
)


@dataclass(frozen=True, kw_only=True)
class _Differences:
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    shapes: tuple[_Difference, ...]
    dtypes: tuple[_Difference, ...]
    packed: bool

    def refuse(self, *, castable: bool, aliases: Sequence[str]) -> None:
        if not (self.missing or self.unexpected or self.shapes or self.dtypes):
            return
        said = (
            _said("missing from the checkpoint", self.missing),
            _said("unexpected in the checkpoint", self.unexpected),
            _said("of another shape", _compared(self.shapes)),
            _said("of another dtype", _compared(self.dtypes)),
        )
        hints = [f"resolve_aliases=True (--aliases) finds {some(aliases, 3)} under another name"] if aliases else []
        hints += ["strict=False (--partial) lets names differ"] if self.missing or self.unexpected else []
        hints += ["cast=True (--cast) converts dtypes"] if self.dtypes and castable else []
        hints += [_PACKED] if self.packed else []
        raise TargetMismatchError(
            "the checkpoint does not fit the target: " + "; ".join(filter(None, said)),
            fix=f"Nothing was written; {'; '.join(hints)}" if hints else "Nothing was written",
            missing=self.missing,
            unexpected=self.unexpected,
            shapes=self.shapes,
            dtypes=self.dtypes,
        )


def _compared(differences: Sequence[_Difference]) -> list[str]:
    return [f"{name} (checkpoint {found}, target {wanted})" for name, found, wanted in differences]


def _said(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}: {some(names)}" if names else ""


def _by_source(sources: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    grouped: dict[str, list[str]] = {}
    for name, source in sources.items():
        grouped.setdefault(source, []).append(name)
    return {source: tuple(names) for source, names in grouped.items()}


def _counts(dtypes: Sequence[_Difference]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, found, wanted in dtypes:
        counts[f"{found} -> {wanted}"] = counts.get(f"{found} -> {wanted}", 0) + 1
    return counts
