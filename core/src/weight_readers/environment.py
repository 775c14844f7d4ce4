# SPDX-License-Identifier: Apache-2.0
"""What the machine is, as data: the facts that policy knows a case by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weight_readers import _schema
from weight_readers._schema import Schema, optional

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "lustre", "gpfs", "ceph", "cifs", "smb", "smb2", "9p", "beegfs", "glusterfs", "afs", "virtiofs", "fuse"}
)
"""File systems on which a page fault is a round trip (vllm-project/vllm#24469). Every FUSE one is: each read is
answered by another process, and most of them ask a network."""

LOCAL_FILESYSTEMS = frozenset(
    {"btrfs", "erofs", "exfat", "ext4", "f2fs", "overlay", "ramfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs"}
)
"""Others that policy knows. ``overlay`` is taken for the local file system that it mostly lies on."""

_SAME = {"nfs4": "nfs", "fuseblk": "fuse", "ext2": "ext4", "ext3": "ext4", "smb3": "smb2", "msdos": "vfat"}


def family(filesystem: str) -> str:
    """The kind that policy goes by: ``nfs`` of ``nfs4``, ``fuse`` of ``fuse.sshfs``."""
    kind = filesystem.partition(".")[0]
    return _SAME.get(kind, kind)


def _checked(coerce: _schema.Coercion, **keywords: Any) -> Any:
    return field(metadata={"coerce": coerce}, **keywords)


@dataclass(frozen=True, kw_only=True)
class Environment(Schema):
    """What the machine is, as far as the caller looked. Every fact is optional; policy reads no other source.

    ``cpus`` are those that this process has to itself, ``local_ranks`` the processes of one job that share the
    machine. Bytes: ``host_memory_budget`` is what the caller allows a load, ``host_memory_free`` what machine and
    cgroups have left, ``rss_anon`` and ``rss_file`` what the process holds. ``page_cache_residency`` is the cached
    fraction of the wanted bytes, ``filesystem`` the kind by statfs (``ext4``, ``nfs``, ``fuse``), ``devices`` the
    device types present, ``has_module`` a test for importable modules.
    """

    cpus: int | None = _checked(optional(_schema.whole(1)), default=None)
    local_ranks: int | None = _checked(optional(_schema.whole(1)), default=None)
    host_memory_budget: int | None = _checked(optional(_schema.whole(0)), default=None)
    host_memory_free: int | None = _checked(optional(_schema.whole(0)), default=None)
    rss_anon: int | None = _checked(optional(_schema.whole(0)), default=None)
    rss_file: int | None = _checked(optional(_schema.whole(0)), default=None)
    page_cache_residency: float | None = _checked(optional(_schema.fraction), default=None)
    filesystem: str | None = _checked(optional(_schema.text), default=None)
    devices: frozenset[str] = _checked(_schema.names, default=frozenset())
    has_module: Callable[[str], bool] | None = field(default=None, compare=False, metadata={"json": False})

    def __getstate__(self) -> dict[str, Any]:
        # A test for modules is often a closure, which does not pickle; errors carry an environment and must.
        return {**self.__dict__, "has_module": None}

    @property
    def host_memory_limit(self) -> int | None:
        """Bytes that a load may take: what is allowed, and no more than what is free."""
        known = [each for each in (self.host_memory_budget, self.host_memory_free) if each is not None]
        return min(known, default=None)

    @property
    def on_network(self) -> bool:
        """Whether reading is known to be a round trip to somewhere else."""
        return self.filesystem is not None and family(self.filesystem) in NETWORK_FILESYSTEMS

    def facts(self) -> list[str]:
        """Those that are known, each in a few words."""
        named = {
            "{} CPUs": self.cpus,
            "{} ranks": self.local_ranks if self.local_ranks != 1 else None,
            "{}": self.filesystem,
            "{:.0%} cached": self.page_cache_residency,
            "budget {}": _mib(self.host_memory_budget),
            "free {}": _mib(self.host_memory_free),
            "devices {}": ", ".join(sorted(self.devices - {"cpu"})) or None,
        }
        return [words.format(value) for words, value in named.items() if value is not None]


def _mib(nbytes: int | None) -> str | None:
    return None if nbytes is None else f"{nbytes / 2**20:.0f} MiB"
