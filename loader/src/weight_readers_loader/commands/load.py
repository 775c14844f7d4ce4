# SPDX-License-Identifier: Apache-2.0
"""``load``: a reference into tensors or into the caller's module, with every byte touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weight_readers_loader.config import LayeredConfig
from weight_readers_loader.opening import open_checkpoint
from weight_readers_loader.report import LoadReport
from weight_readers_loader.wording import some


def load(
    reference: str,
    *,
    layout_arguments: Mapping[str, Any],
    config: LayeredConfig,
    key_filter: Callable[[str], bool] | None,
    owned: bool,
    into: Callable[[], Any] | None,
    cast: bool,
    partial: bool,
    aliases: bool,
    progress: bool,
    on_file: Callable[[str], None],
) -> tuple[Any, LoadReport]:
    """What was filled (the state dict, or what ``into`` returned) and the report."""
    checkpoint = open_checkpoint(reference, config=config, on_file=on_file, show_progress=progress, **layout_arguments)
    if key_filter is not None and not any(map(key_filter, checkpoint.tensors)):
        raise ValueError(f"no tensor of {reference} matches --filter: it has {some(list(checkpoint.tensors), 5)}")
    shared: dict[str, Any] = {"owned": owned, "resolve_aliases": aliases, "show_progress": progress}
    if into is None:
        filled = checkpoint.state_dict(key_filter=key_filter, touch=True, **shared)
    else:
        filled = into()
        checkpoint.load_into(filled, strict=not partial, cast=cast, **shared)
    assert checkpoint.report is not None  # noqa: S101 - both ways of loading make one
    return filled, checkpoint.report
