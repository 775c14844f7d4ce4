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
    ├── SliceError (IndexError)
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

from weight_readers._caller_errors import ConfigError, TargetMismatchError
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
    SliceError,
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
from weight_readers._error import WeightReadersError
from weight_readers._plugin_errors import (
    DuplicateReaderError,
    FormatConflictError,
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    ReaderUnavailableError,
)
from weight_readers._selection_errors import (
    BudgetInfeasibleError,
    NoSuitableQuantMethodError,
    NoSuitableReaderError,
    ReaderFallbackWarning,
    UnknownReaderError,
)

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
    "SliceError",
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
