# SPDX-License-Identifier: Apache-2.0
"""What is refused before any byte is written into the caller's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from weight_readers import CheckpointMeta, TargetMismatchError
from weight_readers_safetensors import FilePlan


def targets_known(targets: Mapping[str, torch.Tensor], meta: CheckpointMeta) -> None:
    """Raise TypeError for what is no tensor with memory, TargetMismatchError for names that are not in the files."""
    for name, target in targets.items():
        if not isinstance(target, torch.Tensor):
            raise TypeError(f"target {name!r} is {type(target).__name__}, not a tensor")
        if target.is_meta:
            raise TypeError(f"target {name!r} is a meta tensor: there is no memory to read into")
    if absent := [name for name in targets if name not in meta]:
        raise TargetMismatchError(
            f"{len(absent)} targets are not in the files: {_some(absent)}", fix="Nothing was written", unexpected=absent
        )


def targets_fit(targets: Mapping[str, torch.Tensor], plans: Sequence[FilePlan]) -> None:
    """Raise TargetMismatchError naming every target whose dtype or shape is not that of what would be read."""
    wanted = [each for plan in plans for each in plan.wanted]
    shapes = [
        (w.name, str(list(w.shape)), str(list(targets[w.name].shape)))
        for w in wanted
        if tuple(targets[w.name].shape) != tuple(w.shape)
    ]
    dtypes = [
        (w.name, _name(w.dtype), _name(targets[w.name].dtype)) for w in wanted if targets[w.name].dtype != w.dtype
    ]
    if shapes or dtypes:
        different = [f"{name} (file {found}, target {wanted})" for name, found, wanted in [*shapes, *dtypes]]
        raise TargetMismatchError(
            f"{len(different)} targets do not fit what would be read into them: {_some(different)}",
            fix="Nothing was written; give targets of the file's dtype and of the shape of the slice",
            shapes=shapes,
            dtypes=dtypes,
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(names: Sequence[str], limit: int = 10) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
