# SPDX-License-Identifier: Apache-2.0
"""Ranks of a real process group (gloo), each a process of its own that runs what it is told.

They are forked from a server that has imported torch once: to import it in each would cost seconds of CPU.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

_PRELOAD = ["torch", "torch.distributed", "torch.distributed.tensor", "support.rank_jobs"]


def done(results: list[Any]) -> list[Any]:
    """The results of ranks that all are meant to come to an end. Raises what one of them raised."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class Ranks:
    """``timeout`` is that of the group's collectives, in seconds."""

    def __init__(self, size: int, *, timeout: float = 60) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.size = size
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port, timeout), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        assert self.results(60) == [None] * size

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, job: Callable[..., Any], *arguments: Any, seconds: float = 30, **keywords: Any) -> list[Any]:
        """What ``job(rank, …)`` returns on each rank, or the exception that it ends with. Fails after ``seconds``."""
        self.start(job, *arguments, **keywords)
        return self.results(seconds)

    def start(self, job: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        for pipe in self._pipes:
            pipe.send((job, arguments, keywords))

    def results(self, seconds: float) -> list[Any]:
        """One for each rank; ``"dead"`` for a process that ended."""
        deadline = time.monotonic() + seconds
        found: dict[int, Any] = {}
        while len(found) < self.size:
            left = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(left, timeout=max(0, deadline - time.monotonic()))
            if not ready:
                self._show_stacks()
            assert ready, f"ranks {sorted(set(range(self.size)) - set(found))} did not end within {seconds} s"
            for pipe in ready:
                found[self._pipes.index(pipe)] = _received(pipe)  # type: ignore[arg-type]
        return [found[rank] for rank in range(self.size)]

    def _show_stacks(self) -> None:
        """On standard error, where each of them stands."""
        for rank in range(self.size):
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank, signal.SIGUSR1)
        time.sleep(0.5)

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def kill(self, rank: int) -> None:
        os.kill(self._processes[rank].pid or 0, signal.SIGKILL)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self._processes[rank].pid or 0, number)

    def close(self) -> None:
        """End them; those that do not within seconds are killed."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return "dead"


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
    pipe.send(None)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            job, arguments, keywords = pipe.recv()
            pipe.send(_outcome(job, rank, arguments, keywords))
    os._exit(0)  # a group that lost a member waits for it at its end


def _outcome(job: Callable[..., Any], rank: int, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    try:
        return job(rank, *arguments, **keywords)
    except BaseException as error:
        return error
