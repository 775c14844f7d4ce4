# SPDX-License-Identifier: Apache-2.0
"""Run a load in a child process, so that its death by a signal is reported and not just seen.

Touching a mapped page behind the end of a file that shrank, or that storage cannot deliver, ends a process with
SIGBUS: no Python code runs in it any more (ggml-org/llama.cpp#6774).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

_NOTE_BYTES = 8192
_PR_SET_PDEATHSIG = 1
_SENT_BY_TERMINAL = 0x80  # SI_KERNEL: the whole foreground group has the signal already

Note = Callable[[str], None]


def supervise() -> Note:
    """Go on in a child process; the parent waits, reports and exits with the child's code.

    Returns, in the child only, a function that notes which file is being read. Where processes cannot fork it
    returns without one, and nothing is supervised.
    """
    if not hasattr(os, "fork"):
        return lambda path: None
    note = mmap.mmap(-1, _NOTE_BYTES)
    waited_for = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    child = os.fork()
    if child:
        _wait(child, waited_for, note)
    _die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return lambda path: _write(note, path)


def _interrupt(number: int, frame: object) -> None:
    """End the load in an orderly way, once: what comes while it cleans up is ignored."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _wait(child: int, waited_for: set[signal.Signals], note: mmap.mmap) -> NoReturn:
    interrupts = 0
    while True:
        info = signal.sigwaitinfo(waited_for)
        if info.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                _leave(status, note)
            continue
        interrupts += 1
        if interrupts > 1:
            _send(child, signal.SIGKILL)
        elif info.si_code != _SENT_BY_TERMINAL:
            _send(child, info.si_signo)


def _send(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _leave(status: int, note: mmap.mmap) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        sys.exit(code)
    print(_story(-code, _read(note)), file=sys.stderr)  # noqa: T201 - the child's error, said for it
    sys.exit(128 - code)


def _story(number: int, path: str) -> str:
    name = signal.Signals(number).name
    where = f" while reading {path}" if path else ""
    why = {
        signal.SIGBUS: "the file shrank while it was mapped, or its storage failed. Load again once its writer has "
        "finished (replace files by rename, never in place), or pass --option copy=true to read without a mapping",
        signal.SIGKILL: "it was killed: out of memory, or by hand",
        signal.SIGSEGV: "it touched memory it may not. With --option readonly=true tensors must not be written to",
    }
    reason = why.get(signal.Signals(number), "it did not end by itself")
    return f"Error: the load died of {name} (signal {number}){where}: {reason}"


def _write(note: mmap.mmap, path: str) -> None:
    data = os.fsencode(path)[: _NOTE_BYTES - 1]
    note[: len(data) + 1] = data + b"\0"


def _read(note: mmap.mmap) -> str:
    return os.fsdecode(note[:].split(b"\0", 1)[0])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
