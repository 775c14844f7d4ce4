# SPDX-License-Identifier: Apache-2.0
"""``load``: a reference into tensors or into the caller's module, with every byte touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weight_readers_loader.checkpoint import open_checkpoint
from weight_readers_loader.report import LoadReport
from weight_readers_loader.wording import some


def load(
    reference: str,
    *,
    layout_arguments: Mapping[str, Any],
    reader: str | None,
    reader_options: Mapping[str, Any],
    dequantize: str | None,
    key_filter: Callable[[str], bool] | None,
    device: str | None,
    owned: bool,
    strict: bool,
    into: Callable[[], Any] | None,
    cast: bool,
    partial: bool,
    aliases: bool,
    enable_multithread_weight_load: bool,
    num_weight_load_threads: int | None,
    verify: bool,
    manifest: str | None,
    progress: bool,
    on_file: Callable[[str], None],
) -> tuple[Any, LoadReport]:
    """What was filled (the state dict, or what ``into`` returned) and the report."""
    checkpoint = open_checkpoint(
        reference,
        reader=reader,
        reader_options=reader_options,
        dequantize=dequantize,
        strict=strict or None,
        enable_multithread_weight_load=enable_multithread_weight_load,
        num_weight_load_threads=num_weight_load_threads,
        on_file=on_file,
        **layout_arguments,
    )
    if key_filter is not None and not any(map(key_filter, checkpoint.tensors)):
        raise ValueError(f"no tensor of {reference} matches --filter: it has {some(list(checkpoint.tensors), 5)}")
    shared: dict[str, Any] = {"owned": owned, "resolve_aliases": aliases, "show_progress": progress}
    shared["verify"] = verify if manifest is None else manifest
    if into is None:
        filled = checkpoint.state_dict(device=device or "cpu", key_filter=key_filter, touch=True, **shared)
    else:
        filled = into()
        checkpoint.load_into(filled, strict=not partial, cast=cast, device=device, **shared)
    assert checkpoint.report is not None  # noqa: S101 - both ways of loading make one
    return filled, checkpoint.report
