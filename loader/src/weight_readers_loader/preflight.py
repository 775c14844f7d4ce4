# SPDX-License-Identifier: Apache-2.0
"""Check a whole checkpoint from its headers before the first tensor is read, and list every problem."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weight_readers import (
    BadIndexError,
    CheckpointError,
    CheckpointProblems,
    EmptyWeightsError,
    FileMeta,
    MissingShardError,
    MissingTensorError,
    TensorMeta,
)
from weight_readers.tensors import TensorTable
from weight_readers_loader.headers import Headers, ReadsHeaders, names_in, read_headers
from weight_readers_loader.resolve import Layout
from weight_readers_loader.resolve.hub.cache import mended_in_cache
from weight_readers_loader.resolve.index import Index
from weight_readers_loader.wording import counted, some


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A checkpoint whose headers are all right.

    ``tensors`` are those that belong to it: with an index, the ones it names, each from the file it names.
    ``groups`` are the files that may be read in one go; more than one group where a name is in two files and
    the index says which of them counts. ``restricted`` says that the files hold tensors besides ``tensors``.
    ``notices`` are for people.
    """

    tensors: TensorTable
    files: tuple[FileMeta, ...]
    groups: tuple[tuple[str, ...], ...]
    restricted: bool
    notices: tuple[str, ...]

    @property
    def aliases(self) -> dict[str, str]:
        """Name -> tensor for dropped shared names, which ``save_model`` of safetensors records as metadata."""
        recorded = {k: v for file in self.files for k, v in file.metadata.items() if k not in self.tensors}
        stored = {name: _stored_name(name, recorded) for name in recorded}
        return {name: source for name, source in stored.items() if source in self.tensors}


def _stored_name(name: str, recorded: Mapping[str, str]) -> str:
    """Where a chain of aliases ends; a cycle ends anywhere within itself, which is no tensor."""
    followed: set[str] = set()
    while name in recorded and name not in followed:
        followed.add(name)
        name = recorded[name]
    return name


def preflight(layout: Layout, reader: ReadsHeaders, *, strict: bool) -> Preflight:
    """Read all headers. Raises the one problem, or `CheckpointProblems` with all of them.

    Problems that the layout kept are among them, and ``partial`` of the error lists every tensor that could be
    found. ``strict`` turns what an index does not know of into problems.
    """
    strays = {file.path: names_in(file.path, reader) for file in layout.unindexed}
    headers = read_headers(layout, reader)
    problems = [*layout.problems, *_not_yet_said(headers.problems, layout)]
    chosen = _chosen(headers, layout)
    if layout.index is not None:
        problems += _index_problems(layout, layout.index, headers, chosen, strays)
    tensors = _together(chosen, headers)
    empty = _without_elements(tensors)
    problems += [] if problems else _empty_weights(layout, tensors, empty)
    doubts = _doubts(layout, headers, chosen, strays)
    problems += doubts if strict else []
    _raise_any(problems, layout, headers)
    return Preflight(
        tensors=tensors,
        files=headers.files,
        groups=headers.groups,
        restricted=len(tensors) < sum(len(held) for held in headers.located.values()),
        notices=(
            *layout.notices,
            *(notice for file in headers.files for notice in file.notices),
            *_wrong_total(layout, headers),
            *_some_empty(tensors, empty),
            *(str(doubt) for doubt in doubts),
        ),
    )


def _not_yet_said(found: Iterable[CheckpointError], layout: Layout) -> list[CheckpointError]:
    """What readers find, without the shards that they miss where the layout has named those already."""
    said = any(isinstance(problem, MissingShardError) for problem in layout.problems)
    return [problem for problem in found if not (said and isinstance(problem, MissingShardError))]


def _raise_any(problems: Iterable[CheckpointError], layout: Layout, headers: Headers) -> None:
    try:
        CheckpointProblems.raise_any(map(mended_in_cache, problems), path=layout.root)
    except CheckpointError as error:
        error.partial = tuple(tensor for held in headers.located.values() for tensor in held.values())
        raise


def _index_problems(
    layout: Layout,
    index: Index,
    headers: Headers,
    chosen: Mapping[str, Collection[str]],
    strays: Mapping[str, Collection[str]],
) -> Iterator[CheckpointError]:
    """One problem for each file that lacks tensors, however many; a file with a problem of its own has that one."""
    broken = {problem.path for problem in headers.problems}
    lacking: dict[str, list[str]] = {}
    for file in layout.files:
        named = index.by_shard[file.name]
        if file.path not in broken and len(chosen[file.path]) < len(named):
            lacking[file.path] = [name for name in named if name not in chosen[file.path]]
    for path, names in lacking.items():
        yield _lacks(path, names, index, {**headers.located, **strays})


def _lacks(path: str, names: Sequence[str], index: Index, held: Mapping[str, Collection[str]]) -> CheckpointError:
    elsewhere = [other for other, tensors in held.items() if names[0] in tensors]
    more = f" (and {len(names) - 1} more)" if names[1:] else ""
    return MissingTensorError(
        f"the index names a tensor that its file does not have{more}",
        path=path,
        tensor=names[0],
        expected=f"as {index.name} says",
        found=f"it is in {', '.join(elsewhere)}" if elsewhere else "it is in none of the files",
        fix="Get the index that belongs to these files, or the files that belong to it",
    )


def _chosen(headers: Headers, layout: Layout) -> Mapping[str, TensorTable]:
    """The tensors of each file that belong to the checkpoint."""
    if layout.index is None:
        return headers.located
    shards = {file.path: file.name for file in layout.files}
    return {
        path: _of_shard(tensors, shard, layout.index)
        for path, tensors in headers.located.items()
        if (shard := shards.get(path)) is not None
    }


def _of_shard(tensors: TensorTable, shard: str, index: Index) -> TensorTable:
    """Those of a file's tensors that the index says are in it: all of them, as a rule, and in the same order."""
    if tensors.names == index.by_shard.get(shard):
        return tensors
    shard_of = index.weight_map.get
    said = list(map(shard_of, tensors.names))
    return tensors if said.count(shard) == len(said) else tensors.where(lambda name: shard_of(name) == shard)


def _together(chosen: Mapping[str, TensorTable], headers: Headers) -> TensorTable:
    """All that is chosen; where that is all there is, the reader's own table, with what it found out about it."""
    if len(chosen) == len(headers.located) and all(chosen[path] is held for path, held in headers.located.items()):
        return headers.tensors
    return TensorTable.joined(chosen.values())


def _without_elements(tensors: TensorTable) -> list[TensorMeta]:
    # A table has few kinds for many tensors.
    if all(kind.nbytes or math.prod(kind.shape) for kind, _ in tensors.kind_counts):
        return []
    return [tensor for tensor in tensors.values() if not tensor.nbytes and math.prod(tensor.shape) == 0]


def _doubts(
    layout: Layout, headers: Headers, chosen: Mapping[str, Collection[str]], strays: Mapping[str, Sequence[str]]
) -> list[CheckpointError]:
    """The tensors that an index leaves unsaid, in its own files and in those beside them."""
    if layout.index is None:
        return []
    unnamed = {
        path: [name for name in tensors if name not in chosen.get(path, ())]
        for path, tensors in headers.located.items()
        if len(tensors) > len(chosen.get(path, ()))
    }
    index = layout.index
    return [_unnamed(path, names, index) for path, names in {**unnamed, **strays}.items() if names]


def _unnamed(path: str, names: Sequence[str], index: Index) -> CheckpointError:
    are = "tensor of this file is" if len(names) == 1 else "tensors of this file are"
    return BadIndexError(
        f"{len(names)} {are} not named by the index {index.name} and not read",
        path=path,
        tensor=names[0],
        fix="Give the file itself to read them, or get an index that names them",
    )


def _wrong_total(layout: Layout, headers: Headers) -> list[str]:
    if layout.index is None or layout.index.total_size is None:
        return []
    actual = headers.tensors.nbytes
    if layout.index.total_size == actual:
        return []
    return [f"{layout.index.name} gives a total of {layout.index.total_size} bytes, and its files hold {actual}"]


def _weights(tensors: Iterable[TensorMeta]) -> list[TensorMeta]:
    """Those that are named as weights."""
    return [tensor for tensor in tensors if tensor.name.endswith(".weight")]


def _empty_weights(
    layout: Layout, tensors: Mapping[str, TensorMeta], empty: Sequence[TensorMeta]
) -> Iterator[CheckpointError]:
    weights = _weights(tensors.values()) if empty else []
    if weights and len(_weights(empty)) == len(weights):
        yield EmptyWeightsError(
            f"all {len(weights)} weights have zero elements: this looks like a ZeRO-3 save without gathering",
            path=layout.root,
            tensor=weights[0].name,
            found=f"shape {list(weights[0].shape)}",
            fix="Save again with stage3_gather_16bit_weights_on_model_save, or run zero_to_fp32.py",
        )


def _some_empty(tensors: Mapping[str, TensorMeta], empty: Sequence[TensorMeta]) -> list[str]:
    lost = _weights(empty)
    if not lost:
        return []
    names = some([tensor.name for tensor in lost], 5)
    count = counted(len(_weights(tensors.values())), "weight")
    return [f"{len(lost)} of {count} without elements, as a ZeRO-3 save leaves them: {names}"]
