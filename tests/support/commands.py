# SPDX-License-Identifier: Apache-2.0
"""The console script, run as a user runs it: in a process of its own, plain, in its own session, or on a terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("weight-readers")
TESTS = Path(__file__).parents[1]


def environment(*path: Path, **variables: str) -> dict[str, str]:
    """This process's environment without settings of ours, with ``path`` in front of what Python searches."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHT_READERS_")}
    inherited.pop("RANK", None)
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1", **variables}


def run(
    *arguments: object, path: tuple[Path, ...] = (), env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run to the end; stdout and stderr as text."""
    command = [str(COMMAND), *map(str, arguments)]
    variables = environment(*path, **(env or {}))
    given = {"capture_output": True, "text": True, "timeout": 120, "check": False, **options}
    return subprocess.run(command, env=variables, **given)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a command with ``--json`` printed: one object and nothing else."""
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@contextmanager
def started(*arguments: object, path: tuple[Path, ...] = (), **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command that goes on running, in a session of its own; whatever is left of it is killed afterwards."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, **options}
    command = [str(COMMAND), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment(*path), **given)
    try:
        yield process
    finally:
        for pid in children(process.pid):
            end(pid)
        end(process.pid)
        process.wait(timeout=60)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that only waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Any, *, seconds: float = 60, of: str = "") -> None:
    """Poll ``condition`` until it holds. The bound tells a hang from slowness, nothing finer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {of}"
        time.sleep(0.02)


class Terminal:
    """A command in the foreground of a pseudo terminal, as in a shell's window."""

    def __init__(
        self, *arguments: object, path: tuple[Path, ...] = (), stdout: int | None = None, cwd: Path | None = None
    ) -> None:
        self.master, slave = os.openpty()
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, str(COMMAND), *map(str, arguments)],
            env=environment(*path, TERM="xterm", COLUMNS="100"),
            cwd=cwd,
            pass_fds=(slave,),
            stdin=slave,
            stdout=stdout or slave,
            stderr=slave,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in children(self.process.pid):
            end(pid)
        end(self.process.pid)
        self.process.wait(timeout=60)
        os.close(self.master)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, text: bytes, *, seconds: float = 60) -> None:
        wait_until(lambda: self._drain() and text in self.output, seconds=seconds, of=repr(self.output))

    def finish(self, *, seconds: float = 60) -> int:
        """The exit code, once the command ended."""
        wait_until(lambda: self._drain() and self.process.poll() is not None, seconds=seconds, of=repr(self.output))
        self._drain()
        return self.process.wait()

    def _drain(self) -> bool:
        try:
            while select.select([self.master], [], [], 0)[0]:
                data = os.read(self.master, 65536)
                if not data:
                    break
                self.output += data
        except OSError:  # what Linux answers once the other side is closed
            pass
        return True


_ON_TERMINAL = """
import os, sys
import fcntl, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def invoke(*arguments: object) -> Any:
    """The command line in this process, without supervision: exit_code, stdout, stderr, exception."""
    from click.testing import CliRunner

    from weight_readers_loader.cli import cli

    return CliRunner().invoke(cli, [str(argument) for argument in arguments])
