# SPDX-License-Identifier: Apache-2.0
"""Sets of files that hold one model: which files belong to a set, and whether a set is whole.

``split.no`` counts from 0 and file names from 1; ``split.tensors.count`` is that of the whole set; all metadata but
``split.*`` is in the first file (tools/gguf-split of ggml-org/llama.cpp).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weight_readers.errors import (
    AmbiguousCheckpointError,
    CheckpointError,
    HeaderError,
    MissingShardError,
    UnreadableFileError,
)
from weight_readers_gguf.header import GGUFHeader

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
ARCHITECTURE = "general.architecture"

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_SHOWN = 5
_GET_ALL = "Download all files of the set into one folder"


class Split(NamedTuple):
    """What one file says of its set: its number from 0 on, the number of files, and of tensors in all of them."""

    number: int
    files: int
    tensors: int | None


def split_siblings(path: str | os.PathLike[str]) -> list[str]:
    """The files of the set that ``path`` belongs to by its name, in order; ``[path]`` where it is no such name.

    Raises MissingShardError naming the files of the set that do not lie beside it.
    """
    given = os.fspath(path)
    paths = sibling_paths(given)
    present = _beside(given) if len(paths) > 1 else set(map(os.path.basename, paths))
    missing = [each for each in paths if os.path.basename(each) not in present]
    if missing:
        raise _missing(given, missing, len(paths))
    return paths


def sibling_paths(path: str) -> list[str]:
    """The paths that the set of ``path`` has by its name, there or not."""
    folder, name = os.path.split(path)
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["total"]):
        return [path]
    total = match["total"]
    return [
        os.path.join(folder, f"{match['stem']}-{number:05d}-of-{total}{match['suffix']}")
        for number in range(1, int(total) + 1)
    ]


def _beside(path: str) -> set[str]:
    folder = os.path.dirname(path) or os.curdir
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise UnreadableFileError(
            "the folder of the set cannot be listed", path=folder, found=error.strerror
        ) from error


def _missing(path: str, missing: Sequence[str], count: int) -> MissingShardError:
    return MissingShardError(
        f"{len(missing)} of the {count} files of the set are not there",
        path=path,
        expected=_some([os.path.basename(each) for each in missing]),
        fix=_GET_ALL,
    )


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def set_problems(headers: Sequence[GGUFHeader]) -> Iterator[CheckpointError]:
    """All that keeps the files from being one whole set. Files without ``split.*`` are held together by nothing."""
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
    if splits and not broken:
        yield from _one_set(headers, splits)


def split_of(header: GGUFHeader) -> Split | None:
    """What ``header`` says of its set; None for a file that is a model by itself. Raises HeaderError."""
    if COUNT not in header.metadata:
        return None
    count, number = _integer(header, COUNT), _integer(header, NUMBER)
    if not 0 <= number < max(count, 1):
        raise HeaderError(
            f"{NUMBER} is no number of a file of the set", path=header.path, expected=f"0 to {count - 1}", found=number
        )
    if count <= 1:
        return None
    return Split(number, count, _integer(header, TENSORS) if TENSORS in header.metadata else None)


def _integer(header: GGUFHeader, key: str) -> int:
    value = header.metadata.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = header.metadata.type_name(key) if key in header.metadata else "no such key"
    raise HeaderError(f"the metadata key {key!r} is no integer", path=header.path, expected="an integer", found=found)


def _one_set(headers: Sequence[GGUFHeader], splits: dict[int, Split]) -> Iterator[CheckpointError]:
    foreign = list(_foreign(headers, splits))
    yield from foreign
    twice = list(_twice(headers, splits))
    yield from twice
    if foreign or twice:
        return
    split = next(iter(splits.values()))
    missing = sorted(set(range(split.files)) - {each.number for each in splits.values()})
    if missing:
        yield _incomplete(headers, missing, split.files)
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


def _architecture(header: GGUFHeader) -> object:
    return header.metadata.get(ARCHITECTURE)


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


def _incomplete(headers: Sequence[GGUFHeader], missing: Sequence[int], count: int) -> CheckpointError:
    """The files of a set that were not given: whether they lie beside those that were, or have to be fetched."""
    path = headers[0].path
    siblings = sibling_paths(path)
    names = [siblings[n] if len(siblings) == count else f"file {n + 1} of {count}" for n in missing]
    there = len(siblings) == count and all(os.path.exists(name) for name in names)
    return MissingShardError(
        f"the file is one of a set of {count}, and {len(missing)} of them were not given"
        if len(headers) == 1
        else f"{len(missing)} of the {count} files of the set were not given",
        path=path,
        expected=_some(names),
        fix="They lie beside it: give all files of the set" if there else _GET_ALL,
    )


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
