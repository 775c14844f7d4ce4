# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint is, as far as ranks have to agree on it: commit, files, tensors, and their order."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weight_readers import PlanMismatchError, TensorMeta

if TYPE_CHECKING:
    from weight_readers_loader.checkpoint import Checkpoint

_COMMIT = re.compile(r"[/\\]snapshots[/\\](?P<commit>[0-9a-f]{40})(?:[/\\]|$)")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``files`` are ``(name, path, bytes)`` in the order in which they are read, ``tensors`` in that of the files."""

    format: str
    commit: str | None
    files: tuple[tuple[str, str, int], ...]
    tensors: Mapping[str, TensorMeta]
    aliases: Mapping[str, str]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Plan:
        """Tensors by offset within their file, as all our readers hand them out."""
        layout = checkpoint.layout
        place = {file.path: number for number, file in enumerate(layout.files)}
        metas = sorted(checkpoint.tensors.values(), key=lambda m: (place[m.file], m.offset, m.nbytes, m.name))
        return cls(
            format=layout.format,
            commit=commit_of(layout.root),
            files=tuple((file.name, file.path, file.size) for file in layout.files),
            tensors={meta.name: meta for meta in metas},
            aliases=dict(checkpoint.aliases),
        )

    @property
    def digest(self) -> str:
        """Equal where ranks would read the same bytes under the same names, wherever their files lie."""
        return hashlib.sha256(json.dumps([*self._heads(), *self._rows()]).encode()).hexdigest()

    def _heads(self) -> list[Any]:
        return [self.format, self.commit, [[name, size] for name, _, size in self.files], sorted(self.aliases.items())]

    def _rows(self) -> list[list[Any]]:
        number = {path: place for place, (_, path, _) in enumerate(self.files)}
        return [
            [*(value for key, value in meta.to_json().items() if key != "file"), number[meta.file]]
            for meta in self.tensors.values()
        ]

    def to_json(self) -> bytes:
        data = {
            "format": self.format,
            "commit": self.commit,
            "files": self.files,
            "tensors": [meta.to_json() for meta in self.tensors.values()],
            "aliases": self.aliases,
        }
        return json.dumps(data).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Plan:
        data = json.loads(text)
        metas = [TensorMeta.from_json(meta) for meta in data.pop("tensors")]
        files = tuple((name, path, size) for name, path, size in data.pop("files"))
        return cls(files=files, tensors={meta.name: meta for meta in metas}, **data)

    def must_equal(self, first: Plan, *, rank: int, leader: int) -> None:
        """Raise PlanMismatchError with the first difference between what this ``rank`` and the ``leader`` see."""
        if self.digest != first.digest:
            raise PlanMismatchError(
                f"rank {rank} sees another checkpoint than rank {leader}: {self._difference(first)}",
                rank=rank,
                fix="Give every rank the same files: one shared folder, or the same revision by its commit",
            )

    def _difference(self, first: Plan) -> str:
        root = os.path.dirname(self.files[0][1]) if self.files else "nothing"
        if self.commit != first.commit:
            return f"commit {self.commit} in {root}, and commit {first.commit} there"
        if self.format != first.format:
            return f"{self.format} files in {root}, and {first.format} files there"
        for own, other in zip(self.files, first.files, strict=False):
            if own[0] != other[0]:
                return f"{own[1]} where {other[0]} comes there"
            if own[2] != other[2]:
                return f"{own[1]} with {own[2]} bytes, and {other[2]} bytes there"
        if len(self.files) != len(first.files):
            return f"{len(self.files)} files in {root}, and {len(first.files)} there"
        return self._different_tensor(first)

    def _different_tensor(self, first: Plan) -> str:
        for own, other in zip(self.tensors.values(), first.tensors.values(), strict=False):
            if own.name != other.name or own.to_json() | {"file": ""} != other.to_json() | {"file": ""}:
                was = f"{other.name!r} ({other.source_dtype} {list(other.shape)} at byte {other.offset}) is there"
                return f"{own.file} holds {own.name!r} ({own.source_dtype} {list(own.shape)}) where {was}"
        counts = [f"{len(plan.tensors)} tensors and {len(plan.aliases)} aliases" for plan in (self, first)]
        return f"{counts[0]}, not {counts[1]}"


def commit_of(root: str) -> str | None:
    """The commit that a snapshot folder of a Hub cache is of."""
    found = _COMMIT.search(os.path.abspath(root)) if "://" not in root else None
    return found["commit"] if found else None
