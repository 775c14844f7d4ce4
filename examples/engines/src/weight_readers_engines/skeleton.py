# SPDX-License-Identifier: Apache-2.0
"""A model whose parameters have no memory and whose buffers are computed, ready to be filled from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from weight_readers_loader import Checkpoint, open_checkpoint
from weight_readers_loader.adapters import Adapter, Made
from weight_readers_loader.adapters.made import Tensors, passed

Model = TypeVar("Model", bound=nn.Module)


def skeleton(make: Callable[[], Model]) -> Model:
    """What ``make`` makes, with every parameter on the meta device and every buffer with its numbers on the host.

    Parameters that were tied are tied no longer where the library ties them by assignment: tie them again.
    """
    from accelerate import init_empty_weights

    # torch.device("meta") would take the memory of the buffers too, and no checkpoint has rotary tables.
    with init_empty_weights(include_buffers=False):
        return make()


def computed_buffers(model: nn.Module) -> frozenset[str]:
    """The ends of the names of buffers that ``model`` computes and does not save (``rotary_emb.inv_freq``, say)."""
    saved = model.state_dict().keys()
    return frozenset(_end(name) for name, _ in model.named_buffers() if name not in saved)


def _end(name: str) -> str:
    """The last two words: older files have rotary tables in each layer, and a mask that is called ``attention.bias``
    makes no other bias one.
    """
    return ".".join(name.split(".")[-2:])


def open_for(
    model: nn.Module, reference: str | os.PathLike[str], *, adapters: Sequence[Adapter] = (), **options: Any
) -> Checkpoint:
    """The checkpoint without what ``model`` computes itself; older files of many models have such tensors."""
    checkpoint = open_checkpoint(reference, adapters=adapters, **options)
    computed, wanted = computed_buffers(model), model.state_dict().keys()
    names = [n for n in checkpoint.adapted if n not in wanted and _end(n) in computed]
    return open_checkpoint(reference, adapters=[*adapters, Without(names)], **options) if names else checkpoint


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Parameters that say nothing else are made in ``dtype``; None changes nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Without(Adapter):
    """Leave tensors out, by their exact names. They are not read."""

    supports_packed = True

    def __init__(self, names: list[str]) -> None:
        self.names = frozenset(names)

    def plan(self, tensors: Tensors) -> list[Made]:
        return [passed(meta) for name, meta in tensors.items() if name not in self.names]
