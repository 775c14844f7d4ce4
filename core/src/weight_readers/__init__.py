# SPDX-License-Identifier: Apache-2.0
"""weight-readers: every reader of model weights is a plugin, and one policy picks the right one and says why.

    >>> import weight_readers
    >>> weight_readers.available_reader_names()  # doctest: +SKIP
    ['safetensors']
    >>> reader = weight_readers.select_weight_reader(format="safetensors")  # doctest: +SKIP
    >>> print(reader.selection.explain())  # doctest: +SKIP

Importing this package loads the standard library, pluggy and importlib_metadata, and scans nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from weight_readers import _select
from weight_readers.capabilities import (
    API_VERSION,
    Alignment,
    Declined,
    Feature,
    Lifetime,
    Order,
    QuantMethodInfo,
    ReaderInfo,
    Request,
    Requirement,
    Writes,
)
from weight_readers.environment import Environment
from weight_readers.errors import (
    AdapterError,
    AmbiguousCheckpointError,
    BadIndexError,
    BudgetInfeasibleError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    ConfigError,
    DigestMismatchError,
    DistributedError,
    DuplicateReaderError,
    DuplicateTensorError,
    EmptyFileError,
    EmptyWeightsError,
    FileChangedError,
    ForeignContentError,
    FormatConflictError,
    HeaderError,
    LfsPointerError,
    MissingShardError,
    MissingTensorError,
    NoSuitableQuantMethodError,
    NoSuitableReaderError,
    PlanMismatchError,
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    RankFailedError,
    RankLaggingError,
    RankLostError,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    ShapeError,
    SliceError,
    TargetMismatchError,
    TensorLayoutError,
    TiedWeightsError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownDtypeError,
    UnknownReaderError,
    UnreadableFileError,
    UnsafePathError,
    UnsafePickleError,
    UnsupportedDtypeError,
    WeightReadersError,
)
from weight_readers.format_table import FormatTable
from weight_readers.formats import FileFormat, Signature
from weight_readers.hookspecs import hookimpl
from weight_readers.policy import Accepted, Rejected
from weight_readers.reader import (
    CheckpointMeta,
    DigestsFiles,
    FetchesRanges,
    FileMeta,
    FileVersion,
    ListsFiles,
    ReadsInto,
    ReadStats,
    StoredDigest,
    StoredFile,
    WeightReader,
)
from weight_readers.registry import Registry
from weight_readers.selection import Candidate, Selection
from weight_readers.slices import TensorPart, TensorSlice
from weight_readers.tensors import TensorMeta

__all__ = [
    "API_VERSION",
    "Accepted",
    "AdapterError",
    "Alignment",
    "AmbiguousCheckpointError",
    "BadIndexError",
    "BudgetInfeasibleError",
    "Candidate",
    "CheckpointError",
    "CheckpointMeta",
    "CheckpointNotFoundError",
    "CheckpointProblems",
    "ConfigError",
    "Declined",
    "DigestMismatchError",
    "DigestsFiles",
    "DistributedError",
    "DuplicateReaderError",
    "DuplicateTensorError",
    "EmptyFileError",
    "EmptyWeightsError",
    "Environment",
    "Feature",
    "FetchesRanges",
    "FileChangedError",
    "FileFormat",
    "FileMeta",
    "FileVersion",
    "ForeignContentError",
    "FormatConflictError",
    "FormatTable",
    "HeaderError",
    "LfsPointerError",
    "Lifetime",
    "ListsFiles",
    "MissingShardError",
    "MissingTensorError",
    "NoSuitableQuantMethodError",
    "NoSuitableReaderError",
    "Order",
    "PlanMismatchError",
    "PluginContractError",
    "PluginLoadError",
    "PluginVersionError",
    "QuantMethodInfo",
    "RankFailedError",
    "RankLaggingError",
    "RankLostError",
    "ReadStats",
    "ReaderFallbackWarning",
    "ReaderInfo",
    "ReaderUnavailableError",
    "ReadsInto",
    "Registry",
    "Rejected",
    "Request",
    "Requirement",
    "Selection",
    "ShapeError",
    "Signature",
    "SliceError",
    "StoredDigest",
    "StoredFile",
    "TargetMismatchError",
    "TensorLayoutError",
    "TensorMeta",
    "TensorPart",
    "TensorSlice",
    "TiedWeightsError",
    "TrailingBytesError",
    "TruncatedFileError",
    "UnknownDtypeError",
    "UnknownReaderError",
    "UnreadableFileError",
    "UnsafePathError",
    "UnsafePickleError",
    "UnsupportedDtypeError",
    "WeightReader",
    "WeightReadersError",
    "Writes",
    "available_quant_methods",
    "available_reader_names",
    "default_registry",
    "describe_reader",
    "explain_selection",
    "file_formats",
    "hookimpl",
    "refresh",
    "registry_report",
    "select_quant_method",
    "select_weight_reader",
]


@cache
def default_registry() -> Registry:
    """The registry behind the functions of this module: everything that is installed in this environment."""
    return Registry()


def available_reader_names() -> list[str]:
    """Names of the readers that are installed and usable here, sorted. Imports no backend."""
    return default_registry().available_reader_names()


def describe_reader(name: str) -> ReaderInfo:
    """What reader ``name`` declares.

    Raises UnknownReaderError (a ValueError), DuplicateReaderError, or ReaderUnavailableError where the reader is
    not installed or its plugin is broken.
    """
    return default_registry().describe_reader(name)


def file_formats() -> FormatTable:
    """How files are told by name and first bytes: the formats of this project, and those of installed plugins."""
    return default_registry().file_formats()


def select_weight_reader(
    *,
    requested: str | None = None,
    needs_key_filter: bool = False,
    request: Request | None = None,
    strict: bool | None = None,
    environment: Environment | None = None,
    registry: Registry | None = None,
    **needs: Any,
) -> WeightReader:
    """Pick a reader for a request and make it; the outcome with all reasons is its ``selection``.

    ``needs`` are fields of `Request` (``format="safetensors"``, ``device="cuda"``, …) on top of ``request``.
    A ``requested`` reader that is known and not usable here is replaced by the format's fallback with a
    `ReaderFallbackWarning`; ``strict=True`` (or ``WEIGHT_READERS_STRICT=1``) raises instead.

    Raises UnknownReaderError (a ValueError) for a name that nobody has, DuplicateReaderError,
    ReaderUnavailableError, NoSuitableReaderError, and whatever ValueError a reader has for a bad option.
    """
    merged = _select.merge_request(request, needs, needs_key_filter=needs_key_filter)
    return (registry or default_registry()).select(merged, requested=requested, strict=strict, environment=environment)


def explain_selection(
    *,
    requested: str | None = None,
    needs_key_filter: bool = False,
    request: Request | None = None,
    strict: bool | None = None,
    environment: Environment | None = None,
    registry: Registry | None = None,
    **needs: Any,
) -> Selection:
    """What `select_weight_reader` would decide, without making a reader or importing a backend.

    Does not raise where none fits: ``chosen`` is None then. An unknown or ambiguous ``requested`` does raise.
    """
    merged = _select.merge_request(request, needs, needs_key_filter=needs_key_filter)
    return (registry or default_registry()).explain(merged, requested=requested, strict=strict, environment=environment)


def available_quant_methods() -> list[QuantMethodInfo]:
    """The quant methods that installed plugins registered. Imports no backend."""
    return default_registry().available_quant_methods()


def select_quant_method(weight_type: str, device_type: str) -> QuantMethodInfo:
    """The quant method for ``weight_type`` (``Q4_K``) on ``device_type`` (``cuda``), never another device's.

    Raises NoSuitableQuantMethodError, or DuplicateReaderError where two distributions offer one.
    """
    return default_registry().select_quant_method(weight_type, device_type)


def registry_report() -> dict[str, Any]:
    """Everything the registry knows, as plain data: installed, disabled, broken, duplicates, missing extras."""
    return default_registry().report()


def refresh() -> None:
    """Forget what was scanned; the next question looks again (after a pip install in a running process)."""
    default_registry().refresh()
