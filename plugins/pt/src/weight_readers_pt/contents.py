# SPDX-License-Identifier: Apache-2.0
"""What was found in a file before anybody asks which of it are the weights, and the imports that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from weight_readers.errors import UnsafePickleError
from weight_readers_files import Range
from weight_readers_pt.records import Storage

_SHOWN = 8


class Contents(NamedTuple):
    """``root`` is the pickled object; ``places`` says where each storage of it lies, ``storages`` how long it is.

    ``container`` is the kind of file, in words.
    """

    root: Any
    places: Mapping[str, Range]
    storages: Mapping[str, Storage]
    container: str


def refuse_imports(names: Iterable[str], path: str) -> None:
    """Raise UnsafePickleError for the names that a file asks Python to import and that are none of a plain tensor."""
    asked = list(names)
    if not asked:
        return
    more = f" and {len(asked) - _SHOWN} more" if len(asked) > _SHOWN else ""
    what = "the arguments of a training run, not weights: the file" if _is_training(asked) else "the file"
    shown = ", ".join(map(_shown, asked[:_SHOWN]))
    raise UnsafePickleError(
        f"{what} asks Python to import {shown}{more}; nothing was imported and no code was run",
        path=path,
        expected="tensors in dicts and lists",
        found=f"{len(asked)} import{'s' if len(asked) > 1 else ''} beyond those of tensors",
        fix="Get the weights as safetensors, or as a plain state dict: torch.save(model.state_dict(), ...)",
    )


def _is_training(names: Iterable[str]) -> bool:
    return any(name.endswith("TrainingArguments") for name in names)


def _shown(name: str) -> str:
    """A name of an unknown length with unknown characters, for a message."""
    text = ascii(name)[1:-1]
    return text if len(text) <= 80 else f"{text[:80]}..."
