# SPDX-License-Identifier: Apache-2.0
"""The headers of all files of a layout as a reader sees them, with all that is wrong and all that could be listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weight_readers import (
    CheckpointError,
    CheckpointMeta,
    DuplicateTensorError,
    FileMeta,
    PluginContractError,
    ReaderInfo,
    TensorMeta,
)
from weight_readers.tensors import TensorTable
from weight_readers_loader.contract import kept_contract
from weight_readers_loader.resolve import Layout


class ReadsHeaders(Protocol):
    """What is asked of a reader before anything is read: a `WeightReader`, or what reads its headers from afar."""

    @property
    def info(self) -> ReaderInfo: ...

    def read_meta(self, files: Sequence[str]) -> CheckpointMeta: ...


@dataclass(frozen=True, kw_only=True)
class Headers:
    """``located`` maps each path to its tensors; ``groups`` are the files that a reader takes in one go."""

    located: Mapping[str, TensorTable]
    files: tuple[FileMeta, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    problems: tuple[CheckpointError, ...] = field(default=(), compare=False)


def read_headers(layout: Layout, reader: ReadsHeaders) -> Headers:
    """Read them all. Raises no `CheckpointError`: those are in ``problems``, with what could be listed beside."""
    if not layout.paths:
        return Headers(located={})
    together = _read([layout.paths], reader)
    # An index says which of two tensors of one name counts; without one they are two checkpoints.
    if layout.index is not None and any(isinstance(p, DuplicateTensorError) for p in together.problems):
        return _read([(path,) for path in layout.paths], reader)
    return together


def names_in(path: str, reader: ReadsHeaders) -> list[str]:
    """The tensors of a file that is not part of the checkpoint: it may be as broken as it likes."""
    try:
        return list(_meta(reader, [path]))
    except CheckpointError:
        return []


def _read(groups: Sequence[tuple[str, ...]], reader: ReadsHeaders) -> Headers:
    metas: list[CheckpointMeta] = []
    problems: list[CheckpointError] = []
    partial: list[TensorMeta] = []
    for paths in groups:
        try:
            metas.append(_meta(reader, paths))
        except CheckpointError as error:
            problems += error.problems
            partial += error.partial
    return Headers(
        located=_located(groups, partial, metas),
        files=tuple(file for meta in metas for file in meta.files),
        groups=tuple(tuple(file.path for file in meta.files) for meta in metas),
        problems=tuple(problems),
    )


def _meta(reader: ReadsHeaders, paths: Sequence[str]) -> CheckpointMeta:
    name = reader.info.name
    with kept_contract(name):
        meta = reader.read_meta(paths)
        if not isinstance(meta, CheckpointMeta):
            breach = f"returned {type(meta).__name__} as read_meta, not a CheckpointMeta"
            raise PluginContractError(f"reader {name!r} {breach}", name=name, reason=breach, code="broken")
        return meta


def _located(
    groups: Iterable[Iterable[str]], partial: Iterable[TensorMeta], metas: Iterable[CheckpointMeta]
) -> dict[str, TensorTable]:
    """The tensors of each file; of those of a file with problems, which are in ``partial``, the last of each name."""
    found: dict[str, dict[str, TensorMeta]] = {path: {} for paths in groups for path in paths}
    for tensor in partial:
        found.setdefault(tensor.file, {})[tensor.name] = tensor
    located = {path: TensorTable(tensors) for path, tensors in found.items()}
    for meta in metas:
        located |= meta.by_file()
    return located
