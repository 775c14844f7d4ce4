# SPDX-License-Identifier: Apache-2.0
"""Plugins and installed distributions made by hand: modules and ``.dist-info`` folders written byte by byte."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import importlib_metadata
from hypothesis import strategies as st

from weight_readers import (
    Alignment,
    Environment,
    Feature,
    FileFormat,
    Lifetime,
    Order,
    ReaderInfo,
    ReadStats,
    Registry,
    Request,
    Requirement,
    Signature,
    Writes,
    hookimpl,
)

PLUGIN = """
from weight_readers import Lifetime, ReaderInfo, hookimpl

INFO = ReaderInfo(name={name!r}, formats={{"safetensors"}}, lifetime=Lifetime.OWNED)

class Reader:
    info = INFO
    selection = None
    def read_meta(self, files):
        return {{}}
    def iter_weights(self, files, **options):
        return iter(())

@hookimpl
def weight_readers_describe():
    return INFO

@hookimpl
def weight_readers_create(options):
    return Reader()
"""
"""Source of a healthy plugin module; ``PLUGIN.format(name="acme")``."""


def info(name: str = "acme", **fields: Any) -> ReaderInfo:
    """A reader of safetensors files that owns its tensors, unless ``fields`` say otherwise."""
    return ReaderInfo(**({"name": name, "formats": {"safetensors"}, "lifetime": Lifetime.OWNED} | fields))


class Reader:
    """The least that is a reader. Keeps the options it was made with."""

    def __init__(self, info: ReaderInfo, options: Mapping[str, Any] | None = None) -> None:
        self.info = info
        self.selection = None
        self.options = dict(options or {})

    def read_meta(self, files: Iterable[str]) -> dict[str, Any]:
        return {}

    def iter_weights(self, files: Iterable[str], **options: Any) -> Iterator[Any]:
        return iter(())


class ReadingInto(Reader):
    """A reader that keeps the promise of `Feature.READ_INTO`, as far as its form goes."""

    def read_into(self, files: Iterable[str], targets: Mapping[str, Any], **options: Any) -> ReadStats:
        return ReadStats()


class Plugin:
    """A healthy plugin object around ``info(...)``; tests subclass it to break one thing."""

    def __init__(self, name: str = "acme", **fields: Any) -> None:
        self.info = info(name, **fields)

    @hookimpl
    def weight_readers_describe(self) -> ReaderInfo:
        return self.info

    @hookimpl
    def weight_readers_create(self, options: Mapping[str, Any]) -> Any:
        kind = ReadingInto if Feature.READ_INTO in self.info.features else Reader
        return kind(self.info, options)


def registry(*plugins: Plugin, environ: Mapping[str, str] | None = None, **named: object) -> Registry:
    """A registry of exactly these plugins, deaf to the real process environment."""
    given = {plugin.info.name: plugin for plugin in plugins}
    return Registry(plugins={**given, **named}, distributions=(), environ=environ or {})


class Site:
    """A folder in the role of site-packages: holds modules and the metadata of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def module(self, name: str, source: str = "") -> None:
        """Write a module, by default that of a healthy plugin called ``name``."""
        path = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source or PLUGIN.format(name=name))

    def distribution(
        self, name: str, entry_points: Mapping[str, str] | str, *, version: str = "1.0", suffix: str = "dist-info"
    ) -> Path:
        """Write the metadata of an installed distribution; text as ``entry_points`` goes out as it is."""
        metadata = self.folder / f"{name.replace('-', '_')}-{version}.{suffix}"
        metadata.mkdir(parents=True)
        file_name = "PKG-INFO" if suffix == "egg-info" else "METADATA"
        (metadata / file_name).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = entry_points if isinstance(entry_points, str) else group(entry_points)
        (metadata / "entry_points.txt").write_text(lines)
        return metadata

    def plugin(self, reader: str, source: str = "", *, distribution: str = "", module: str = "") -> Path:
        """Install a plugin: module and distribution; healthy where no source is given."""
        module = module or f"{reader}_plugin"
        self.module(module, source or PLUGIN.format(name=reader))
        return self.distribution(distribution or f"{reader}-dist", {reader: module})

    def forget_modules(self) -> None:
        """Drop from ``sys.modules`` what was imported out of this folder."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(self.folder)):
                del sys.modules[name]


def group(entry_points: Mapping[str, str]) -> str:
    """The text of an ``entry_points.txt`` with one group, ours."""
    return "[weight_readers]\n" + "".join(f"{name} = {value}\n" for name, value in entry_points.items())


def installed(*sites: Site, environ: Mapping[str, str] | None = None) -> Registry:
    """A registry of what the sites hold, in that order of the path; each scan looks again."""
    folders = [str(site.folder) for site in sites]
    return Registry(distributions=lambda: importlib_metadata.distributions(path=folders), environ=environ or {})


# --- hypothesis: anything the schema allows, out of few words so that they meet --------------------------------

READER_NAMES = st.sampled_from(["a", "b", "c_2", "safetensors", "threaded"])
_WORDS = st.frozensets(st.sampled_from(["safetensors", "gguf", "file", "s3", "cpu", "cuda", "F32"]), max_size=3)
_OPTIONS = st.dictionaries(st.sampled_from(["copy", "readonly", "prefetch"]), st.booleans(), max_size=2)
_FEATURES = st.frozensets(st.sampled_from(Feature))
_FORMATS = st.sampled_from(["safetensors", "gguf"])
_FILE_FORMATS = st.builds(
    FileFormat,
    name=st.just("acme"),
    suffixes=st.lists(st.sampled_from([".acme", ".ac_2"]), min_size=1),
    signatures=st.lists(st.builds(Signature, data=st.binary(min_size=4, max_size=8), offset=st.integers(0, 504))),
    header_first=st.booleans(),
)


def reader_infos(names: st.SearchStrategy[str] = READER_NAMES) -> st.SearchStrategy[ReaderInfo]:
    return st.builds(
        ReaderInfo,
        name=names,
        summary=st.text(max_size=5),
        formats=st.frozensets(_FORMATS, min_size=1).map(lambda found: found | {"acme"}),
        file_formats=st.lists(_FILE_FORMATS, max_size=1),
        schemes=_WORDS,
        devices=_WORDS,
        dtypes=_WORDS,
        features=_FEATURES,
        lifetime=st.sampled_from(Lifetime),
        order=st.sampled_from(Order),
        alignment=st.sampled_from(Alignment),
        writes=st.sampled_from(Writes),
        options=st.frozensets(st.sampled_from(["copy", "readonly"])).map(lambda found: found | {"prefetch"}),
        tunable=st.frozensets(st.just("prefetch")),
        requires=st.lists(st.builds(Requirement, module=st.text(max_size=3), distribution=st.text(max_size=3))),
        fallback=st.booleans(),
    )


def requests() -> st.SearchStrategy[Request]:
    fields = st.fixed_dictionaries(
        {},
        optional={
            "format": _FORMATS,
            "schemes": _WORDS,
            "device": st.sampled_from(["cpu", "cuda:0", "meta", ""]),
            "needs": st.frozensets(st.sampled_from(Feature), max_size=2),
            "dtypes": _WORDS,
            "bytes_wanted": st.integers(0, 100),
            "kept_on_host": st.booleans(),
            "into_targets": st.booleans(),
            "owned": st.booleans(),
            "prefer": st.lists(READER_NAMES, max_size=3),
            "options": _OPTIONS,
            "engine": st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=2),
        },
    )
    return fields.filter(_is_possible).map(lambda given: Request(**given))


def _is_possible(fields: Mapping[str, Any]) -> bool:
    needs = fields.get("needs", frozenset())
    return Feature.FILE_MAPPING not in needs or not (fields.get("owned") or Feature.DIRECT_IO in needs)


def environments() -> st.SearchStrategy[Environment]:
    return st.builds(
        Environment,
        cpus=st.none() | st.integers(1, 64),
        local_ranks=st.none() | st.integers(1, 64),
        host_memory_free=st.none() | st.integers(0, 100),
        host_memory_budget=st.none() | st.integers(0, 100),
        page_cache_residency=st.none() | st.floats(0, 1),
        filesystem=st.none() | st.sampled_from(["ext4", "nfs", "fuse.s3fs", ""]),
        devices=_WORDS,
    )
