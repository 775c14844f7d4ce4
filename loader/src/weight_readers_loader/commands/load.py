# SPDX-License-Identifier: Apache-2.0
"""``load``: a reference into tensors or into the caller's module, with every byte touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weight_readers import CheckpointProblems
from weight_readers_loader.checkpoint import Checkpoint, open_checkpoint
from weight_readers_loader.digests import references, verify
from weight_readers_loader.report import LoadReport


def load(
    reference: str,
    *,
    layout_arguments: Mapping[str, Any],
    reader: str | None,
    reader_options: Mapping[str, Any],
    key_filter: Callable[[str], bool] | None,
    device: str,
    owned: bool,
    strict: bool,
    into: Callable[[], Any] | None,
    cast: bool,
    partial: bool,
    sha256: bool,
    manifest: str | None,
    progress: bool,
    on_file: Callable[[str], None],
) -> tuple[Any, LoadReport]:
    """What was filled (the state dict, or what ``into`` returned) and the report."""
    if into is None and (cast or partial):
        raise ValueError("--cast and --partial change how a module is filled: they need --into")
    if into is not None and key_filter is not None:
        raise ValueError("--filter and --into exclude each other: the module says which tensors it wants")
    checkpoint = open_checkpoint(
        reference,
        reader=reader,
        reader_options=reader_options,
        strict=strict or None,
        on_file=on_file,
        **layout_arguments,
    )
    if sha256 or manifest is not None:
        _verify(checkpoint, manifest)
    if into is None:
        filled = checkpoint.state_dict(
            device=device, key_filter=key_filter, owned=owned, touch=True, show_progress=progress
        )
    else:
        filled = into()
        checkpoint.load_into(filled, strict=not partial, cast=cast, device=device, owned=owned, show_progress=progress)
    assert checkpoint.report is not None  # noqa: S101 - both ways of loading make one
    return filled, checkpoint.report


def _verify(checkpoint: Checkpoint, manifest: str | None) -> None:
    files = checkpoint.layout.files
    result = verify(files, references(files, manifest))
    CheckpointProblems.raise_any(result.problems, path=checkpoint.layout.root)
    if result.unknown:
        raise ValueError(f"there is no digest to verify {', '.join(result.unknown)} against; pass --manifest")
