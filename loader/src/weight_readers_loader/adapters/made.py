# SPDX-License-Identifier: Apache-2.0
"""What an adapter is: a plan over headers, whose entries know how to make their tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch

from weight_readers import AdapterError, TensorMeta

Make = Callable[..., torch.Tensor]

Tensors = Mapping[str, TensorMeta]
"""Name -> header, in the order in which tensors come."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """One tensor after an adapter.

    ``meta`` is its header as it will be: name, torch dtype, logical and stored shape. ``sources`` are the names, before
    the adapter, of what it is made of. ``make`` gets their tensors in that order; None where the one source goes on as
    it is, under whatever name: such tensors can still be read straight into a model.
    """

    meta: TensorMeta
    sources: tuple[str, ...]
    make: Make | None = None


class Adapter(ABC):
    """Subclass it, and say in `plan` what becomes of the tensors. Nothing is read before every plan is agreed on.

    ``supports_packed``: whether it may also change tensors that are quantized blocks, or elements of less than a byte.
    Without it such a tensor may pass unchanged, under another name too, and is refused otherwise.
    """

    supports_packed: ClassVar[bool] = False

    @abstractmethod
    def plan(self, tensors: Tensors) -> Iterable[Made]:
        """What there will be of these ``tensors``; one that is no source of anything is not read.

        Called again for each operation with what that one wants, so a tensor's plan may depend on its own sources
        only. Raises AdapterError where the tensors do not fit.
        """

    def check(self, tensors: Tensors) -> None:
        """Called once, with all tensors that reach this adapter: for rules that would match nothing.

        The default has none. Raises AdapterError.
        """
        return


def passed(meta: TensorMeta) -> Made:
    """The tensor as it is."""
    return Made(meta=meta, sources=(meta.name,))


def renamed(meta: TensorMeta, name: str) -> Made:
    """The tensor as it is, under another name."""
    return Made(meta=with_name(meta, name), sources=(meta.name,))


def with_name(meta: TensorMeta, name: str) -> TensorMeta:
    """``meta`` under another name; the parameter that holds a packed tensor is renamed along.

    Raises AdapterError where that cannot be done: the parameter of ``a.weight`` is ``a.qweight``.
    """
    if meta.parameter is None:
        return replace(meta, name=name)
    tail, own = name.rpartition(".")[2], meta.name.rpartition(".")[2]
    if tail != own:
        raise refused("a packed tensor keeps the last part of its name", meta, expected=own, found=tail)
    of = meta.parameter.rpartition(".")[2]
    return replace(meta, name=name, parameter=f"{name.removesuffix(tail)}{of}")


def is_packed(meta: TensorMeta) -> bool:
    """Whether an element of the stored tensor is not one number: a block of them, or two in a byte."""
    return meta.ggml_type is not None or meta.shape != meta.stored_shape


def refused(what: str, meta: TensorMeta, **said: Any) -> AdapterError:
    return AdapterError(what, path=meta.file, tensor=meta.name, **said)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns (``*``, ``?``, ``[abc]``) is that of the whole name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(option: str, patterns: Iterable[str], tensors: Tensors) -> None:
    """Raise AdapterError for a pattern that no tensor has: a misspelt one would be ignored."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in tensors):
            some = next(iter(tensors.values()), None)
            path = some.file if some is not None else ""
            raise AdapterError(f"{option} names {pattern!r}, and no tensor has such a name", path=path)


def texts(option: str, given: object) -> tuple[str, ...]:
    """A collection of texts. Raises TypeError: a single text would become its letters."""
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(g, str) for g in given):
        raise TypeError(f"{option} must be a list of texts, not {given!r}")
    return tuple(given)
