# SPDX-License-Identifier: Apache-2.0
"""How many threads this process may reasonably use: its CPUs, its cgroup's quota, its share of the node."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from weight_readers_files.cpus import available_cpus

DEFAULT_THREADS = 4
"""More do not help one disk, and thrash a shared one (vllm-project/vllm-ascend#16548)."""


def default_threads(
    *, affinity: int | None = None, quota: float | None = None, environ: Mapping[str, str] | None = None
) -> int:
    """`DEFAULT_THREADS`, or fewer where this process has fewer CPUs to itself; at least 1.

    The CPUs are those of the affinity mask, at most the cgroup's quota, divided by the ranks on this node
    (``LOCAL_WORLD_SIZE`` as torchrun sets it).
    """
    cpus = float(available_cpus() if affinity is None else affinity)
    limit = cgroup_quota() if quota is None else quota
    if limit is not None:
        cpus = min(cpus, limit)
    ranks = (os.environ if environ is None else environ).get("LOCAL_WORLD_SIZE", "1")
    share = cpus / max(1, int(ranks) if ranks.isdecimal() else 1)
    return max(1, min(DEFAULT_THREADS, math.floor(share)))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs that the cgroups of this process grant, of version 2 or 1; None where there is no limit."""
    limits: list[float | None] = []
    for _, controllers, path in (line.split(":", 2) for line in _read(own).splitlines() if line.count(":") > 1):
        if controllers == "":
            limits += [_ratio(_read(folder / "cpu.max").split()) for folder in _upwards(root, path)]
        elif "cpu" in controllers.split(","):
            limits += [_ratio(_quota_and_period(folder)) for folder in _upwards(root / "cpu", path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_and_period(folder: Path) -> list[str]:
    return [_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it, each with a limit of its own. Within a container only the last exist."""
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _ratio(pair: list[str]) -> float | None:
    if len(pair) != 2 or not all(part.isdecimal() for part in pair) or int(pair[1]) == 0:
        return None
    return int(pair[0]) / int(pair[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
