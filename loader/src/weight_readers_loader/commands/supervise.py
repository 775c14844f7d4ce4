# SPDX-License-Identifier: Apache-2.0
"""Run a load in a child process, so that its death by a signal is reported and not just seen.

Touching a mapped page behind the end of a file that shrank, or that storage cannot deliver, ends a process with
SIGBUS: no Python code runs in it any more (ggml-org/llama.cpp#6774).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from weight_readers_loader.commands import output
from weight_readers_loader.commands.note import Note

_PR_SET_PDEATHSIG = 1
_SENT_BY_TERMINAL = 0x80  # SI_KERNEL: the whole foreground group has the signal already


def supervise(what: str = "the load") -> Callable[[str], None]:
    """Go on in a child process; the parent waits, reports how ``what`` ended, and exits with the child's code.

    Returns, in the child only, a function that notes which file is being read. Where processes cannot fork or wait
    for signals it returns without a child, and nothing is supervised.
    """
    if not (hasattr(os, "fork") and hasattr(signal, "sigwaitinfo")):
        return lambda path: None
    note, parent = Note(), os.getpid()
    waited_for = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    child = os.fork()
    if child:
        sys.exit(_wait(child, waited_for, note, what))
    _die_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return note.append


def _interrupt(number: int, frame: object) -> NoReturn:
    """End the load in an orderly way, once: what comes while it cleans up is ignored."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _wait(child: int, waited_for: set[signal.Signals], note: Note, what: str) -> int:
    """Pass the first request to stop on; end the child at the second. Returns the exit code of the command."""
    asked: list[int] = []
    while True:
        info = signal.sigwaitinfo(waited_for)
        if info.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return _code(os.waitstatus_to_exitcode(status), asked, note, what)
            continue
        asked.append(info.si_signo)
        if len(asked) > 1:
            _send(child, signal.SIGKILL)
        elif info.si_code != _SENT_BY_TERMINAL:
            _send(child, info.si_signo)


def _send(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _code(code: int, asked: list[int], note: Note, what: str) -> int:
    if code >= 0:
        return code
    if asked:
        print("Killed", file=sys.stderr)  # noqa: T201 - the child's last word, said for it
        return 128 + asked[0]
    output.error(_story(-code, note, what))
    return 128 - code


def _story(number: int, note: Note, what: str) -> str:
    files = note.files()
    suspects = list(note.shrunk()) if number == signal.SIGBUS else []
    where = ", ".join(suspects) or (files[-1][0] if files else "")
    why = {
        signal.SIGBUS: "the file shrank while it was mapped, or its storage failed. Load again once its writer has "
        "finished (replace files by rename, never in place), or pass --option copy=true to read without a mapping",
        signal.SIGKILL: "it was killed: out of memory, or by hand",
        signal.SIGSEGV: "it touched memory it may not. With --option readonly=true tensors must not be written to",
    }
    reason = why.get(signal.Signals(number), "it did not end by itself")
    return (
        f"{what} died of {signal.Signals(number).name} (signal {number})"
        + (f" while reading {where}" if where else "")
        + f": {reason}"
    )


def _die_with(parent: int) -> None:
    """A child must not go on reading for a parent that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that was set
            os._exit(128 + signal.SIGKILL)
