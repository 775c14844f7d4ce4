# SPDX-License-Identifier: Apache-2.0
"""Which of the objects in a file are the weights.

A file holds a state dict, or a dict of a training run with the state dict under one of a few usual names. Those are
looked for in the order of `WRAPPERS`, level by level, before tensors beside them: a step counter that is a tensor does
not make its dict a state dict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from weight_readers.errors import CheckpointError, EmptyWeightsError, ForeignContentError
from weight_readers_pt.records import Dense, Other

WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "params_ema",
    "params",
    "weights",
)
"""Keys under which training code saves a state dict, in the order in which they are looked for."""

_MOST_LEVELS = 4
_SHOWN = 8
_PLAIN = "Save the state dict by itself: torch.save(model.state_dict(), FILE)"

Tensor = Dense | Other


class Weights(NamedTuple):
    """``tensors`` by name, ``under`` the way to them from the top, and ``others`` the keys that are not followed."""

    tensors: Mapping[str, Tensor]
    under: tuple[str, ...]
    others: tuple[str, ...]


def find_weights(root: Any, path: str) -> Weights:
    """The weights in the pickled object. Raises ForeignContentError for an object that has none."""
    under = _way(root)
    if under is None:
        raise _none(root, path)
    found, others = root, list[str]()
    for key in under:
        others += (_short(other) for other in found if other != key)
        found = found[key]
    tensors = _tensors(found)
    others += (_short(other) for other in found if other not in tensors)
    return Weights(tensors, under, tuple(others))


def _way(found: Any, levels: int = _MOST_LEVELS) -> tuple[str, ...] | None:
    """The keys that lead to the first state dict, usual names before what lies beside them."""
    if not isinstance(found, dict) or _is_optimizer(found):
        return None
    for key in WRAPPERS if levels else ():
        if (way := _way(found.get(key), levels - 1)) is not None:
            return (key, *way)
    return () if _tensors(found) else None


def _tensors(found: Any) -> dict[str, Tensor]:
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, Tensor)}


def _is_optimizer(found: Any) -> bool:
    return isinstance(found, dict) and {"state", "param_groups"} <= found.keys()


def _none(root: Any, path: str) -> CheckpointError:
    if _is_optimizer(root):
        return ForeignContentError(
            "the state of an optimizer, not weights",
            path=path,
            expected="a state dict",
            found="a dict with the keys state and param_groups",
            fix="Give the file of the model that was saved beside it",
        )
    if isinstance(root, dict) and not root:
        return EmptyWeightsError("an empty dict was saved: there is no tensor in it", path=path, fix=_PLAIN)
    return ForeignContentError(
        "no state dict is in the file",
        path=path,
        expected=f"a dict of names to tensors, at the top or under {', '.join(WRAPPERS)}",
        found=_described(root),
        fix=_PLAIN,
    )


def _described(root: Any) -> str:
    if isinstance(root, (Dense, Other)):
        return "one tensor without a name"
    if not isinstance(root, dict):
        return f"an object of another kind ({type(root).__name__})"
    with_tensors = [key for key, value in root.items() if _tensors(value)]
    hint = f", with tensors under {_some(with_tensors)}" if with_tensors else ""
    return f"a dict with the keys {_some(root)}{hint}"


def _some(keys: Iterable[Any]) -> str:
    listed = [_short(key) for key in keys]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _short(key: Any) -> str:
    text = key if isinstance(key, str) else ascii(key) if isinstance(key, int) else type(key).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."
