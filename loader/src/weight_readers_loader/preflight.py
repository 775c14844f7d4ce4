# SPDX-License-Identifier: Apache-2.0
"""Check a whole checkpoint from its headers before the first tensor is read, and list every problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weight_readers import (
    BadIndexError,
    CheckpointError,
    CheckpointMeta,
    CheckpointProblems,
    DuplicateTensorError,
    EmptyWeightsError,
    FileMeta,
    MissingTensorError,
    TensorMeta,
    WeightReader,
)
from weight_readers_loader.resolve.index import Index
from weight_readers_loader.resolve.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A checkpoint whose headers are all right.

    ``tensors`` are those that belong to it: with an index, the ones it names, each from the file it names.
    ``groups`` are the files that may be read in one go; more than one group where a name is in two files and
    the index says which of them counts. ``restricted`` says that the files hold tensors besides ``tensors``.
    ``notices`` are for people.
    """

    tensors: Mapping[str, TensorMeta]
    files: tuple[FileMeta, ...]
    groups: tuple[tuple[str, ...], ...]
    restricted: bool
    notices: tuple[str, ...]

    @property
    def aliases(self) -> dict[str, str]:
        """Name -> tensor for dropped shared names, which ``save_model`` of safetensors records as metadata."""
        recorded = {k: v for file in self.files for k, v in file.metadata.items()}
        return {k: v for k, v in recorded.items() if k not in self.tensors and v in self.tensors}


def preflight(layout: Layout, reader: WeightReader, *, strict: bool) -> Preflight:
    """Read all headers. Raises the one problem, or `CheckpointProblems` with all of them.

    ``strict`` turns what an index does not know of into problems.
    """
    metas = _headers(layout, reader)
    located = _by_file(metas)
    problems: list[CheckpointError] = []
    if layout.index is not None:
        problems += _index_problems(layout, layout.index, located)
    tensors = _chosen(metas, located, layout)
    problems += _empty_weights(layout, tensors)
    notices, doubts = _doubts(layout, located, reader)
    problems += doubts if strict else []
    CheckpointProblems.raise_any(problems, path=layout.root)
    return Preflight(
        tensors=tensors,
        files=tuple(file for meta in metas for file in meta.files),
        groups=tuple(tuple(file.path for file in meta.files) for meta in metas),
        restricted=len(tensors) < sum(len(meta) for meta in metas),
        notices=(*layout.notices, *notices, *(str(doubt) for doubt in doubts)),
    )


def _headers(layout: Layout, reader: WeightReader) -> list[CheckpointMeta]:
    try:
        return [reader.read_meta(layout.paths)]
    except CheckpointError as error:
        # An index says which of two tensors of one name counts; without one they are two checkpoints.
        if layout.index is None or not all(isinstance(p, DuplicateTensorError) for p in error.problems):
            raise
    return [reader.read_meta([path]) for path in layout.paths]


_Located = Mapping[str, Mapping[str, TensorMeta]]


def _by_file(metas: Sequence[CheckpointMeta]) -> _Located:
    located: dict[str, dict[str, TensorMeta]] = {file.path: {} for meta in metas for file in meta.files}
    for meta in metas:
        for name, tensor in meta.items():
            located[tensor.file][name] = tensor
    return located


def _paths(layout: Layout) -> dict[str, str]:
    return {file.name: file.path for file in layout.files}


def _index_problems(layout: Layout, index: Index, located: _Located) -> Iterator[CheckpointError]:
    paths = _paths(layout)
    for name, shard in index.weight_map.items():
        if name in located[paths[shard]]:
            continue
        elsewhere = [path for path, tensors in located.items() if name in tensors]
        yield MissingTensorError(
            "the index names a tensor that its file does not have",
            path=paths[shard],
            tensor=name,
            expected=f"as {index.name} says",
            found=f"it is in {', '.join(elsewhere)}" if elsewhere else "it is in none of the files",
            fix="Get the index that belongs to these files, or the files that belong to it",
        )


def _chosen(metas: Sequence[CheckpointMeta], located: _Located, layout: Layout) -> dict[str, TensorMeta]:
    if layout.index is None:
        return {name: tensor for meta in metas for name, tensor in meta.items()}
    paths = _paths(layout)
    wanted = layout.index.weight_map
    return {
        name: tensor
        for path, tensors in located.items()
        for name, tensor in tensors.items()
        if name in wanted and paths[wanted[name]] == path
    }


def _doubts(layout: Layout, located: _Located, reader: WeightReader) -> tuple[list[str], list[CheckpointError]]:
    """What an index leaves unsaid: tensors it does not name, and a total that is not theirs."""
    if layout.index is None:
        return [], []
    index, paths = layout.index, _paths(layout)
    doubts = [
        _unnamed(path, [n for n in tensors if paths.get(index.weight_map.get(n, "")) != path], index)
        for path, tensors in located.items()
    ]
    doubts += [_unnamed(file.path, _names_in(file.path, reader), index) for file in layout.unindexed]
    return _wrong_total(index, located), [doubt for doubt in doubts if doubt is not None]


def _unnamed(path: str, names: Sequence[str], index: Index) -> CheckpointError | None:
    if not names:
        return None
    return BadIndexError(
        f"{len(names)} tensors of this file are not named by the index {index.name} and are not read",
        path=path,
        tensor=names[0],
        fix="Give the file itself to read them, or get an index that names them",
    )


def _names_in(path: str, reader: WeightReader) -> list[str]:
    try:
        return list(reader.read_meta([path]))
    except CheckpointError:
        return []  # a file that is not part of the checkpoint may be as broken as it likes


def _wrong_total(index: Index, located: _Located) -> list[str]:
    actual = sum(tensor.nbytes for tensors in located.values() for tensor in tensors.values())
    if index.total_size in (None, actual):
        return []
    return [f"{index.name} gives a total of {index.total_size} bytes, and its files hold {actual}"]


def _empty_weights(layout: Layout, tensors: Mapping[str, TensorMeta]) -> Iterable[CheckpointError]:
    weights = [tensor for name, tensor in tensors.items() if name.endswith(".weight")]
    if weights and all(math.prod(tensor.shape) == 0 for tensor in weights):
        yield EmptyWeightsError(
            f"all {len(weights)} weights have zero elements: this looks like a ZeRO-3 save without gathering",
            path=layout.root,
            tensor=weights[0].name,
            found=f"shape {list(weights[0].shape)}",
            fix="Save again with stage3_gather_16bit_weights_on_model_save, or run zero_to_fp32.py",
        )
