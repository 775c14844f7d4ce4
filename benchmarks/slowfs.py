# SPDX-License-Identifier: Apache-2.0
"""A folder mounted through FUSE whose every read request is answered late, as network storage does.

It speaks the kernel's own protocol over ``/dev/fuse`` (linux/fuse.h, version 7.31), so it needs no library and no
helper, but the right to mount. Requests that are in flight together wait together: the sleep is latency, not a limit
on throughput. The kernel caches and reads ahead as it does for any FUSE mount; what it asks for is counted.

``python -m benchmarks.slowfs SOURCE MOUNT --latency-ms 2`` serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, INTERRUPT, DESTROY, BATCH_FORGET = (
    1, 2, 3, 14, 15, 18, 25, 26, 27, 36, 38, 42,
)  # fmt: skip
_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ASYNC_READ, _ASYNC_DIO, _MAX_PAGES = 1 << 0, 1 << 15, 1 << 22
_KEEP_CACHE = 1 << 1
_FOREVER = 1 << 20
_ROOT = 1
_THREADS = 64
_READ_BYTES = 1 << 20
_MOUNT_FLAGS = 1 | 2 | 4  # read only, no set-uid, no devices
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class SlowFolder:
    """The files of one folder, flat and read-only; node n + 2 is the n-th of them."""

    def __init__(self, source: Path, latency: float) -> None:
        paths = sorted(path for path in source.iterdir() if path.is_file())
        self._node_of = {path.name: number + 2 for number, path in enumerate(paths)}
        self._descriptors = [os.open(path, os.O_RDONLY) for path in paths]
        self._folder = os.stat(source)
        self._latency = latency
        self.requests = 0
        self.bytes = 0
        self._lock = threading.Lock()

    def answer(self, opcode: int, node: int, body: bytes) -> bytes | None:
        """The reply to one request; None for those that get none. Raises OSError for a refusal."""
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        answers: dict[int, Callable[[int, bytes], bytes]] = {
            INIT: self._init,
            LOOKUP: self._lookup,
            GETATTR: lambda node, _: struct.pack("<QII", _FOREVER, 0, 0) + self._attributes(node),
            OPEN: lambda *_: struct.pack("<QII", 0, _KEEP_CACHE, 0),
            OPENDIR: lambda *_: struct.pack("<QII", 0, 0, 0),
            READ: self._read,
            RELEASE: lambda *_: b"",
            FLUSH: lambda *_: b"",
            DESTROY: lambda *_: b"",
        }
        if opcode not in answers:
            raise OSError(errno.ENOSYS, "not part of this file system")
        return answers[opcode](node, body)

    def _init(self, node: int, body: bytes) -> bytes:
        _, _, read_ahead, offered = struct.unpack_from("<IIII", body)
        flags = offered & (_ASYNC_READ | _ASYNC_DIO | _MAX_PAGES)
        pages = _READ_BYTES // os.sysconf("SC_PAGE_SIZE")
        background = (_THREADS, _THREADS * 3 // 4)
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, read_ahead, flags, *background, 4096, 1, pages, 0, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        found = self._node_of.get(os.fsdecode(body.rstrip(b"\0")))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return struct.pack("<QQQQII", found, 0, _FOREVER, _FOREVER, 0, 0) + self._attributes(found)

    def _attributes(self, node: int) -> bytes:
        of = self._folder if node == _ROOT else os.fstat(self._descriptors[node - 2])
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o444
        times = (int(of.st_atime), int(of.st_mtime), int(of.st_ctime), 0, 0, 0)
        return struct.pack("<QQQQQQIIIIIIIIII", node, of.st_size, of.st_blocks, *times, mode, 1, 0, 0, 0, 4096, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        time.sleep(self._latency)
        with self._lock:
            self.requests += 1
            self.bytes += size
        return os.pread(self._descriptors[node - 2], size, offset)


def serve(folder: SlowFolder, mount: Path) -> None:
    """Mount, answer with many threads until standard input ends, unmount."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if _libc.mount(b"slowfs", os.fsencode(mount), b"fuse.slowfs", _MOUNT_FLAGS, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount: {os.strerror(ctypes.get_errno())}", str(mount))
    for _ in range(_THREADS):
        threading.Thread(target=_work, args=(device, folder), daemon=True).start()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.read()
    _libc.umount2(os.fsencode(mount), _DETACH)
    print(f"{folder.requests} {folder.bytes}", flush=True)  # noqa: T201


def _work(device: int, folder: SlowFolder) -> None:
    while True:
        try:
            request = os.read(device, 1 << 17)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == errno.ENOENT:  # it was interrupted before anybody took it
                continue
            return
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        code, reply = 0, b""
        try:
            answered = folder.answer(opcode, node, request[_IN.size :])
            if answered is None:
                continue
            reply = answered
        except OSError as error:
            code = -(error.errno or errno.EIO)
        with suppress(OSError):  # the caller may be gone by now
            os.writev(device, [_OUT.pack(_OUT.size + len(reply), code, unique), reply])


class SlowMount:
    """The server in a process of its own: a process that reads from its own mount can wait for itself for ever."""

    def __init__(self, source: Path, mount: Path, *, latency_ms: float) -> None:
        mount.mkdir(parents=True, exist_ok=True)
        self.folder = mount
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.slowfs", source, mount, "--latency-ms", str(latency_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not self._process.stdout or self._process.stdout.readline() != "ready\n":
            lines = self._process.communicate()[1].strip().splitlines()
            raise OSError(lines[-1] if lines else "the file system did not start")

    def __enter__(self) -> SlowMount:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The end of its standard input ends the server, also where this process dies.
        self.served = self._process.communicate()[0].strip()

    @property
    def mean_request(self) -> str:
        """For people: how many requests of what size the kernel made of everything that was read."""
        requests, total = (int(number) for number in self.served.split())
        return f"{requests} requests of {total / max(1, requests) / 1024:.0f} KiB on average"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--latency-ms", type=float, default=2.0)
    arguments = parser.parse_args()
    serve(SlowFolder(arguments.source, arguments.latency_ms / 1e3), arguments.mount)


if __name__ == "__main__":
    main()
