# SPDX-License-Identifier: Apache-2.0
"""On what kind of file system a file lies. Linux."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from weight_readers_loader.environment.libc import libc

MOUNTS = Path("/proc/self/mountinfo")

_MAGIC = {
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x00C36400: "ceph",
    0xFF534D42: "cifs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x19830326: "beegfs",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x6A656A63: "virtiofs",
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0x73717368: "squashfs",
    0xE0F5E1E2: "erofs",
    0x2011BAB0: "exfat",
    0x4D44: "vfat",
}
"""By the number of statfs(2): linux/magic.h, and for those outside of the kernel tree their own sources."""


def magic_of(path: str) -> int | None:
    """``f_type`` of statfs(2); None where the system has none or the path is not there."""
    if sys.platform != "linux":
        return None
    answer = (ctypes.c_long * 32)()
    if libc().statfs(os.fsencode(path), answer) != 0:
        return None
    return answer[0] & 0xFFFFFFFF


def filesystem_of(path: str, *, magic: Callable[[str], int | None] = magic_of, mounts: Path = MOUNTS) -> str | None:
    """``ext4``, ``nfs``, ``fuse.sshfs``, …: by statfs, and by the table of mounts for what has no number of its own.

    All of FUSE has one number; the table says which one it is.
    """
    number = magic(path)
    return None if number is None else _MAGIC.get(number) or _mounted(path, mounts)


def _mounted(path: str, mounts: Path) -> str | None:
    try:
        device = os.stat(path).st_dev
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 2 and fields[2] == wanted and kind:
            return kind[0]
    return None
