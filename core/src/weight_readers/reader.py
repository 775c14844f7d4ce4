# SPDX-License-Identifier: Apache-2.0
"""What a reader is: two protocols, and the small values that cross them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from weight_readers import _schema
from weight_readers._schema import Schema
from weight_readers.capabilities import ReaderInfo
from weight_readers.slices import TensorPart
from weight_readers.tensors import TensorMeta, TensorTable

if TYPE_CHECKING:
    from torch import Tensor

    from weight_readers.selection import Selection

Files = Sequence[str | os.PathLike[str]]
"""The files of one checkpoint (paths or URIs). Readers take them in natural order whatever order they come in."""

KeyFilter = Callable[[str], bool]
"""Called with each checkpoint name; a falsy answer skips the tensor before its bytes are read."""


@dataclass(frozen=True, kw_only=True)
class FileMeta(Schema):
    """One file: its size, the bytes its header takes, and the metadata it carries besides tensors.

    ``header_bytes`` is at least what lies before the first tensor and at most all that is no tensor's.

    ``notices`` are sentences that a person should read of a file that is read all the same; each names the file.
    """

    path: str
    format: str
    nbytes: int
    header_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "notices", tuple(self.notices))


class CheckpointMeta(TensorTable):
    """Checkpoint name -> `TensorMeta` in natural shard order, and ``files`` with one `FileMeta` each.

    A mapping that is equal to the dict of its items, and is not written to; of a `TensorTable` it takes the columns.
    """

    def __init__(self, tensors: Mapping[str, TensorMeta], files: Sequence[FileMeta]) -> None:
        super().__init__(tensors)
        self.files = tuple(files)

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointMeta, (TensorTable(self), self.files)


@dataclass(frozen=True, kw_only=True)
class ReadStats(Schema):
    """What a read has cost so far: tensors handed out, payload bytes wanted in all and read until now.

    For a mapped tensor its bytes count as read when the view is handed out. ``copied`` counts tensors that had to
    be copied although the reader yields views (unaligned ones). ``decisions`` are sentences: what a reader that was
    left the choice decided on, and the fact that it decided by.
    """

    tensors: int = 0
    bytes_wanted: int = 0
    bytes_read: int = 0
    copied: int = 0
    decisions: tuple[str, ...] = field(default=(), compare=False, metadata={"coerce": _schema.ordered_names})


Progress = Callable[[ReadStats], None]
"""Called with the running totals of one read; the last call holds the final ones."""


@runtime_checkable
class WeightReader(Protocol):
    """A backend that turns files into tensors.

    Core sets ``selection`` on the reader it returns. Both methods check every file's header before the first
    byte of a tensor is read and raise `CheckpointError` for what is wrong.
    """

    info: ReaderInfo
    selection: Selection | None

    def read_meta(self, files: Files) -> CheckpointMeta:
        """Read headers only. Raises `CheckpointProblems` naming every file that is wrong."""
        ...

    def iter_weights(
        self,
        files: Files,
        *,
        device: str = "cpu",
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        clone_tensors: bool = True,
        on_progress: Progress | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield ``(name, tensor)`` in the declared order; closing the generator stops all work.

        ``clone_tensors=True`` promises that a tensor stays valid and unchanged after the iterator moves on.
        `OWNED` and `MAPPED` readers keep that without copying; False lifts the promise.
        """
        ...


@runtime_checkable
class ReadsInto(Protocol):
    """What `Feature.READ_INTO` promises."""

    def read_into(
        self,
        files: Files,
        targets: Mapping[str, Tensor],
        *,
        slices: Mapping[str, TensorPart] | None = None,
        on_progress: Progress | None = None,
    ) -> ReadStats:
        """Fill the caller's tensors. A dtype or shape that does not match is refused before any write.

        In a reader of order `FILE_OFFSET` the first targets by file and offset, as many as ``on_progress`` is told of,
        are whole and written no more: they may be looked at meanwhile.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StoredFile(Schema):
    """One name in a folder of a store: the path a reader takes, and the size in bytes, None for a folder."""

    name: str
    path: str
    nbytes: int | None


@dataclass(frozen=True, kw_only=True)
class StoredDigest(Schema):
    """What a store itself says of a file's content: hex digits ``value`` by ``algorithm`` (`sha256`, `crc64nvme`, …).

    Both are None where there is nothing to compare with; ``remark`` says why, or where the value comes from.
    """

    algorithm: str | None = None
    value: str | None = None
    remark: str


@runtime_checkable
class DigestsFiles(Protocol):
    """What `Feature.DIGESTS` promises: contents in the reader's stores can be compared with a digest."""

    def stored_digest(self, path: str) -> StoredDigest:
        """The digest of the whole content that the store keeps, if any. Raises CheckpointError."""
        ...

    def digest(self, path: str, algorithm: str, *, on_bytes: Callable[[int], None] | None = None) -> str:
        """Hex digits, of the bytes as they arrive, all of one state of the file.

        ``on_bytes`` is called with the size of each piece. Raises CheckpointError, and ValueError for an algorithm
        that is not known.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FileVersion(Schema):
    """What tells two contents of a stored file apart: its size in bytes, and the store's own word (an ETag)."""

    nbytes: int
    tag: str


@runtime_checkable
class FetchesRanges(Protocol):
    """What `Feature.FETCHES` promises: bytes of files in its stores, whatever their format."""

    def version(self, path: str) -> FileVersion:
        """The file as it is now. Raises CheckpointError."""
        ...

    def fetch(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        write: Callable[[int, memoryview], None],
        *,
        version: FileVersion,
    ) -> None:
        """Call ``write`` with an offset and the bytes there, until every ``(offset, length)`` of ``ranges`` is given.

        In any order, each byte once, in this thread; the memory is the reader's again afterwards. Raises
        CheckpointError, and FileChangedError where the file is not in ``version`` when all has arrived.
        """
        ...


@runtime_checkable
class ListsFiles(Protocol):
    """What `Feature.LISTS` promises: the reader can look around where its files lie (an object store)."""

    def list_folder(self, folder: str) -> Sequence[StoredFile]:
        """What lies directly in a folder; empty where there is none. Raises CheckpointError."""
        ...

    def read_start(self, path: str, limit: int) -> bytes:
        """The first ``limit`` bytes of a file, or all if it has fewer. Raises CheckpointError."""
        ...

    def place(self, path: str) -> Mapping[str, str]:
        """The settings that count for ``path`` (endpoint, region, …), in words and without secrets."""
        ...
