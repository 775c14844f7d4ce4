# SPDX-License-Identifier: Apache-2.0
"""The facts of one load, gathered: about this process always, about files where some are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weight_readers import Environment
from weight_readers_loader.environment.filesystem import filesystem_of
from weight_readers_loader.environment.limits import (
    HERE,
    Places,
    available_cpus,
    local_ranks,
    reachable_memory,
)
from weight_readers_loader.environment.residency import Span, residency, sampled
from weight_readers_loader.process import resident_bytes


def gathered(
    given: Environment | None = None,
    *,
    spans: Sequence[Span] = (),
    device: str | None = None,
    places: Places = HERE,
    environ: Mapping[str, str] = os.environ,
) -> Environment:
    """``given``, and what can be found out of what it leaves open. ``spans`` are the bytes that are wanted.

    ``devices`` are the host and that of ``device``, where it is there: others are not looked for, since starting a
    driver takes long.
    """
    given = given or Environment()
    ranks = given.local_ranks or local_ranks(environ)
    samples = sampled(spans)
    resident = resident_bytes()
    sources: dict[str, Callable[[], Any]] = {
        "local_ranks": lambda: ranks,
        "cpus": lambda: max(1, available_cpus(places) // (ranks or 1)),
        "host_memory_free": lambda: reachable_memory(places),
        "rss_anon": lambda: resident and resident[0],
        "rss_file": lambda: resident and resident[1],
        "page_cache_residency": lambda: residency(samples),
        "filesystem": lambda: _filesystem(dict.fromkeys(sample.path for sample in samples)),
        "devices": lambda: _devices(device),
    }
    return replace(given, **{name: find() for name, find in sources.items() if not _is_known(given, name)})


def _is_known(given: Environment, name: str) -> bool:
    return getattr(given, name) not in (None, frozenset())


def _filesystem(paths: Iterable[str]) -> str | None:
    """That of the files; one over a network, where there are several."""
    kinds = [kind for path in paths if (kind := filesystem_of(path)) is not None]
    return next((kind for kind in kinds if Environment(filesystem=kind).on_network), next(iter(kinds), None))


def _devices(device: str | None) -> frozenset[str]:
    kind = (device or "cpu").partition(":")[0]
    module = getattr(torch, kind, None)
    there = kind != "cpu" and module is not None and hasattr(module, "is_available") and module.is_available()
    return frozenset({"cpu", kind} if there else {"cpu"})
