# SPDX-License-Identifier: Apache-2.0
"""A download that gets no bytes is told of: what carries it may have no time limit (huggingface/xet-core#898)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import constants

SECONDS = 60.0
"""So long nothing may arrive without a word."""

_log = logging.getLogger("weight_readers.hub")


@contextmanager
def watched(url: str, cache: Path) -> Iterator[None]:
    """Log a warning when none of the unfinished downloads in ``cache`` has grown for `SECONDS`; once for each stall."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(url, cache / "blobs", over), name="hub-stall", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(url: str, blobs: Path, over: threading.Event) -> None:
    known, told = _arrived(blobs), False
    while not over.wait(SECONDS):
        now = _arrived(blobs)
        if now == known and not told:
            _log.warning("%s: nothing has arrived for %g s. %s", url, SECONDS, _way_out())
        known, told = now, now == known


def _arrived(blobs: Path) -> dict[str, tuple[int, int]]:
    """Size and time of writing of what is not finished yet."""
    found: dict[str, tuple[int, int]] = {}
    with suppress(OSError):
        for entry in os.scandir(blobs):
            with suppress(OSError):
                if entry.name.endswith(".incomplete"):
                    status = entry.stat()
                    found[entry.name] = status.st_size, status.st_mtime_ns
    return found


def _way_out() -> str:
    if find_spec("hf_xet") and not constants.HF_HUB_DISABLE_XET:
        return (
            "Where hf_xet carries it, it may wait for ever: interrupt it, and run it again with HF_HUB_DISABLE_XET=1."
        )
    return f"Its connection ends after {constants.HF_HUB_DOWNLOAD_TIMEOUT} s without bytes (HF_HUB_DOWNLOAD_TIMEOUT)."
