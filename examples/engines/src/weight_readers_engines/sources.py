# SPDX-License-Identifier: Apache-2.0
"""The ``Source`` of vLLM's loaders (a model, a revision, a subfolder, a prefix) as an iterator over our checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from weight_readers_loader import open_checkpoint


class Source(Protocol):
    """What vLLM's ``DefaultModelLoader.Source`` and vLLM-Omni's ``ComponentSource`` have in common."""

    model_or_path: str
    subfolder: str | None
    revision: str | None
    prefix: str
    fall_back_to_pt: bool
    allow_patterns_overrides: list[str] | None


def weights_of(
    source: Source, options: Mapping[str, Any], *, unwanted: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """``(prefix + name, tensor)`` of the source on the host, each valid after the next one.

    ``options`` are those of `open_checkpoint`. What ``unwanted`` accepts, by its name in the files, is never read.
    Raises ValueError where the model chooses files by patterns of its own, or rules out the ``.pt`` files it has.
    """
    if source.allow_patterns_overrides is not None:
        raise ValueError(
            f"the model wants the files {source.allow_patterns_overrides} of {source.model_or_path} read, and "
            "weight-readers reads whole checkpoints; load it with load_format='auto'"
        )
    checkpoint = open_checkpoint(reference_of(source), subfolder=source.subfolder, **options)
    if not source.fall_back_to_pt and any(path.endswith(".pt") for path in checkpoint.layout.paths):
        raise ValueError(f"the model rules out .pt files, and {source.model_or_path} has no others; convert them")
    wanted = None if unwanted is None else lambda name: not unwanted(name)
    return ((source.prefix + name, tensor) for name, tensor in checkpoint.iter_weights(key_filter=wanted))


def reference_of(source: Source) -> str:
    """``owner/name@revision`` on the Hub; a revision says nothing of a folder or a store."""
    path = os.fspath(source.model_or_path)
    on_hub = source.revision is not None and "://" not in path and not os.path.exists(path)
    return f"{path}@{source.revision}" if on_hub else path
