# SPDX-License-Identifier: Apache-2.0
"""The capability schema: what a reader can do, and what a caller needs.

All classes are frozen and keyword-only, check their fields when made, and go through JSON unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import Any

from weight_readers import _schema
from weight_readers._schema import Schema, optional
from weight_readers.formats import KNOWN_FORMATS, FileFormat

API_VERSION = 1
"""Version of the schema and the hooks. A plugin with a higher number is refused with `PluginVersionError`."""

_LEAST_SIGNATURE = 4
_READER_NAME = re.compile(r"[a-z0-9_]+")


class Feature(str, Enum):
    """What a reader can do beyond yielding every tensor of its files."""

    KEY_FILTER = "key_filter"
    """Skips unwanted tensors *before* any of their bytes are read."""
    FILE_MAPPING = "file_mapping"
    """Yields views of the checkpoint file: pages that the kernel can drop without swap."""
    SLICES = "slices"
    """Reads only the part of a tensor that was asked for, by a slice of one dimension."""
    MULTI_SLICES = "multi_slices"
    """Besides `SLICES`: reads only what slices of several dimensions have in common. Others are never handed them."""
    READ_INTO = "read_into"
    """Reads straight into the caller's tensors (the `ReadsInto` protocol)."""
    LISTS = "lists"
    """Shows what lies in a folder of its stores (the `ListsFiles` protocol)."""
    DIGESTS = "digests"
    """Compares contents in its stores with digests (the `DigestsFiles` protocol)."""
    FETCHES = "fetches"
    """Brings bytes of files of its stores here, whatever their format (the `FetchesRanges` protocol)."""
    PACKED = "packed"
    """Yields quantized blocks as they are stored, ``uint8 [rows, row_bytes]``."""
    CONCURRENT = "concurrent"
    """Reads with several threads or requests in flight."""
    BOUNDED_MEMORY = "bounded_memory"
    """Holds at most a stated number of bytes of its own, however large the files are.

    Beyond what the consumer of `iter_weights` keeps, and beyond the targets of `ReadsInto.read_into`. Views of a file
    are not its own. The number stands in the reader's documentation, and as ``memory_bound`` in its tests.
    """
    DIRECT_IO = "direct_io"
    """Bypasses the page cache by default: cached files are read from storage again."""
    DISTRIBUTED = "distributed"
    """Shares the reading among the ranks of a process group that the caller passes."""


class Lifetime(str, Enum):
    """How long a yielded tensor stays valid."""

    OWNED = "owned"
    """For ever: its memory is its own."""
    MAPPED = "mapped"
    """While any view of the file lives, and as long as nobody changes the file."""
    UNTIL_NEXT = "until_next"
    """Until the iterator moves on; ``clone_tensors=True`` makes it owned."""


class Order(str, Enum):
    """The order in which `iter_weights` yields; shards always come in natural order."""

    FILE_OFFSET = "file-offset"
    HEADER = "header"
    COMPLETION = "completion"


class Alignment(str, Enum):
    """What a consumer may assume of a yielded tensor's address."""

    NATURAL = "natural"
    """A multiple of the element size: a tensor that lies unaligned in the file is copied."""
    FILE = "file"
    """Whatever the file has: kernels that need alignment must check."""


class Writes(str, Enum):
    """What happens when the consumer writes into a yielded tensor."""

    OWN = "own"
    """It is the consumer's memory."""
    COPY_ON_WRITE = "copy_on_write"
    """The page becomes anonymous memory of the process; the file is never changed."""
    READ_ONLY = "read_only"
    """The process dies: the pages are mapped without write permission."""


TUNABLE = {
    "num_threads": "threads that read, a whole number of at least 1",
    "prefetch": "threads that read ahead of the consumer of a mapping, a whole number of at least 0",
}
"""Options that policy sets for the case at hand, and what they have to mean in a reader that lets it."""


def _reader_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _READER_NAME.fullmatch(value):
        raise ValueError(f"{name} must match [a-z0-9_]+, not {value!r}")
    return value


def _checked(coerce: _schema.Coercion, **keywords: Any) -> Any:
    return field(metadata={"coerce": coerce}, **keywords)


@dataclass(frozen=True, kw_only=True)
class Requirement(Schema):
    """A backend that a reader imports: its import name, and the distribution that installs it."""

    module: str = _checked(_schema.text)
    distribution: str = _checked(_schema.text)


@dataclass(frozen=True, kw_only=True)
class ReaderInfo(Schema):
    """What a reader declares about itself. Light: building one imports no backend.

    ``name`` equals the entry-point name. ``dtypes`` are torch dtype names without the prefix (``bfloat16``);
    an empty set means every dtype of the formats. ``devices`` are the device types the reader places tensors
    on directly; any other is reached by a copy. ``options`` are the keyword arguments of its constructor.
    ``file_formats`` say how files of those of its ``formats`` are recognised that are no formats of this project.
    ``tunable`` are those that policy may set where the caller does not, in the meaning of `TUNABLE`.
    ``engine_keys`` are the keys of `Request.engine` that its veto reads. ``more_schemes`` are those that it would
    read with another package, each with the command that installs that.
    """

    name: str = _checked(_reader_name)
    api_version: int = _checked(_schema.whole(1), default=API_VERSION)
    summary: str = _checked(_schema.text, default="")
    formats: frozenset[str] = _checked(_schema.names)
    file_formats: tuple[FileFormat, ...] = _checked(_schema.schemas(FileFormat), default=())
    schemes: frozenset[str] = _checked(_schema.names, default=frozenset({"file"}))
    more_schemes: Mapping[str, str] = _checked(_schema.mapping, default_factory=dict, hash=False)
    devices: frozenset[str] = _checked(_schema.names, default=frozenset({"cpu"}))
    dtypes: frozenset[str] = _checked(_schema.names, default=frozenset())
    features: frozenset[Feature] = _checked(_schema.members(Feature), default=frozenset())
    lifetime: Lifetime = _checked(_schema.member(Lifetime))
    order: Order = _checked(_schema.member(Order), default=Order.FILE_OFFSET)
    alignment: Alignment = _checked(_schema.member(Alignment), default=Alignment.NATURAL)
    writes: Writes = _checked(_schema.member(Writes), default=Writes.OWN)
    options: frozenset[str] = _checked(_schema.names, default=frozenset())
    tunable: frozenset[str] = _checked(_schema.names, default=frozenset())
    engine_keys: frozenset[str] = _checked(_schema.names, default=frozenset())
    requires: tuple[Requirement, ...] = _checked(_schema.schemas(Requirement), default=())
    fallback: bool = _checked(_schema.flag, default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if strange := sorted(self.tunable - set(TUNABLE)):
            raise ValueError(f"ReaderInfo.tunable has {strange}: policy sets {sorted(TUNABLE)}")
        if lacking := sorted(self.tunable - self.options):
            raise ValueError(f"ReaderInfo.tunable has {lacking}, which ReaderInfo.options lacks")
        self._check_file_formats()

    def _check_file_formats(self) -> None:
        names = [each.name for each in self.file_formats]
        if len(set(names)) < len(names):
            raise ValueError(f"ReaderInfo.file_formats has a format twice: {names}")
        if lacking := sorted(set(names) - self.formats):
            raise ValueError(f"ReaderInfo.file_formats has {lacking}, which ReaderInfo.formats lacks")
        if ours := sorted(set(names).intersection(each.name for each in KNOWN_FORMATS)):
            raise ValueError(f"ReaderInfo.file_formats has {ours}, which core declares: ReaderInfo.formats is enough")
        for each in self.file_formats:
            if any(len(signature) < _LEAST_SIGNATURE for signature in each.signatures):
                what = f"a signature of fewer than {_LEAST_SIGNATURE} bytes"
                raise ValueError(f"FileFormat {each.name!r} has {what}, which files of other formats would have too")

    @property
    def supports_key_filter(self) -> bool:
        """Whether unwanted tensors are skipped before I/O."""
        return Feature.KEY_FILTER in self.features

    @property
    def retains_file_mapping(self) -> bool:
        """Whether yielded tensors are views that keep the file mapped."""
        return Feature.FILE_MAPPING in self.features


_CONFLICTS = (
    ("file_mapping", "direct_io", "a mapping is the page cache, which direct I/O bypasses"),
    ("file_mapping", "owned", "a mapped tensor depends on its file"),
)
"""Pairs of needs that no reader can meet, refused when the request is made rather than after a download."""


@dataclass(frozen=True, kw_only=True)
class Request(Schema):
    """What the caller needs of a reader. Everything is optional; an empty request fits any reader.

    ``bytes_wanted`` counts bytes after filter and slices, ``largest_tensor`` those of the largest one, and
    ``stretches`` the pieces in which the parts of sliced tensors lie in their files. ``kept_on_host`` says that the
    tensors stay in host memory after the load, ``into_targets`` that they are copied into tensors which exist already,
    ``owned`` that they must not depend on the file. ``prefer`` orders readers by name. ``options`` are constructor
    options: a reader without one of them is passed over, never handed a subset; ``settings`` are options for whichever
    reader has them, and others run without. ``engine`` is what the engine was asked for (quantization, lora, …) and is
    read by plugins' vetoes only.
    """

    format: str | None = _checked(optional(_schema.text), default=None)
    schemes: frozenset[str] = _checked(_schema.names, default=frozenset())
    device: str | None = _checked(optional(_schema.text), default=None)
    needs: frozenset[Feature] = _checked(_schema.members(Feature), default=frozenset())
    dtypes: frozenset[str] = _checked(_schema.names, default=frozenset())
    bytes_wanted: int | None = _checked(optional(_schema.whole(0)), default=None)
    largest_tensor: int | None = _checked(optional(_schema.whole(0)), default=None)
    stretches: int | None = _checked(optional(_schema.whole(0)), default=None)
    kept_on_host: bool = _checked(_schema.flag, default=False)
    into_targets: bool = _checked(_schema.flag, default=False)
    owned: bool = _checked(_schema.flag, default=False)
    prefer: tuple[str, ...] = _checked(_schema.ordered_names, default=())
    options: Mapping[str, Any] = _checked(_schema.mapping, default_factory=dict, hash=False)
    settings: Mapping[str, Any] = _checked(_schema.mapping, default_factory=dict, hash=False)
    engine: Mapping[str, Any] = _checked(_schema.mapping, default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = {need.value for need in self.needs} | ({"owned"} if self.owned else set())
        for one, other, why in _CONFLICTS:
            if {one, other} <= asked:
                raise ValueError(f"Request asks for {one} and {other}, which exclude each other: {why}")

    @property
    def device_type(self) -> str | None:
        """``cuda`` of ``cuda:0``; None where no device was named."""
        return None if self.device is None else self.device.split(":")[0]


@dataclass(frozen=True, kw_only=True)
class Declined(Schema):
    """A plugin's veto: why it cannot serve this request, and what would change that."""

    reason: str = _checked(_schema.text)
    fix: str | None = _checked(optional(_schema.text), default=None)


@dataclass(frozen=True, kw_only=True)
class QuantMethodInfo(Schema):
    """A quant method: code that computes with packed weights.

    ``weight_types`` are the packed types it takes (``Q4_K``), ``device_types`` where it runs. ``factory`` is
    ``module:attribute`` of its config class, so that listing methods imports no backend.
    """

    name: str = _checked(_reader_name)
    weight_types: frozenset[str] = _checked(_schema.names)
    device_types: frozenset[str] = _checked(_schema.names)
    factory: str = _checked(_schema.text)
    summary: str = _checked(_schema.text, default="")

    def load(self) -> Any:
        """Import and return the factory. Raises ImportError or AttributeError as the import does."""
        module, _, attribute = self.factory.partition(":")
        return getattr(import_module(module), attribute)
