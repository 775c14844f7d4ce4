# SPDX-License-Identifier: Apache-2.0
"""The names of files that are parts of one model: which files make a set, and which of them are not there.

``m-00002-of-00003.gguf`` is the second of three (``llama_split_path`` of ggml-org/llama.cpp). What the headers say
goes first, see `weight_readers_gguf.sets`: a file may have been renamed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from weight_readers.errors import AmbiguousCheckpointError, CheckpointError, MissingShardError, UnreadableFileError

MAX_FILES = 65_535
"""Files of a set. llama.cpp and the gguf package write ``split.count`` in 16 bits; names could count to 99999."""

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<files>[0-9]{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_SHOWN = 5
_GET_ALL = "Download all files of the set into one folder"


class PartName(NamedTuple):
    """What the name of a file says: that it is the file ``number``, from 1 on, of a set of ``files``."""

    folder: str
    stem: str
    number: int
    files: int
    suffix: str

    @property
    def can_be_true(self) -> bool:
        return 1 <= self.number <= self.files <= MAX_FILES

    def name(self, number: int) -> str:
        """The name of another file of the set."""
        return f"{self.stem}-{number:05d}-of-{self.files:05d}{self.suffix}"

    def path(self, number: int) -> str:
        return os.path.join(self.folder, self.name(number))


def part_name(path: str) -> PartName | None:
    """What the name of ``path`` says of its set, true or not; None where it speaks of no set."""
    folder, name = os.path.split(path)
    match = _NAME.fullmatch(name)
    return match and PartName(folder, match["stem"], int(match["number"]), int(match["files"]), match["suffix"])


def split_siblings(path: str | os.PathLike[str]) -> list[str]:
    """The files of the set that ``path`` belongs to by its name, in order; ``[path]`` where it is no such name.

    Raises MissingShardError naming the files of the set that do not lie beside it.
    """
    given = os.fspath(path)
    part = part_name(given)
    if part is None or part.files == 1 or not part.can_be_true:
        return [given]
    numbers, present = range(1, part.files + 1), _beside(given)
    missing = [number for number in numbers if part.name(number) not in present]
    if missing:
        raise MissingShardError(
            f"{len(missing)} of the {part.files} files of the set are not there",
            path=given,
            expected=_some(map(part.name, missing), len(missing)),
            fix=_GET_ALL,
        )
    return [part.path(number) for number in numbers]


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


def _some(words: Iterable[str], count: int) -> str:
    """The first of ``count`` words, of which no more are made, and how many more there are."""
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    return ", ".join(islice(words, _SHOWN)) + more


def name_problems(paths: Iterable[str]) -> Iterator[CheckpointError]:
    """What is wrong with files that nothing but their names makes parts of a set.

    All known writers say it in the header too. Of a file that does not, nobody can tell half a model from a whole one
    under a misleading name: it is read with all others of its set, or not at all.
    """
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for path in paths:
        part = part_name(path)
        if part is not None and not part.can_be_true:
            yield _untrue(path, part)
        elif part is not None:
            sets.setdefault((part.stem, part.files), {}).setdefault(part.number, path)
    for (_, files), given in sets.items():
        if len(given) < files:
            what = f"by its name the file is one of {files}, of which {files - len(given)} were not given"
            yield not_given(
                what, next(iter(given.values())), given, files, or_else="; rename it if it is a whole model"
            )


def _untrue(path: str, part: PartName) -> CheckpointError:
    return AmbiguousCheckpointError(
        f"by its name the file is number {part.number} of {part.files}, which cannot be, and its header speaks of "
        "no set: it may be a part of a model or a whole one",
        path=path,
        expected=f"a number from 00001 on, of at most {MAX_FILES}",
        found=part.name(part.number),
        fix="Rename it if it is a whole model, else download all files of the set again",
    )


def not_given(what: str, path: str, given: Collection[int], files: int, *, or_else: str = "") -> CheckpointError:
    """The error for a set of ``files`` of which only the numbers ``given``, from 1 on, are to be read, as ``path`` is.

    It tells whether the others lie beside it or have to be fetched.
    """
    part = part_name(path)
    named = part if part is not None and part.can_be_true and part.files == files else None
    missing = [number for number in range(1, files + 1) if number not in given]
    words = (named.path(number) if named else f"file {number} of {files}" for number in missing)
    there = named is not None and all(os.path.exists(named.path(number)) for number in missing)
    return MissingShardError(
        what,
        path=path,
        expected=_some(words, len(missing)),
        fix=("They lie beside it: give all files of the set" if there else _GET_ALL) + or_else,
    )
