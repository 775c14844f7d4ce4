# SPDX-License-Identifier: Apache-2.0
"""A call that is given up after so many seconds, whatever it waits for: a name server, a body that drips."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """What ``call`` returns or raises. Raises TimeoutError after ``seconds``; the call goes on, and nobody listens.

    Limits of sockets are for each read, and looking a name up has none, so the call runs in a thread of its own. A
    signal is heard at once meanwhile.
    """
    outcome: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # Whatever it is, it is raised where the call was made.
            outcome.put((None, error))

    # A daemon: the process does not wait for a call that was given up.
    threading.Thread(target=run, name="store-request", daemon=True).start()
    try:
        result, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no result within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
