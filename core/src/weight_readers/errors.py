# SPDX-License-Identifier: Apache-2.0
"""Every error of weight-readers.

WeightReadersError
├── UnknownReaderError (ValueError)            no reader and no plugin of ours has that name
├── ConfigError (ValueError)                   an option that nobody has, or that cannot have this value
├── DuplicateReaderError (LookupError)         two distributions claim one name
├── FormatConflictError (LookupError)          two plugins declare one format, or one suffix, differently
├── NoSuitableReaderError (LookupError)        none of the installed readers fits the request
│   └── BudgetInfeasibleError (MemoryError)    those that would read it take more host memory than there is
├── NoSuitableQuantMethodError (LookupError)   no quant method for that weight type and device
├── ReaderUnavailableError (ImportError)       known, and not usable here
│   ├── PluginLoadError                        its module raises when imported, or its backend does
│   ├── PluginContractError                    it breaks the hook contract
│   └── PluginVersionError                     it was written for another API version
├── DistributedError (RuntimeError)            ranks that load together cannot go on; always: rank
│   ├── RankFailedError                        another rank failed with an error that is none of these
│   ├── RankLostError                          a rank died, or nothing is heard of it
│   ├── RankLaggingError (TimeoutError)        a rank is alive and does not get on
│   └── PlanMismatchError (ValueError)         a rank sees another checkpoint than the first one
├── TargetMismatchError (ValueError)           the weights do not fit the module they are loaded into
└── CheckpointError (ValueError)               always: path, tensor, expected, found, fix
    ├── CheckpointNotFoundError (FileNotFoundError)
    ├── UnreadableFileError (OSError)
    ├── EmptyFileError
    ├── LfsPointerError
    ├── ForeignContentError
    ├── UnsafePickleError
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
    ├── AdapterError                           what an adapter makes of tensors, or cannot make
    └── CheckpointProblems                     several of the above at once

ReaderFallbackWarning (UserWarning)            another reader than the one asked for is used

Every error pickles with its fields, so that it crosses a process boundary whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weight_readers._checkpoint_errors import (
    AdapterError,
    AmbiguousCheckpointError,
    BadIndexError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    DigestMismatchError,
    DuplicateTensorError,
    EmptyFileError,
    EmptyWeightsError,
    FileChangedError,
    ForeignContentError,
    HeaderError,
    LfsPointerError,
    MissingShardError,
    MissingTensorError,
    ShapeError,
    TensorLayoutError,
    TiedWeightsError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownDtypeError,
    UnreadableFileError,
    UnsafePathError,
    UnsafePickleError,
    UnsupportedDtypeError,
)
from weight_readers._distributed_errors import (
    DistributedError,
    PlanMismatchError,
    RankFailedError,
    RankLaggingError,
    RankLostError,
)
from weight_readers._error import Pickles, WeightReadersError

if TYPE_CHECKING:
    from weight_readers.selection import Selection

__all__ = [
    "AdapterError",
    "AmbiguousCheckpointError",
    "BadIndexError",
    "BudgetInfeasibleError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointProblems",
    "ConfigError",
    "DigestMismatchError",
    "DistributedError",
    "DuplicateReaderError",
    "DuplicateTensorError",
    "EmptyFileError",
    "EmptyWeightsError",
    "FileChangedError",
    "ForeignContentError",
    "FormatConflictError",
    "HeaderError",
    "LfsPointerError",
    "MissingShardError",
    "MissingTensorError",
    "NoSuitableQuantMethodError",
    "NoSuitableReaderError",
    "PlanMismatchError",
    "PluginContractError",
    "PluginLoadError",
    "PluginVersionError",
    "RankFailedError",
    "RankLaggingError",
    "RankLostError",
    "ReaderFallbackWarning",
    "ReaderUnavailableError",
    "ShapeError",
    "TargetMismatchError",
    "TensorLayoutError",
    "TiedWeightsError",
    "TrailingBytesError",
    "TruncatedFileError",
    "UnknownDtypeError",
    "UnknownReaderError",
    "UnreadableFileError",
    "UnsafePathError",
    "UnsafePickleError",
    "UnsupportedDtypeError",
    "WeightReadersError",
]


class UnknownReaderError(WeightReadersError, ValueError):
    """No installed reader and no plugin of this project has the requested ``name``."""

    def __init__(self, name: str, *, available: Sequence[str], fix: str | None = None) -> None:
        super().__init__(f"unknown weight reader {name!r}; available: {list(available)}", fix=fix)
        self.name = name
        self.available = tuple(available)


class ConfigError(WeightReadersError, ValueError, TypeError):
    """An option that nobody has, that is of another kind or out of range, or that excludes another one.

    Both a ValueError and a TypeError: a file, a variable and a command line have no types to tell these apart.
    ``option`` is its name and ``source`` where it was given, as far as they are known.
    """

    def __init__(
        self, what: str, *, option: str | None = None, source: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what, fix=fix)
        self.option = option
        self.source = source


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


class FormatConflictError(WeightReadersError, LookupError):
    """Two formats claim what a file is told by, or one format is declared in two ways; ``claims`` says by whom."""

    def __init__(self, what: str, *, claims: Iterable[str], fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.claims = tuple(claims)


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


class BudgetInfeasibleError(NoSuitableReaderError, MemoryError):
    """Every reader of these files takes more host memory than the budget; raised before a tensor is read.

    ``needed`` is the least of them, ``budget`` what there is, ``largest_tensor`` one that has to be held at least where
    it is not mapped (None where the request does not say): all in bytes.
    """

    def __init__(
        self,
        what: str,
        *,
        selection: Selection,
        needed: int,
        budget: int,
        largest_tensor: int | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, selection=selection, fix=fix)
        self.needed = needed
        self.budget = budget
        self.largest_tensor = largest_tensor


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


class ReaderFallbackWarning(Pickles, UserWarning):
    """Reader ``used`` stands in for ``asked``: the caller's word, or the policy's pick that failed to start."""

    def __init__(self, *, asked: str, used: str, reason: str, fix: str | None = None) -> None:
        self.asked = asked
        self.used = used
        self.reason = reason
        self.fix = fix
        why = f"{reason}. {fix}" if fix else reason
        super().__init__(f"weight reader {used!r} is used in place of {asked!r}: {why}")
