# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows: cached pages of a file, mappings, memory by kind, descriptors. Counts, never times."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from weight_readers_testkit.counters import PAGE, cached_bytes, cached_pages, evict, mapped_bytes, nothing_left_open

__all__ = [
    "PAGE",
    "TESTS",
    "cached_bytes",
    "cached_pages",
    "check_cached",
    "check_cached_bytes",
    "descriptors",
    "evict",
    "exit_code_of",
    "mapped_bytes",
    "mappings",
    "memory",
    "new_memory",
    "nothing_left_open",
    "output_of",
    "pages_spanned",
    "run_child",
    "smaps",
]

TESTS = Path(__file__).parents[1]

CHILD_SECONDS = 180.0
"""What a child has not done by then it never does."""


def new_memory(nbytes: int) -> mmap.mmap:
    """Anonymous memory of this process alone, written. A heap may give what an earlier test has left there."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(nbytes))
    return memory


def check_cached(path: Path, expected: set[int]) -> None:
    """Fail where any other page of the file is cached, or more than a tenth of the expected ones are not.

    Pages too many are always a fault of ours. The kernel takes some back when it likes: on a busy machine with
    plenty of free memory it was seen to drop 0.3 % of them within a second.
    """
    cached = {number for number, there in enumerate(cached_pages(path)) if there}
    more = sorted(cached - expected)
    assert not more, f"{len(more)} pages more than the {len(expected)} expected: {more[:5]} …"
    assert len(cached) >= len(expected) * 9 // 10, f"{len(cached)} of {len(expected)} pages"


def check_cached_bytes(path: Path, expected: int) -> None:
    """The same by their number, once they had time to arrive and some more in which too many could."""
    deadline = time.monotonic() + 20
    while cached_bytes(path) < expected * 9 // 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert expected * 9 // 10 <= cached_bytes(path) <= expected


def pages_spanned(begin: int, end: int) -> set[int]:
    """The numbers of the pages that hold the bytes from ``begin`` to ``end``."""
    return set(range(begin // PAGE, -(-end // PAGE)))


def mappings(path: Path) -> list[tuple[int, str]]:
    """``(bytes, permissions)`` of each mapping of the file in this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *_, name = line.split(maxsplit=5)
        if name == str(path):
            begin, end = (int(part, 16) for part in span.split("-"))
            found.append((end - begin, permissions))
    return found


def smaps(path: Path, field: str) -> int:
    """Sum of one field of /proc/self/smaps over the mappings of the file, in bytes."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith(f"{field}:"):
            total += int(line.split()[1]) * 1024
    return total


def memory(kind: str) -> int:
    """``RssFile``, ``RssAnon``, ``VmRSS``, ``VmSize`` … of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(kind)


def descriptors() -> dict[str, str]:
    """Open descriptors, and what each leads to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one of this listing
    return found


def run_child(
    source: str, *arguments: object, flags: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python source in a process of its own, without a core dump. One that hangs says where, in the end."""
    command = [sys.executable, "-X", "faulthandler", "-W", "error", *flags, "-c", source, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        env={**os.environ, "PYTHONPATH": str(TESTS), **variables},
    ) as child:
        try:
            output, errors = child.communicate(timeout=CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)
            _, errors = child.communicate(timeout=CHILD_SECONDS)
            raise AssertionError(f"the child hangs\n{errors}") from None
        except BaseException:
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def exit_code_of(child: int) -> int:
    """Of a fork, once it ended. One that hangs is killed, and has the code of that."""
    deadline = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def output_of(source: str, *arguments: object) -> str:
    """What a child prints; its errors are the test's."""
    done = run_child(source, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
