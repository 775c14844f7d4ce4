# SPDX-License-Identifier: Apache-2.0
"""What the installed Run:ai Model Streamer can do, told by its source: importing it would import torch."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "runai-model-streamer"
PACKAGE = "runai_model_streamer"

_NEEDED = {
    "runai_request": ("range_offsets", "range_sizes", "range_dsts"),
    "runai_response": ("timeout_ms",),
    "runai_set_credentials": (),
}
"""The functions that are called, and the parameters without which they cannot do it: any range into any memory, and
a wait that ends. They came with 0.17."""

_OBJECT_STORES = {
    "s3": ("runai_model_streamer_s3", "s3"),
    "gs": ("runai_model_streamer_gcs", "gcs"),
}
"""Scheme -> the vendor's package for it, and the extra of ours that brings it."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """``lacks`` is what an installed version cannot do and this reader needs; empty where all is there."""

    version: str | None
    lacks: tuple[str, ...]
    schemes: frozenset[str]
    more_schemes: Mapping[str, str]

    @property
    def update(self) -> str:
        """The command that brings what it lacks. The vendor's packages for stores are of one version with it."""
        extras = ",".join(sorted(extra for scheme, (_, extra) in _OBJECT_STORES.items() if scheme in self.schemes))
        return f'pip install --upgrade "{DISTRIBUTION}{f"[{extras}]" if extras else ""}>=0.17"'


@cache
def probe() -> Backend:
    """The installed backend. Looked at once per process, since a new one would not be imported either."""
    stores = {scheme: _is_installed(package) for scheme, (package, _) in _OBJECT_STORES.items()}
    return Backend(
        version=_version(),
        lacks=lacking(_source()),
        schemes=frozenset({"file", *(scheme for scheme, there in stores.items() if there)}),
        more_schemes={
            scheme: f'pip install "weight-readers-runai[{_OBJECT_STORES[scheme][1]}]"'
            for scheme, there in stores.items()
            if not there
        },
    )


def lacking(source: str) -> tuple[str, ...]:
    """What the module of the native calls does not offer, by its source."""
    functions = {node.name: node.args for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    lacks = []
    for name, parameters in _NEEDED.items():
        arguments = functions.get(name)
        if arguments is None:
            lacks.append(f"{name}()")
            continue
        known = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        lacks += [f"{name}({each}=)" for each in parameters if each not in known]
    return tuple(lacks)


def _source() -> str:
    spec = _spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        with suppress(OSError, UnicodeDecodeError):
            return (Path(folder) / "libstreamer" / "libstreamer.py").read_text(encoding="utf-8")
    return ""


def _version() -> str | None:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _is_installed(package: str) -> bool:
    return _spec(package) is not None


def _spec(package: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
