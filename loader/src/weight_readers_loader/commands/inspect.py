# SPDX-License-Identifier: Apache-2.0
"""``inspect``: the tensors of a checkpoint, and of a damaged one those that can still be listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weight_readers import CheckpointError, FileMeta, TensorMeta
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.preflight import preflight
from weight_readers_loader.remote import headers_of
from weight_readers_loader.resolve import Layout
from weight_readers_loader.wording import visible


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """The tensors found, the error that stopped the check if there was one, and what else to know."""

    layout: Layout
    tensors: tuple[TensorMeta, ...]
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    error: CheckpointError | None = None

    def remarks(self) -> list[str]:
        metadata = {k: v for held in self.metadata.values() for k, v in held.items()}
        pairs = ", ".join(f"{key}={value}" for key, value in metadata.items() if key not in self.aliases)
        lines = [visible(f"metadata: {pairs}")] if pairs else []
        lines += [visible(f"alias: {name} is stored as {source}") for name, source in self.aliases.items()]
        return lines + [f"notice: {notice}" for notice in self.notices]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.layout.format,
            "files": [{"name": f.name, "path": f.path, "bytes": f.size} for f in self.layout.files],
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "total_bytes": sum(tensor.nbytes for tensor in self.tensors),
            "metadata": {path: dict(held) for path, held in self.metadata.items()},
            "aliases": dict(self.aliases),
            "left_out": [{"name": name, "reason": reason} for name, reason in self.layout.left_out],
            "notices": list(self.notices),
            "errors": [problem.to_json() for problem in self.error.problems] if self.error else [],
        }


def inspect(layout: Layout, *, cache_dir: str | None = None, options: Mapping[str, Any] | None = None) -> Inspected:
    """List the tensors of a layout, by a reader with ``options``.

    Raises only where no reader fits; what is wrong with the files is in ``error``.
    """
    reader, _ = Chooser(format=layout.format, scheme=layout.scheme, cache_dir=cache_dir, options=options).pick()
    try:
        checked = preflight(layout, headers_of(layout, reader), strict=False)
    except CheckpointError as error:
        return Inspected(layout=layout, tensors=error.partial, notices=layout.notices, error=error)
    return Inspected(
        layout=layout,
        tensors=tuple(checked.tensors.values()),
        metadata=_metadata(checked.files),
        aliases=checked.aliases,
        notices=checked.notices,
    )


def _metadata(files: tuple[FileMeta, ...]) -> dict[str, Mapping[str, str]]:
    return {file.path: file.metadata for file in files if file.metadata}
