# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with the files of a checkpoint. The tree is drawn in `weight_readers.errors`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from weight_readers._error import WeightReadersError

if TYPE_CHECKING:
    from weight_readers.tensors import TensorMeta

_MADE_AGAIN = "Download the file again, or write it again with the tool that made it"


class CheckpointError(WeightReadersError, ValueError):
    """Something is wrong with the files of a checkpoint.

    ``path`` is the file as the caller named it, ``tensor`` the tensor where there is one; ``expected`` and
    ``found`` are said wherever two things were compared. ``partial`` holds the tensors that could be listed
    before the fault, so that a damaged file can still be shown; ``written`` names the caller's tensors that were
    filled before it.
    """

    usual_fix: ClassVar[str | None] = None
    """What mends it where whoever found it knows of nothing better."""

    partial: tuple[TensorMeta, ...] = ()
    written: tuple[str, ...] = ()

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str],
        tensor: str | None = None,
        expected: object = None,
        found: object = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, fix=fix or self.usual_fix)
        self.path = os.fspath(path)
        self.tensor = tensor
        self.expected = expected
        self.found = found

    @property
    def problems(self) -> tuple[CheckpointError, ...]:
        """The single problems behind this error: itself, unless it is a `CheckpointProblems`."""
        return (self,)

    def __str__(self) -> str:
        where = self.path if self.tensor is None else f"{self.path}, tensor {self.tensor!r}"
        compared = [
            f"{word} {value}"
            for word, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        return (
            f"{self.what}: {where}"
            + (f" ({', '.join(compared)})" if compared else "")
            + (f". {self.fix}" if self.fix else "")
            + (f". {len(self.written)} targets were written before it" if self.written else "")
        )

    def to_json(self) -> dict[str, Any]:
        """The error as plain data, for ``--json`` outputs and logs."""
        fields = ("what", "path", "tensor", "expected", "found", "fix")
        values = {name: getattr(self, name) for name in fields}
        plain = {k: v if v is None or isinstance(v, (int, str)) else str(v) for k, v in values.items()}
        return {"error": type(self).__name__, **plain}


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """Nothing is at the path the caller gave."""


class UnreadableFileError(CheckpointError, OSError):
    """The file is there and cannot be opened or read (permission, a folder, an I/O error)."""


class EmptyFileError(CheckpointError):
    """The file has 0 bytes: a downloader made it and never filled it."""

    usual_fix = _MADE_AGAIN


class LfsPointerError(CheckpointError):
    """The file is a git-lfs pointer: the text that stands for a file which was never fetched."""


class ForeignContentError(CheckpointError):
    """The content is of another format than the one it is read as."""


class UnsafePickleError(CheckpointError):
    """The file asks for code to be imported or run, which is never done."""


class TruncatedFileError(CheckpointError):
    """The file ends before its own header says it does."""

    usual_fix = _MADE_AGAIN


class TrailingBytesError(CheckpointError):
    """The file goes on after the last byte its header accounts for."""

    usual_fix = _MADE_AGAIN


class HeaderError(CheckpointError):
    """The header is malformed: its length, its encoding, its JSON, or the type of a field."""

    usual_fix = _MADE_AGAIN


class UnknownDtypeError(CheckpointError):
    """The header names a dtype that the format does not have."""


class UnsupportedDtypeError(CheckpointError):
    """The format has the dtype and the installed torch does not."""


class ShapeError(CheckpointError):
    """A shape that no tensor can have: too many dimensions, or a product that overflows."""

    usual_fix = _MADE_AGAIN


class TensorLayoutError(CheckpointError):
    """Byte ranges that disagree with the shapes or with each other: wrong size, gap or overlap."""

    usual_fix = _MADE_AGAIN


class DuplicateTensorError(CheckpointError):
    """One tensor name twice, in one file or in two."""


class MissingTensorError(CheckpointError, LookupError):
    """A tensor that was asked for, or that the index promises, is not in the files."""


class SliceError(CheckpointError, IndexError):
    """A part of a tensor that cannot be had: of a dimension that is not there, or of half of what is stored as one."""


class MissingShardError(CheckpointError, FileNotFoundError):
    """A shard that the index or the numbering promises is not there."""


class BadIndexError(CheckpointError):
    """The index file is not an index."""


class UnsafePathError(CheckpointError):
    """A file name in an index that leads out of the checkpoint's folder."""


class AmbiguousCheckpointError(CheckpointError):
    """The folder holds more than one checkpoint and nothing says which one is meant."""


class EmptyWeightsError(CheckpointError):
    """Every weight has zero elements: placeholders were saved in place of the weights."""


class FileChangedError(CheckpointError):
    """The file was written to while it was being read."""


class DigestMismatchError(CheckpointError):
    """The content does not have the digest its reference promises."""


class TiedWeightsError(CheckpointError):
    """Two names that share one parameter hold different values in the checkpoint."""


class AdapterError(CheckpointError):
    """A tensor that an adapter cannot take, or one that it made otherwise than it said."""


class CheckpointProblems(CheckpointError):
    """Several problems, each a `CheckpointError` of its own, in ``problems``."""

    def __init__(self, problems: Iterable[CheckpointError], *, path: str | os.PathLike[str]) -> None:
        self._problems = tuple(problems)
        super().__init__(f"{len(self._problems)} problems", path=path)

    @property
    def problems(self) -> tuple[CheckpointError, ...]:
        return self._problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  - {problem}" for problem in self._problems)])

    @classmethod
    def raise_any(cls, problems: Iterable[CheckpointError], *, path: str | os.PathLike[str]) -> None:
        """Raise nothing for no problem, the problem itself for one, and all of them together for more."""
        found = tuple(problems)
        if len(found) == 1:
            raise found[0]
        if found:
            raise cls(found, path=path)
