# SPDX-License-Identifier: Apache-2.0
"""Compare a checkpoint with what it is loaded into, both ways, before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weight_readers import TargetMismatchError, TensorMeta
from weight_readers_loader.targets import Target


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
    strict: bool,
    cast: bool,
) -> Plan:
    """The plan of a load.

    Raises TargetMismatchError for shapes that differ, for dtypes that differ unless ``cast``, and for missing or
    unexpected names if ``strict``. A name is not missing while a name tied to it is in the checkpoint.
    """
    used = {name: source for name, source in aliases.items() if name in targets and name not in tensors}
    sources = {name: used.get(name, name) for name in targets if used.get(name, name) in tensors}
    satisfied = {name for group in tied for name in group if any(other in sources for other in group)}
    missing = tuple(name for name in targets if name not in sources and name not in satisfied)
    unexpected = tuple(name for name in tensors if name not in sources.values())
    shapes, dtypes = _differences(tensors, targets, sources)
    _refuse(missing if strict else (), unexpected if strict else (), shapes, () if cast else dtypes)
    return Plan(
        assignments=_by_source(sources),
        missing=missing,
        unexpected=unexpected,
        aliases={name: source for name, source in used.items() if name in sources},
        cast=_counts(dtypes),
    )


_Difference = tuple[str, str, str]


def _differences(
    tensors: Mapping[str, TensorMeta], targets: Mapping[str, Target], sources: Mapping[str, str]
) -> tuple[tuple[_Difference, ...], tuple[_Difference, ...]]:
    shapes: list[_Difference] = []
    dtypes: list[_Difference] = []
    for name, source in sources.items():
        meta, tensor = tensors[source], targets[name].tensor
        if meta.stored_shape != tuple(tensor.shape):
            shapes.append((name, str(list(meta.stored_shape)), str(list(tensor.shape))))
        elif meta.dtype != (wanted := str(tensor.dtype).removeprefix("torch.")):
            dtypes.append((name, meta.dtype, wanted))
    return tuple(shapes), tuple(dtypes)


def _refuse(
    missing: tuple[str, ...],
    unexpected: tuple[str, ...],
    shapes: tuple[_Difference, ...],
    dtypes: tuple[_Difference, ...],
) -> None:
    said = [
        _said("missing from the checkpoint", missing),
        _said("unexpected in the checkpoint", unexpected),
        _said("of another shape", [f"{n} (checkpoint {found}, target {wanted})" for n, found, wanted in shapes]),
        _said("of another dtype", [f"{n} (checkpoint {found}, target {wanted})" for n, found, wanted in dtypes]),
    ]
    if not any(said):
        return
    hints = ["strict=False lets names differ"] if missing or unexpected else []
    hints += ["cast=True converts dtypes"] if dtypes else []
    raise TargetMismatchError(
        "the checkpoint does not fit the target: " + "; ".join(filter(None, said)),
        fix=f"Nothing was written; {' and '.join(hints)}" if hints else "Nothing was written",
        missing=missing,
        unexpected=unexpected,
        shapes=shapes,
        dtypes=dtypes,
    )


def _said(what: str, names: Sequence[str], limit: int = 10) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} {what}: {', '.join(names[:limit])}{rest}"


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
