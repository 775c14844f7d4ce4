# SPDX-License-Identifier: Apache-2.0
"""What an author says of a reader and its format, and what the tests make of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

import weight_readers
from weight_readers import Feature, ReaderInfo, WeightReader
from weight_readers_testkit.counters import bytes_touched, nothing_left_open
from weight_readers_testkit.elsewhere import Case
from weight_readers_testkit.faults import Fault
from weight_readers_testkit.tensors import Stored, installed, noise, stored

MIB = 1 << 20
LOCAL = "file"
ODD_NAMES = ("", " ", "ß.weight", "重み", "a\tb", 'quote"d', "back\\slash", "../up", "x" * 5000, "\N{PILE OF POO}")
EVERYDAY = "float32"
"""The dtype of all tensors that are not about dtypes; every format holds it."""


class Subject:
    """The reader under test. Required are ``reader_name``, ``dtypes`` and `write`; all else has a default.

    reader_name: the name of its entry point.
    dtypes: names of the torch dtypes that its files hold, ``float32`` among them.
    file_format: one of the formats it declares; the only one by default.
    suffix: of the files; ``.<format>`` by default.
    scheme: of the place where the reader finds the files. With any but ``file`` the tests are held over a store:
        `reference` and `counted` are required then, and a fixture ``tmp_path`` of folders that its server shows.
    options: what its constructor gets.
    names: what tensors may be called; a subset of the default where the format limits names.
    scalars, empty, no_tensors: whether a file can hold tensors of shape ``[]``, tensors without elements, and none.
    packed: quantized types of a reader that declares `PACKED`, each with the elements and bytes of a block.
    bulk: bytes of the checkpoint by which reads and memory are counted; ``memory_bound`` is what a reader that declares
        `BOUNDED_MEMORY` may hold of it, with ``bounded_options`` in place of ``options`` where those are given.
    many: how many tensors there are in the file of many.
    """

    reader_name: ClassVar[str]
    dtypes: ClassVar[Collection[str]]
    file_format: ClassVar[str | None] = None
    suffix: ClassVar[str | None] = None
    scheme: ClassVar[str] = LOCAL
    options: ClassVar[Mapping[str, Any]] = {}
    names: ClassVar[Sequence[str]] = ODD_NAMES
    scalars: ClassVar[bool] = True
    empty: ClassVar[bool] = True
    no_tensors: ClassVar[bool] = True
    packed: ClassVar[Mapping[str, tuple[int, int]]] = {}
    bulk: ClassVar[int] = 24 * MIB
    memory_bound: ClassVar[int] = 8 * MIB
    bounded_options: ClassVar[Mapping[str, Any] | None] = None
    many: ClassVar[int] = 3000

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        """Write a valid file with these tensors, in this order, without the reader or any code of it."""
        raise NotImplementedError(f"{type(self).__name__} has no write(): the function that makes its test files")

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        """Write a valid file that lists the tensors in the order of ``names``; their bytes lie in that of ``tensors``.

        Optional: without it nothing tells a reader of order `HEADER` from one of `FILE_OFFSET`.
        """
        pytest.skip("no write_listed() writes a file that lists its tensors in another order than their bytes have")

    def faults(self) -> Mapping[str, Fault | str]:
        """Files that are wrong in this format's own ways.

        A name of the kit's own replaces that fault; text in place of a `Fault` is the reason why it is none here.
        """
        return {}

    def reference(self, path: Path) -> str:
        """What the reader is given for the file at ``path``: its path as text, or its URI in a store."""
        if self.scheme != LOCAL:
            raise NotImplementedError(f"{type(self).__name__} has no reference(): the URI of a file that was written")
        return str(path)

    def counted(self, path: Path, action: Callable[[], object]) -> int:
        """How many bytes of the file at ``path`` the action brings here: by the kernel, or by the server of a store."""
        if self.scheme != LOCAL:
            raise NotImplementedError(f"{type(self).__name__} has no counted(): what its server sends meanwhile")
        return bytes_touched(str(path), action)

    # --- what the tests use ------------------------------------------------------------------------------------

    @classmethod
    def info(cls) -> ReaderInfo:
        """What the reader declares before it is made."""
        return weight_readers.describe_reader(cls.reader_name)

    @classmethod
    def format(cls) -> str:
        if cls.file_format is not None:
            return cls.file_format
        formats = sorted(cls.info().formats)
        if len(formats) != 1:
            raise ValueError(f"{cls.__name__}.file_format must say which of the formats {formats} its files have")
        return formats[0]

    @classmethod
    def make(cls, options: Mapping[str, Any] | None = None) -> WeightReader:
        """A fresh reader, through core as any caller gets it."""
        return weight_readers.select_weight_reader(
            requested=cls.reader_name,
            format=cls.format(),
            schemes={cls.scheme},
            strict=True,
            options=dict(cls.options if options is None else options),
        )

    def need(self, feature: Feature) -> WeightReader:
        """A fresh reader; the test is skipped where it does not declare the feature."""
        reader = self.make()
        if feature not in reader.info.features:
            pytest.skip(f"{feature.value} is not declared")
        return reader

    def need_files(self, what: str) -> None:
        """The test is skipped over a store, which has no ``what``."""
        if self.scheme != LOCAL:
            pytest.skip(f"a store has no {what}")

    def path(self, folder: Path, name: str = "model-1") -> Path:
        """Where `file` writes."""
        suffix = f".{self.format()}" if self.suffix is None else self.suffix
        return folder / f"{name}{suffix}"

    def file(self, folder: Path, tensors: Mapping[str, Stored], name: str = "model-1") -> str:
        """Write one file; returns what the reader is given for it."""
        path = self.path(folder, name)
        self.write(path, tensors)
        return self.reference(path)

    def shards(self, folder: Path, count: int, tensors: int = 2) -> list[str]:
        """Files ``model-1`` … without leading zeros, with tensors ``s<shard>.t<number>`` of [3, 5] each."""
        return [self.file(folder, self.shard(number, tensors), f"model-{number}") for number in range(1, count + 1)]

    @staticmethod
    def shard(number: int, tensors: int = 2) -> dict[str, Stored]:
        """What `shards` writes into the file ``number``."""
        return {f"s{number}.t{each}": stored(EVERYDAY, 3, 5, seed=(number, each)) for each in range(tensors)}

    def bulky(self, folder: Path) -> tuple[str, dict[str, Stored]]:
        """One file of ``bulk`` bytes in 12 tensors, and between the halves of it the small tensor ``small``."""
        each = self.bulk // 12
        data = noise(each)
        tensors = {f"bulk{number}": Stored(EVERYDAY, (each // 4096, 1024), data) for number in range(12)}
        middle = {"small": stored(EVERYDAY, 16, 1024)}
        halves = list(tensors.items())
        tensors = {**dict(halves[:6]), **middle, **dict(halves[6:])}
        return self.file(folder, tensors), tensors

    def case(self, files: list[str]) -> Case:
        """What a process of its own needs to read the files with this reader."""
        return Case(self.reader_name, self.format(), self.scheme, self.options, files)

    def nothing_left_open(self) -> AbstractContextManager[None]:
        """What the block opens has to be closed after it; clients of stores keep connections for the next request."""
        return nothing_left_open(but=None if self.scheme == LOCAL else "socket:")

    def held(self) -> list[str]:
        """The dtypes of the format that the installed torch has."""
        return installed(self.dtypes)

    @pytest.fixture(autouse=True)
    def _usable(self, request: pytest.FixtureRequest) -> None:
        """One clear failure of the tests about registration, and not one of every other test with it."""
        unusable = _why_unusable(self.make)
        if unusable is not None and request.node.get_closest_marker("weight_readers_gate") is None:
            pytest.skip(f"the reader cannot be used: {unusable}")


@cache
def _why_unusable(make: Callable[[], WeightReader]) -> str | None:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
