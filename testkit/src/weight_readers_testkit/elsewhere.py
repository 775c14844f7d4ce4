# SPDX-License-Identifier: Apache-2.0
"""A spawned process that reads, forks, and may die, while the tests go on."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn, TypeVar

import weight_readers
from weight_readers import WeightReader
from weight_readers_testkit.counters import anonymous_bytes
from weight_readers_testkit.tensors import Contents, bits, contents

Q = TypeVar("Q")
T = TypeVar("T")
SECONDS = 180.0
"""What takes longer hangs."""


class Case(NamedTuple):
    """A reader that another process can make for itself, and the files it is to read."""

    reader_name: str
    format: str
    scheme: str
    options: Mapping[str, Any]
    files: Sequence[str]

    def make(self) -> WeightReader:
        return weight_readers.select_weight_reader(
            requested=self.reader_name,
            format=self.format,
            schemes={self.scheme},
            strict=True,
            options=dict(self.options),
        )


class Elsewhere:
    """One process, started when first asked and again after it died; no request may take longer than `SECONDS`."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Any = None

    def run(self, function: Callable[[Q], T], question: Q) -> T:
        """What ``function``, one of the kit's modules, returns there. Raises RuntimeError for what it raised."""
        if self._process is None:
            self._start()
        try:
            self._connection.send((function, question))
            if not self._connection.poll(SECONDS):
                raise RuntimeError(f"{function.__name__} was not done within {SECONDS:.0f} s")
            ok, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            code = self._end()
            raise RuntimeError(f"the process ended with exit code {code} in {function.__name__}") from error
        except RuntimeError:
            self._end()
            raise
        if not ok:
            raise RuntimeError(answer)
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _end(self) -> int | None:
        self._connection.close()
        self._process.join(2)
        self._process.kill()
        self._process.join()
        code: int | None = self._process.exitcode
        self._process.close()
        self._process = None
        return code


def _serve(connection: Connection) -> None:
    while True:
        try:
            function, question = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, function(question))
        except Exception:
            answer = (False, traceback.format_exc())
        connection.send(answer)


def read(case: Case) -> Contents:
    """What the reader reads in this process."""
    return contents(case.make().iter_weights(case.files))


def fork_and_read(case: Case) -> tuple[int, bool]:
    """Fork in the midst of reading: whether the child reads all, and keeps what came before; and the parent goes on.

    Returns the child's exit status, 0 where all is well, and whether the parent read everything.
    """
    reader = case.make()
    right = contents(reader.iter_weights(case.files))
    weights = reader.iter_weights(case.files)
    kept = [next(weights)]
    status = _forked(lambda: contents(reader.iter_weights(case.files)) == right == {**right, **contents(kept)})
    return status, contents([*kept, *weights]) == right


def read_after_the_main_thread(case: Case) -> int:
    """The exit status of a child whose main thread ends before another reads: 0 where that one reads all."""
    right = contents(case.make().iter_weights(case.files))

    def late() -> None:
        threading.main_thread().join()
        _leave(lambda: contents(case.make().iter_weights(case.files)) == right)

    child = os.fork()
    if child == 0:
        threading.Thread(target=late).start()
        raise SystemExit  # nobody catches it: this thread ends as that of any program
    return _status_of(child)


def write_in_child(case: Case) -> int:
    """The exit status of a child that writes into a tensor read before: negative where a signal ended it."""
    _, values = next(iter(case.make().iter_weights(case.files)))

    def write() -> bool:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        bits(values)
        values.fill_(1)
        return True

    return _forked(write)


def peak_of_own_memory(case: Case) -> int:
    """The most memory of its own that this process has more while it reads all and keeps nothing, in bytes."""
    reader = case.make()
    reader.read_meta(case.files)
    before = highest = anonymous_bytes()
    for _, values in reader.iter_weights(case.files):
        highest = max(highest, anonymous_bytes())
        del values
    return highest - before


def _forked(action: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        _leave(action)
    return _status_of(child)


def _leave(action: Callable[[], bool]) -> NoReturn:
    try:
        os._exit(0 if action() else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(2)


def _status_of(child: int) -> int:
    deadline = time.monotonic() + SECONDS / 2
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise RuntimeError("the forked child hangs")
