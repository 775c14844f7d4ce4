# SPDX-License-Identifier: Apache-2.0
"""One session of the library with the files of one place: opened, read ahead in a window, refused in our words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from weight_readers import CheckpointError, UnreadableFileError
from weight_readers_files import FilePlan
from weight_readers_runai.requests import Load, requests
from weight_readers_runai.streamer import Streamer, StreamerError
from weight_readers_runai.window import Window


class Source(Protocol):
    """Where the files lie: how to read there, and what can go wrong."""

    guarded: bool
    gap: int
    congruent: bool
    window: int
    decisions: tuple[str, ...]

    def open(self) -> Streamer: ...

    def failure(self, code: int | None, words: str, path: str, tensor: str, offset: int) -> CheckpointError: ...

    def check(self, plan: FilePlan, tensor: str, *, last: bool) -> None: ...


def opened(source: Source, plans: Sequence[FilePlan]) -> Streamer:
    """Start a session. Raises UnreadableFileError where the library refuses to."""
    try:
        return source.open()
    except StreamerError as error:
        raise refused(plans, error) from error


def refused(plans: Sequence[FilePlan], error: StreamerError) -> UnreadableFileError:
    """The library does not say which of its settings it refuses: those that the user made are named."""
    given = sorted(name for name in os.environ if name.startswith("RUNAI_STREAMER_"))
    fix = f"It reads these variables, which are set: {', '.join(given)}; try without" if given else None
    what = "the Run:ai Model Streamer refuses to read"
    return UnreadableFileError(what, path=plans[0].path, found=str(error), fix=fix)


def window_of(
    source: Source, loads: Sequence[Load], streamer: Streamer, *, limit: int, in_order: bool, timeout: float
) -> Window:
    """The window through which ``loads`` arrive, read as ``source`` wants it."""

    def failure(code: int | None, path: str, tensor: str, offset: int) -> CheckpointError:
        words = "" if code is None or code < 0 else streamer.words(code)
        return source.failure(code, words, path, tensor, offset)

    return Window(
        streamer,
        loads,
        requests(loads, gap=source.gap),
        limit=limit,
        in_order=in_order,
        timeout=timeout,
        failure=failure,
        guarded=source.guarded,
        congruent=source.congruent,
    )
