# SPDX-License-Identifier: Apache-2.0
"""What the machine leaves to this process: memory and CPUs, under its cgroups' limits of version 2 or 1."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where Linux tells: the root of the cgroup file systems, this process's groups, and the memory of the machine."""

    cgroups: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")
    meminfo: Path = Path("/proc/meminfo")


HERE = Places()


def available_memory(places: Places = HERE) -> int | None:
    """Bytes that this process can still take before the machine or a cgroup of it has no more; None off Linux."""
    return _memory(places, swap=0)


def reachable_memory(places: Places = HERE) -> int | None:
    """The same with swap: beyond it the kernel ends processes. Group limits on swap itself are not looked at."""
    return _memory(places, swap=_table(places.meminfo).get("SwapFree", 0) * 1024)


def _memory(places: Places, swap: int) -> int | None:
    free = _table(places.meminfo).get("MemAvailable")
    groups = [*_left(_groups(places, "memory", ""), _V2), *_left(_groups(places, "memory", "memory"), _V1)]
    left = min([*([] if free is None else [free * 1024]), *groups], default=None)
    return None if left is None else left + swap


def local_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """The processes of this job on this machine, as torchrun tells them; None where nobody does."""
    told = environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdecimal() and int(told) > 0 else None


def available_cpus(places: Places = HERE) -> int:
    """The CPUs of the affinity mask, at most the cgroups' quota, at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_ratio(_words(folder / "cpu.max")) for folder in _groups(places, "cpu", "")]
    for folder in _groups(places, "cpu", "cpu"):
        quotas.append(_ratio(_words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")))
    return max(1, min([here, *(math.ceil(quota) for quota in quotas if quota is not None)]))


@dataclass(frozen=True)
class _Names:
    """The files of a memory controller, and the counters of what it would drop rather than end a process."""

    limit: str
    used: str
    cache: tuple[str, str]


_V2 = _Names("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def _left(folders: Iterable[Path], names: _Names) -> Iterator[int]:
    for folder in folders:
        limit, used = _number(folder / names.limit), _number(folder / names.used)
        if limit is not None and used is not None:
            statistics = _table(folder / "memory.stat")
            # Cached files count as used, and go when memory is asked for: what was read before is no shortage.
            yield max(0, limit - used + sum(statistics.get(name, 0) for name in names.cache))


def _groups(places: Places, controller: str, mounted: str) -> Iterator[Path]:
    """The folders of the groups that limit this process: its own and those above. In a container only the last exist.

    ``mounted`` is the folder of a version 1 controller below the root, "" for version 2.
    """
    for line in _text(places.own).splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (controller in controllers.split(",") if mounted else not controllers):
            root = places.cgroups / mounted
            folder = root / path.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each == root or root in each.parents)


def _ratio(pair: list[str]) -> float | None:
    if len(pair) != 2 or not all(part.isdecimal() for part in pair) or int(pair[1]) == 0:
        return None
    return int(pair[0]) / int(pair[1])


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number, as in ``MemAvailable:   123 kB`` or ``inactive_file 123``."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
