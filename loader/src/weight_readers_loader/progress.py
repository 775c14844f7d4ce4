# SPDX-License-Identifier: Apache-2.0
"""Progress by bytes, on the first rank alone: a bar on a terminal, a line per 10 % elsewhere."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Protocol, TextIO

from tqdm import tqdm

from weight_readers import ReadStats

_STEPS = 10
_USUAL_WINDOW = (80, 24)


class ProgressBar(Protocol):
    """What `progress_bar` returns: a context manager whose ``update`` takes the running totals of a read."""

    def update(self, stats: ReadStats) -> None: ...

    def __enter__(self) -> ProgressBar: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def is_first_rank() -> bool:
    """Whether this process is the one that talks: by its process group, else by what torchrun and mpirun set."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    ranks = (os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
    return next((rank for rank in ranks if rank), "0") == "0"


def progress_bar(label: str, total: int, *, show: bool, stream: TextIO | None = None) -> ProgressBar:
    """A bar of ``total`` bytes on ``stream`` (standard error); silent unless ``show`` and on the first rank."""
    out = stream or sys.stderr
    if not show or not is_first_rank():
        return _Silent()
    return _Bar(label, total, out) if out.isatty() else _Lines(label, total, out)


class _Silent:
    def update(self, stats: ReadStats) -> None:
        pass

    def __enter__(self) -> _Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Quiet(tqdm):  # type: ignore[type-arg]
    """tqdm without the thread that watches over slow bars, which would outlive the load."""

    monitor_interval = 0


class _Bar(_Silent):
    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        columns, lines = _window(stream)
        self._bar = _Quiet(
            desc=label,
            total=total,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            file=stream,
            ncols=columns,
            nrows=lines,
        )

    def update(self, stats: ReadStats) -> None:
        self._bar.update(stats.bytes_read - self._bar.n)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def _window(stream: TextIO) -> tuple[int, int]:
    """The size of the terminal. Some (``docker exec -t``) have none, and tqdm would draw nothing there."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _USUAL_WINDOW
    return found.columns or _USUAL_WINDOW[0], found.lines or _USUAL_WINDOW[1]


class _Lines(_Silent):
    """At most one line per 10 %, without carriage returns, so that a log file stays readable."""

    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._begun = time.monotonic()
        self._step = 0

    def update(self, stats: ReadStats) -> None:
        step = _STEPS * stats.bytes_read // self._total if self._total else _STEPS
        if step > self._step:
            self._step = step
            elapsed = time.monotonic() - self._begun
            meter = tqdm.format_meter(
                stats.bytes_read,
                self._total,
                elapsed,
                ncols=0,
                prefix=self._label,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
            )
            print(meter, file=self._stream, flush=True)
