# SPDX-License-Identifier: Apache-2.0
"""Every error of weight-readers.

WeightReadersError
├── UnknownReaderError (ValueError)            no reader and no plugin of ours has that name
├── DuplicateReaderError (LookupError)         two distributions claim one name
├── NoSuitableReaderError (LookupError)        none of the installed readers fits the request
├── NoSuitableQuantMethodError (LookupError)   no quant method for that weight type and device
├── ReaderUnavailableError (ImportError)       known, and not usable here
│   ├── PluginLoadError                        its module raises when imported, or its backend does
│   ├── PluginContractError                    it breaks the hook contract
│   └── PluginVersionError                     it was written for another API version
├── TargetMismatchError (ValueError)           the weights do not fit the module they are loaded into
└── CheckpointError (ValueError)               always: path, tensor, expected, found, fix
    ├── CheckpointNotFoundError (FileNotFoundError)
    ├── UnreadableFileError (OSError)
    ├── EmptyFileError
    ├── LfsPointerError
    ├── ForeignContentError
    ├── TruncatedFileError
    ├── TrailingBytesError
    ├── HeaderError
    ├── UnknownDtypeError
    ├── UnsupportedDtypeError
    ├── ShapeError
    ├── TensorLayoutError
    ├── DuplicateTensorError
    ├── MissingTensorError (LookupError)
    ├── MissingShardError (FileNotFoundError)
    ├── BadIndexError
    ├── UnsafePathError
    ├── AmbiguousCheckpointError
    ├── EmptyWeightsError
    ├── FileChangedError
    ├── DigestMismatchError
    ├── TiedWeightsError
    └── CheckpointProblems                     several of the above at once

ReaderFallbackWarning (UserWarning)            another reader than the one asked for is used

Every error pickles with its fields, so that it crosses a process boundary whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weight_readers.reader import TensorMeta
    from weight_readers.selection import Selection


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    # A class that is both a ValueError and an OSError is laid out as the latter, and only that one can make it.
    make = OSError.__new__ if issubclass(cls, OSError) else cls.__new__
    error = make(cls, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class _Pickles:
    """Pickling by fields: BaseException's own way calls ``__init__`` with ``args`` and loses keywords."""

    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # ImportError keeps ``name`` in a C slot, outside of __dict__.
        slots = {"name": self.name} if isinstance(self, ImportError) else {}
        return _rebuild, (type(self), self.args, {**slots, **self.__dict__})


class WeightReadersError(_Pickles, Exception):
    """Base of every error raised on purpose by weight-readers and its plugins.

    ``what`` says what happened and to what; ``fix`` is the one command or change that mends it.
    """

    what: str
    fix: str | None

    def __init__(self, what: str, *, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return self.what if self.fix is None else f"{self.what}. {self.fix}"


class UnknownReaderError(WeightReadersError, ValueError):
    """No installed reader and no plugin of this project has the requested ``name``."""

    def __init__(self, name: str, *, available: Sequence[str], fix: str | None = None) -> None:
        super().__init__(f"unknown weight reader {name!r}; available: {list(available)}", fix=fix)
        self.name = name
        self.available = tuple(available)


class DuplicateReaderError(WeightReadersError, LookupError):
    """Two distributions register one reader (or quant method) ``name``: neither is used."""

    def __init__(self, name: str, *, distributions: Sequence[str], fix: str | None = None) -> None:
        owners = " and ".join(distributions)
        super().__init__(
            f"the name {name!r} is registered by more than one distribution: {owners}",
            fix=fix or "Uninstall all but one of them",
        )
        self.name = name
        self.distributions = tuple(distributions)


class ReaderUnavailableError(WeightReadersError, ImportError):
    """Reader ``name`` (a reader, not a module as in other ImportErrors) is known and cannot be used here.

    ``reason`` says why without naming the reader, ``code`` is that in machine-readable form (a code of
    `Rejected`), and ``selection`` is the whole outcome, where a selection led here.
    """

    def __init__(
        self,
        what: str,
        *,
        name: str,
        reason: str | None = None,
        fix: str | None = None,
        code: str | None = None,
        distribution: str | None = None,
        selection: Selection | None = None,
    ) -> None:
        super().__init__(what, fix=fix)
        self.name: str = name
        self.reason = what if reason is None else reason
        self.code = code
        self.distribution = distribution
        self.selection = selection


class PluginLoadError(ReaderUnavailableError):
    """The plugin (or the backend behind it) is installed and raises when it is imported."""


class PluginContractError(ReaderUnavailableError):
    """The plugin imports, and does not keep the contract of the hooks."""


class PluginVersionError(ReaderUnavailableError):
    """The plugin was written for an API version that this core does not speak."""


class NoSuitableReaderError(WeightReadersError, LookupError):
    """No installed reader fits the request; ``selection`` lists each candidate with its reason."""

    def __init__(self, what: str, *, selection: Selection, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.selection = selection


class NoSuitableQuantMethodError(WeightReadersError, LookupError):
    """No installed quant method computes with ``weight_type`` on ``device_type``."""

    def __init__(self, weight_type: str, device_type: str, *, available: Sequence[str], fix: str | None = None) -> None:
        offered = "; available: " + ", ".join(available) if available else "; none is installed"
        super().__init__(f"no quant method for weight type {weight_type!r} on device {device_type!r}{offered}", fix=fix)
        self.weight_type = weight_type
        self.device_type = device_type
        self.available = tuple(available)


class TargetMismatchError(WeightReadersError, ValueError):
    """The checkpoint and the module or mapping it is loaded into do not match; nothing was written.

    ``missing`` are names the target wants and the checkpoint lacks, ``unexpected`` names it has and the
    target lacks, ``shapes`` and ``dtypes`` are ``(name, in the checkpoint, in the target)``.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str | None = None,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        shapes: Iterable[tuple[str, str, str]] = (),
        dtypes: Iterable[tuple[str, str, str]] = (),
    ) -> None:
        super().__init__(what, fix=fix)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.shapes = tuple(shapes)
        self.dtypes = tuple(dtypes)


class CheckpointError(WeightReadersError, ValueError):
    """Something is wrong with the files of a checkpoint.

    ``path`` is the file as the caller named it, ``tensor`` the tensor where there is one; ``expected`` and
    ``found`` are said wherever two things were compared. ``partial`` holds the tensors that could be listed
    before the fault, so that a damaged file can still be shown; ``written`` names the caller's tensors that were
    filled before it.
    """

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
        super().__init__(what, fix=fix)
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


class LfsPointerError(CheckpointError):
    """The file is a git-lfs pointer: the text that stands for a file which was never fetched."""


class ForeignContentError(CheckpointError):
    """The content is of another format than the one it is read as."""


class TruncatedFileError(CheckpointError):
    """The file ends before its own header says it does."""


class TrailingBytesError(CheckpointError):
    """The file goes on after the last byte its header accounts for."""


class HeaderError(CheckpointError):
    """The header is malformed: its length, its encoding, its JSON, or the type of a field."""


class UnknownDtypeError(CheckpointError):
    """The header names a dtype that the format does not have."""


class UnsupportedDtypeError(CheckpointError):
    """The format has the dtype and the installed torch does not."""


class ShapeError(CheckpointError):
    """A shape that no tensor can have: too many dimensions, or a product that overflows."""


class TensorLayoutError(CheckpointError):
    """Byte ranges that disagree with the shapes or with each other: wrong size, gap or overlap."""


class DuplicateTensorError(CheckpointError):
    """One tensor name twice, in one file or in two."""


class MissingTensorError(CheckpointError, LookupError):
    """A tensor that was asked for, or that the index promises, is not in the files."""


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


class ReaderFallbackWarning(_Pickles, UserWarning):
    """Reader ``used`` stands in for ``asked``: the caller's word, or the policy's pick that failed to start."""

    def __init__(self, *, asked: str, used: str, reason: str, fix: str | None = None) -> None:
        self.asked = asked
        self.used = used
        self.reason = reason
        self.fix = fix
        why = f"{reason}. {fix}" if fix else reason
        super().__init__(f"weight reader {used!r} is used in place of {asked!r}: {why}")
