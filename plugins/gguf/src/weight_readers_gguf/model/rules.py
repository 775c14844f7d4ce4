# SPDX-License-Identifier: Apache-2.0
"""What a model needs to have done to its weights, as rules on the names of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

import torch

from weight_readers_gguf.methods.names import Rename, by_table, check_rename

Change = Callable[[torch.Tensor], torch.Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a checkpoint's tensors become a model's parameters.

    Patterns are those of a shell (``*`` matches dots too) on names in the model before it is prepared
    (``blocks.0.qkv.weight``); one that matches nothing is an error, except in ``ignore`` and ``missing_ok``.

    rename: a function of the checkpoint's name that gives the model's, or None for a tensor the model does not have;
        or a table of names and leading parts of names (``{"blk": "model.layers"}``; the longest counts), where what
        is not in it stays as it is.
    islands: parameters that are float32 whatever the model declares; they receive float32 with no step between.
    dequantize: parameters that are plain numbers in the dtype the model declares, quantized in the file or not.
    rows: reorders rows (`QKVRows`); exact on packed bytes, which stay packed.
    values: computes new numbers from float32 ones, before the one rounding to the declared dtype.
    reshape: parameter -> the shape in the file, for exactly that parameter and that shape; any other that differs
        from the model's is an error.
    ignore: checkpoint names that are left out on purpose.
    missing_ok: parameters that the checkpoint need not have: they stay as they are.
    strict: what is quantized and cannot stay packed is an error rather than dequantized while it is loaded.
    """

    rename: Rename | None = None
    islands: Sequence[str] = ()
    dequantize: Sequence[str] = ()
    rows: Mapping[str, Change] = field(default_factory=dict)
    values: Mapping[str, Change] = field(default_factory=dict)
    reshape: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    missing_ok: Sequence[str] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        check_rename(self.rename)
        if not isinstance(self.strict, bool):
            raise TypeError(f"strict must be True or False, not {self.strict!r}")
        for name in ("rows", "values", "reshape"):
            _check_table(name, getattr(self, name))
        for name in ("islands", "dequantize", "ignore", "missing_ok"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise TypeError(f"{name} is a sequence of patterns, not the string {value!r}: write [{value!r}]")
            if not isinstance(value, Iterable) or not all(isinstance(pattern, str) for pattern in value):
                raise TypeError(f"{name} must be a sequence of patterns (strings), not {value!r}")
            object.__setattr__(self, name, tuple(value))

    def target(self, name: str) -> str | None:
        """The model's name for a checkpoint's tensor."""
        if self.rename is None:
            return name
        if not callable(self.rename):
            return by_table(self.rename, name)
        found = self.rename(name)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"rename must give a name or None, and gives {found!r} for {name!r}")
        return found

    def unused(self, names: Iterable[str]) -> Iterator[str]:
        """Patterns that match none of the model's names, each with the rule it stands in."""
        known = list(names)
        for rule in ("islands", "dequantize", "rows", "values", "reshape"):
            for pattern in getattr(self, rule):
                if not any(fnmatchcase(name, pattern) for name in known):
                    yield f"{rule} {pattern!r}"


def _check_table(name: str, table: object) -> None:
    """Raise TypeError for what is not a mapping from patterns to functions, or to shapes in ``reshape``."""
    if not isinstance(table, Mapping):
        raise TypeError(f"{name} must be a mapping from patterns, not {table!r}")
    shapes = name == "reshape"
    for pattern, entry in table.items():
        fits = isinstance(entry, Iterable) and not isinstance(entry, str | bytes) if shapes else callable(entry)
        if not isinstance(pattern, str) or not fits:
            wanted = "a shape" if shapes else "a function of a tensor"
            raise TypeError(f"{name} must have {wanted} for each pattern, and has {entry!r} for {pattern!r}")


def matches(patterns: Iterable[str], names: Iterable[str]) -> str | None:
    """The first pattern that one of the names matches."""
    known = list(names)
    return next((pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in known)), None)


def rule_for(table: Mapping[str, _T], names: Iterable[str]) -> _T | None:
    """The entry of the first pattern that one of the names matches."""
    pattern = matches(table, names)
    return None if pattern is None else table[pattern]
