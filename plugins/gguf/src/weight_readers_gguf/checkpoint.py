# SPDX-License-Identifier: Apache-2.0
"""The headers of all files of one model, with one verdict over them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weight_readers.errors import CheckpointError, CheckpointProblems, DuplicateTensorError
from weight_readers.reader import Files
from weight_readers_files import natural_order
from weight_readers_files.sets import common_folder
from weight_readers_files.threads import Pool
from weight_readers_gguf.header import GGUFHeader, Metadata, held_header
from weight_readers_gguf.problems import Problems
from weight_readers_gguf.sets import set_problems, split_of
from weight_readers_gguf.tensors import GGUFTensor, tensors_of

MAX_THREADS = 8
"""Headers read at once: enough to hide the latency of a network file system, few enough for a shared disk."""


@dataclass(frozen=True, kw_only=True)
class GGUFCheckpoint:
    """The files of one model. ``tensors`` are keyed by name, file by file and in the order of the headers.

    Files of a split set come in the order of ``split.no``, others in natural order. ``metadata`` is that of the first.
    """

    headers: tuple[GGUFHeader, ...]
    tensors: Mapping[str, GGUFTensor]

    @property
    def metadata(self) -> Metadata:
        return self.headers[0].metadata

    def require_unchanged(self) -> None:
        """Raise FileChangedError where a file is not the one whose header was read: what is planned is of that one."""
        for header in self.headers:
            header.require_unchanged()


def read_checkpoint(files: Files) -> GGUFCheckpoint:
    """Read and check the headers of ``files``, which are one model: a whole split set, or files with names apart.

    Raises the `CheckpointError` for what is wrong with any of them, or `CheckpointProblems` with all of it, up to 100
    problems; ``.partial`` of the error lists the tensors that could be read. A tensor of a type that cannot be read
    is no error here: see `Delivery.REFUSED`. Raises TypeError for a bare path and ValueError for no files.
    """
    paths = natural_order(files)
    scanned = _scan_all(paths)
    headers = [header for header, _ in scanned]
    problems = Problems()
    problems.extend(problem for _, found in scanned for problem in found)
    names = {info.name for header in headers for info in header.tensors}
    held = [list(tensors_of(header, names, problems)) for header in headers]
    problems.extend(_shared(held))
    # Of a broken header nobody knows which set it speaks of.
    if not any(found for _, found in scanned):
        problems.extend(set_problems(headers))
    _raise_any(problems, paths, held)
    return _checkpoint(headers, held)


def _scan_all(paths: Sequence[str]) -> list[tuple[GGUFHeader, tuple[CheckpointError, ...]]]:
    if len(paths) == 1:
        return [held_header(paths[0])]
    with Pool(min(MAX_THREADS, len(paths)), thread_name_prefix="gguf-header") as pool:
        return list(pool.map(held_header, paths))


def _checkpoint(headers: Sequence[GGUFHeader], held: Sequence[Sequence[GGUFTensor]]) -> GGUFCheckpoint:
    def place(index: int) -> int:
        split = split_of(headers[index])
        return index if split is None else split.number

    order = sorted(range(len(headers)), key=place)
    return GGUFCheckpoint(
        headers=tuple(headers[index] for index in order),
        tensors={tensor.name: tensor for index in order for tensor in held[index]},
    )


def _shared(held: Sequence[Sequence[GGUFTensor]]) -> Iterator[CheckpointError]:
    """Names in two files, and tensors that would be delivered under one name."""
    tensors = [tensor for each in held for tensor in each]
    owners: dict[str, GGUFTensor] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for tensor in tensors:
        owner = owners.setdefault(tensor.name, tensor)
        if owner is not tensor:
            shared.setdefault((owner.file, tensor.file), []).append(tensor.name)
    for (owner_file, file), names in shared.items():
        yield _in_two_files(owner_file, file, names)
    for tensor in tensors:
        if tensor.parameter != tensor.name and tensor.parameter in owners:
            yield _under_one_name(tensor, owners[tensor.parameter])


def _in_two_files(owner: str, file: str, names: Sequence[str]) -> CheckpointError:
    if _same_file(owner, file):
        return DuplicateTensorError("this file is given twice", path=file, found=owner, fix="Give each file once")
    more = f" (and {len(names) - 1} more of its tensors)" if len(names) > 1 else ""
    return DuplicateTensorError(
        f"also in {owner}{more}",
        path=file,
        tensor=names[0],
        fix="Two models? Give the files of one",
    )


def _same_file(one: str, other: str) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        # One of them is gone by now, which shows when it is read.
        return False


def _under_one_name(tensor: GGUFTensor, other: GGUFTensor) -> CheckpointError:
    return DuplicateTensorError(
        f"its packed blocks would be delivered as {other.name!r}, and {other.file} has a tensor of that name",
        path=tensor.file,
        tensor=tensor.name,
        fix="Rename one of the two, and convert the model again",
    )


def _raise_any(problems: Problems, paths: Sequence[str], held: Sequence[Sequence[GGUFTensor]]) -> None:
    if not problems:
        return
    folder = common_folder(paths)
    try:
        CheckpointProblems.raise_any(problems.listed(folder), path=folder)
    except CheckpointError as error:
        error.partial = tuple(tensor.meta() for tensors in held for tensor in tensors)
        raise
