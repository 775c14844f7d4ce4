# SPDX-License-Identifier: Apache-2.0
"""``doctor``: what is installed, what is broken and why, what counts for stores, and what could be installed."""

from __future__ import annotations

import platform
import sys
from itertools import product
from typing import Any

import importlib_metadata

import weight_readers
from weight_readers import Request
from weight_readers_loader.commands.store_settings import StoreSettings, store_settings
from weight_readers_loader.commands.views import troubles

_PACKAGES = (
    "weight-readers-loader",
    "torch",
    "safetensors",
    "gguf",
    "runai-model-streamer",
    "pluggy",
    "importlib-metadata",
    "click",
)


def examine() -> dict[str, Any]:
    """Everything as plain data; ``ok`` is False where something installed is broken."""
    report, torch, stores = weight_readers.registry_report(), _torch(), store_settings()
    kinds = ("broken", "duplicates", "unreadable", "format_conflicts")
    faults = [*(report[kind] for kind in kinds), _lame(report), "cause" in torch]
    return {
        "ok": not any([*faults, *(store.fault for store in stores)]),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "torch": torch,
        "packages": {name: _version(name) for name in _PACKAGES},
        "stores": [store.to_json() for store in stores],
        "registry": report,
    }


def _lame(report: dict[str, Any]) -> list[str]:
    """Readers that lack what they import, and those that decline everything and say what would mend that.

    One that declines some requests, or everything on this machine for good, is as it should be.
    """
    unusable = report["unusable"].items()
    declining = [name for name, entry in unusable if entry["code"] == "vetoed" and entry["fix"]]
    without_backend = [name for name, entry in unusable if entry["code"] == "backend-missing"]
    return [*without_backend, *filter(_declines_everything, declining)]


def _declines_everything(name: str) -> bool:
    """Whether a reader declines each kind of request that it is made for, by its own words."""
    info = weight_readers.describe_reader(name)
    kinds = product(info.formats, info.schemes, {None, *info.devices})
    asked = (Request(format=form, schemes=frozenset({scheme}), device=device) for form, scheme, device in kinds)
    selections = (weight_readers.explain_selection(requested=name, strict=True, request=each) for each in asked)
    return all(selection.chosen is None for selection in selections)


def _version(distribution: str) -> str | None:
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, Any]:
    """torch is imported here on purpose: an installation that cannot be imported is the doctor's business."""
    try:
        import torch
    except Exception as error:
        return {"version": _version("torch"), "cause": f"{type(error).__name__}: {error}"}
    return {"version": torch.__version__, "cuda": torch.cuda.is_available()}


def lines(found: dict[str, Any], *, ok: bool) -> list[str]:
    report, torch = found["registry"], found["torch"]
    state = f"broken: {torch['cause']}" if "cause" in torch else f"cuda {'yes' if torch['cuda'] else 'no'}"
    text = [
        f"python:    {found['python']}",
        f"platform:  {found['platform']}",
        f"torch:     {torch['version']} ({state})",
        *(f"{name}: {version or 'not installed'}" for name, version in found["packages"].items() if name != "torch"),
        f"core:      {report['core_version']} (API version {report['api_version']})",
        f"readers:   {', '.join(report['available']) or 'none'}",
        *(
            f"  {name}: {info['distribution']} {info['version']}: {info['summary']}"
            for name, info in report["readers"].items()
        ),
        *troubles(report),
        *(line for store in found["stores"] for line in StoreSettings(**store).lines()),
    ]
    for name, entry in report["broken"].items():
        text += [f"traceback of {name}:", *(f"  {line}" for line in entry["traceback"].splitlines())]
    text += [f"not installed: extra {extra}: {entry['install']}" for extra, entry in report["missing_extras"].items()]
    return [*text, "everything that is installed works" if ok else "something is broken, see above"]
