# SPDX-License-Identifier: Apache-2.0
"""What the headers of a set of files say of it: whether it is whole, and whether all files belong to it.

``split.no`` counts from 0 and file names from 1; ``split.tensors.count`` is that of the whole set; all metadata but
``split.*`` is in the first file (tools/gguf-split of ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from weight_readers.errors import AmbiguousCheckpointError, CheckpointError, HeaderError
from weight_readers_gguf.header import GGUFHeader
from weight_readers_gguf.splits import MAX_FILES, name_problems, not_given

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
ARCHITECTURE = "general.architecture"


class Split(NamedTuple):
    """What one file says of its set: its number from 0 on, the number of files, and of tensors in all of them."""

    number: int
    files: int
    tensors: int | None


def set_problems(headers: Sequence[GGUFHeader]) -> Iterator[CheckpointError]:
    """All that keeps the files from being one whole set.

    Files without ``split.count`` are held together by their names, see `name_problems`, or by nothing. Where it is 1,
    or 0 as gguf-split leaves it in the files it merged, the file is a model by itself whatever its name is.
    """
    splits: dict[int, Split] = {}
    broken = False
    for index, header in enumerate(headers):
        try:
            split = split_of(header)
        except CheckpointError as error:
            broken = True
            yield error
        else:
            if split is not None:
                splits[index] = split
    if broken:
        return
    if splits:
        yield from _one_set(headers, splits)
    else:
        yield from name_problems(header.path for header in headers if COUNT not in header.metadata)


def split_of(header: GGUFHeader) -> Split | None:
    """What ``header`` says of its set; None for a file that is a model by itself. Raises HeaderError."""
    if COUNT not in header.metadata:
        return None
    count, number = _integer(header, COUNT), _integer(header, NUMBER)
    if not 0 <= count <= MAX_FILES:
        raise HeaderError(
            f"{COUNT} is no number of files", path=header.path, expected=f"at most {MAX_FILES}", found=count
        )
    if not 0 <= number < max(count, 1):
        raise HeaderError(
            f"{NUMBER} is no number of a file of the set",
            path=header.path,
            expected=f"0 to {max(count, 1) - 1}",
            found=number,
        )
    if count <= 1:
        return None
    return Split(number, count, _integer(header, TENSORS) if TENSORS in header.metadata else None)


def _integer(header: GGUFHeader, key: str) -> int:
    found = header.metadata.type_name(key) if key in header.metadata else "no such key"
    if key in header.metadata and (value := header.metadata.integer(key)) is not None:
        return value
    raise HeaderError(f"the metadata key {key!r} is no integer", path=header.path, expected="an integer", found=found)


def _one_set(headers: Sequence[GGUFHeader], splits: dict[int, Split]) -> Iterator[CheckpointError]:
    foreign = list(_foreign(headers, splits))
    yield from foreign
    twice = list(_twice(headers, splits))
    yield from twice
    if foreign or twice:
        return
    split = next(iter(splits.values()))
    given = {each.number + 1 for each in splits.values()}
    if len(given) < split.files:
        yield _incomplete(headers, given, split.files)
        return
    yield from _wrong_total(headers, splits)


def _foreign(headers: Sequence[GGUFHeader], splits: dict[int, Split]) -> Iterator[CheckpointError]:
    """Files that say they belong to another set than the first file that belongs to one."""
    first = next(iter(splits))
    architecture = next((_architecture(header) for header in headers if _architecture(header)), None)
    for index, header in enumerate(headers):
        own, wanted = splits.get(index), splits[first]
        if own is None:
            expected, found = f"{COUNT} {wanted.files}", f"no {COUNT}: a model by itself"
        elif (own.files, own.tensors) != (wanted.files, wanted.tensors):
            expected, found = _described(wanted), _described(own)
        elif (_architecture(header) or architecture) != architecture:
            expected, found = f"{ARCHITECTURE} {architecture}", str(_architecture(header))
        else:
            continue
        yield AmbiguousCheckpointError(
            f"the file does not belong to the set of {headers[first].path}",
            path=header.path,
            expected=expected,
            found=found,
            fix="Give the files of one set",
        )


def _described(split: Split) -> str:
    return f"{COUNT} {split.files}, {TENSORS} {split.tensors}"


def _architecture(header: GGUFHeader) -> str | None:
    return header.metadata.shown(ARCHITECTURE) if ARCHITECTURE in header.metadata else None


def _twice(headers: Sequence[GGUFHeader], splits: dict[int, Split]) -> Iterator[CheckpointError]:
    seen: dict[int, str] = {}
    for index, split in splits.items():
        other = seen.setdefault(split.number, headers[index].path)
        if other != headers[index].path:
            yield AmbiguousCheckpointError(
                f"two files say that they are file {split.number + 1} of {split.files}: this one and {other}",
                path=headers[index].path,
                fix="Give each file of the set once",
            )


def _incomplete(headers: Sequence[GGUFHeader], given: Collection[int], files: int) -> CheckpointError:
    lacking = files - len(given)
    what = (
        f"the file is one of a set of {files}, and {lacking} of them were not given"
        if len(headers) == 1
        else f"{lacking} of the {files} files of the set were not given"
    )
    return not_given(what, headers[0].path, given, files)


def _wrong_total(headers: Sequence[GGUFHeader], splits: dict[int, Split]) -> Iterator[CheckpointError]:
    promised = splits[0].tensors
    held = sum(len(header.tensors) for header in headers)
    if promised is not None and promised != held:
        yield HeaderError(
            "the files of the set hold another number of tensors than it should have",
            path=headers[0].path,
            expected=f"{TENSORS} {promised}",
            found=held,
            fix="A file is of another version of the model? Download the set again",
        )
