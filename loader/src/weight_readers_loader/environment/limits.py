# SPDX-License-Identifier: Apache-2.0
"""What the machine leaves to this process: memory and CPUs, under its cgroups' limits of version 2 or 1."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MOST = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where Linux tells: the root of the cgroup file systems, this process's groups, and the memory of the machine."""

    cgroups: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")
    meminfo: Path = Path("/proc/meminfo")


HERE = Places()


def available_memory(places: Places = HERE) -> int | None:
    """Bytes that this process can still take before the machine or a cgroup of it has no more; None off Linux."""
    return _memory(places, _text(places.meminfo))


def reachable_memory(places: Places = HERE) -> int | None:
    """The same with swap: beyond it the kernel ends processes. Group limits on swap itself are not looked at."""
    machine = _text(places.meminfo)
    left = _memory(places, machine)
    return None if left is None else left + (_counter(machine, "SwapFree") or 0) * 1024


def _memory(places: Places, machine: str) -> int | None:
    free = _counter(machine, "MemAvailable")
    left = None if free is None else free * 1024
    for names, mounted in ((_V2, ""), (_V1, "memory")):
        for folder in _groups(places, "memory", mounted):
            left = _least(left, folder, names)
    return left


def local_ranks(environ: Mapping[str, str] = os.environ) -> int | None:
    """The processes of this job on this machine, as torchrun tells them; None where nobody does."""
    told = environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdecimal() and int(told) > 0 else None


def available_cpus(places: Places = HERE) -> int:
    """The CPUs of the affinity mask, at most the cgroups' quota, at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_ratio(_words(f"{folder}/cpu.max")) for folder in _groups(places, "cpu", "")]
    for folder in _groups(places, "cpu", "cpu"):
        quotas.append(_ratio(_words(f"{folder}/cpu.cfs_quota_us") + _words(f"{folder}/cpu.cfs_period_us")))
    return max(1, min([here, *(math.ceil(quota) for quota in quotas if quota is not None)]))


@dataclass(frozen=True)
class _Names:
    """The files of a memory controller, and the counters of what it would drop rather than end a process."""

    limit: str
    used: str
    cache: tuple[str, str]


_V2 = _Names("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def _least(left: int | None, folder: str, names: _Names) -> int | None:
    """``left``, or what the group has left where that is less."""
    limit, used = _number(f"{folder}/{names.limit}"), _number(f"{folder}/{names.used}")
    if limit is None or used is None:
        return left
    beyond = limit - used
    if left is None or beyond < left:
        statistics = _text(f"{folder}/memory.stat")
        # Cached files count as used, and go when memory is asked for: what was read before is no shortage.
        beyond = max(0, beyond + sum(_counter(statistics, name) or 0 for name in names.cache))
    return beyond if left is None else min(left, beyond)


def _groups(places: Places, controller: str, mounted: str) -> tuple[str, ...]:
    """The folders of the groups that limit this process: its own and those above. In a container only the last exist.

    ``mounted`` is the folder of a version 1 controller below the root, "" for version 2.
    """
    return _folders(_text(places.own), str(places.cgroups / mounted), controller, bool(mounted))


@lru_cache(maxsize=16)
def _folders(own: str, root: str, controller: str, is_version_1: bool) -> tuple[str, ...]:
    found: list[str] = []
    for line in own.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (controller in controllers.split(",") if is_version_1 else not controllers):
            folder = Path(root, path.lstrip("/"))
            found += (str(each) for each in (folder, *folder.parents) if each.is_relative_to(root))
    return tuple(found)


def _ratio(pair: list[str]) -> float | None:
    if len(pair) != 2 or not all(part.isdecimal() for part in pair) or int(pair[1]) == 0:
        return None
    return int(pair[0]) / int(pair[1])


def _number(path: str) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdecimal() else None


def _counter(table: str, name: str) -> int | None:
    """The number on the line of that name, as in ``MemAvailable:   123 kB`` or ``inactive_file 123``."""
    found = re.search(rf"^{name}:?[ \t]+(\d+)\b", table, re.MULTILINE)
    return None if found is None else int(found[1])


def _words(path: str) -> list[str]:
    return _text(path).split()


def _text(path: str | Path) -> str:
    """What the file holds; nothing where it cannot be read. Of what the kernel tells one read has it all."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
