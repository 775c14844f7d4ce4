# SPDX-License-Identifier: Apache-2.0
"""Ranks of a real process group (gloo), each a process of its own that runs what it is told.

They are forked from a server that has imported once what they need: to import torch in each would cost seconds of CPU.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from support import rank_jobs

_PRELOAD = [
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "weight_readers_loader.distributed.checkpoint",
    "weight_readers_mmap.reader",
    "transformers.models.gemma3.modeling_gemma3",
    "transformers.models.llama.modeling_llama",
]
"""Installed modules only: the server does not have the path of the tests."""


def done(results: list[Any]) -> list[Any]:
    """The results of ranks that all are meant to come to an end. Raises what one of them raised."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.fixture(scope="session")
def groups() -> Iterator[Callable[[int], Ranks]]:
    """Groups by size, which tests use one after the other: a new one only where the last was broken."""
    made: dict[int, Ranks] = {}

    def group(size: int) -> Ranks:
        if size in made and made[size].broken:
            made.pop(size).close()
        if size not in made:
            made[size] = Ranks(size)
            made[size].run(rank_jobs.warm)
        return made[size]

    yield group
    for ranks in made.values():
        ranks.close()


@pytest.fixture
def two(groups: Callable[[int], Ranks]) -> Ranks:
    return groups(2)


@pytest.fixture
def four(groups: Callable[[int], Ranks]) -> Ranks:
    return groups(4)


class Ranks:
    """``timeout`` is that of the group's collectives, in seconds."""

    def __init__(self, size: int, *, timeout: float = 60) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.size = size
        self._job = 0
        self.broken = False
        self.left: list[int] = []
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port, timeout), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        assert self.results(120) == [None] * size

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, job: Callable[..., Any], *arguments: Any, seconds: float = 120, **keywords: Any) -> list[Any]:
        """What ``job(rank, …)`` returns on each rank, or the exception that it ends with. Fails after ``seconds``."""
        self.start(job, *arguments, **keywords)
        return self.results(seconds)

    def start(self, job: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        self._job += 1
        for pipe in self._pipes:
            pipe.send((self._job, job, arguments, keywords))

    def results(self, seconds: float) -> list[Any]:
        """One for each rank; ``"dead"`` for a process that ended."""
        deadline = time.monotonic() + seconds
        found: dict[int, Any] = {}
        while len(found) < self.size:
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(left, timeout=max(0, deadline - time.monotonic()))
            if not ready:
                self._show_stacks()
                self.broken = True
            assert ready, f"ranks {sorted(set(range(self.size)) - set(found))} did not end within {seconds} s"
            for pipe in ready:
                found[self._pipes.index(pipe)] = self._received(pipe)  # type: ignore[arg-type]
        return [found[rank] for rank in range(self.size)]

    def _received(self, pipe: Connection) -> Any:
        try:
            number, result = pipe.recv()
        except EOFError:
            self.broken = True
            return "dead"
        assert number == self._job, f"that is the result of job {number}, and {self._job} was asked for"
        return result

    def _show_stacks(self) -> None:
        """On standard error, where each of them stands."""
        for rank in range(self.size):
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank, signal.SIGUSR1)
        time.sleep(0.5)

    def kill(self, rank: int) -> None:
        os.kill(self._processes[rank].pid or 0, signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self._processes[rank].pid or 0, number)

    def close(self) -> None:
        """End them; those that do not by themselves are killed, and ``left`` has their ranks."""
        for pipe in self._pipes:
            pipe.close()
        for rank, process in enumerate(self._processes):
            process.join(30)
            if process.is_alive():
                self.left.append(rank)
                process.kill()
                process.join()


def _serve(pipe: Connection, rank: int, size: int, port: int, timeout: float) -> None:
    import faulthandler
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    pipe.send((0, None))
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            number, job, arguments, keywords = pipe.recv()
            pipe.send((number, _outcome(job, rank, arguments, keywords)))
    os._exit(0)  # a group that lost a member waits for it at its end


def _outcome(job: Callable[..., Any], rank: int, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    try:
        return job(rank, *arguments, **keywords)
    except BaseException as error:
        return error
