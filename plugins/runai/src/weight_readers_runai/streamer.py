# SPDX-License-Identifier: Apache-2.0
"""The native library: ranges are submitted with the memory they go to, and answers come as they are read.

`FileStreamer` of the backend's front page reads into a ring of its own buffers and waits without end; the calls
behind it, used here, take any destination and a time limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weight_readers_runai import leaving, sessions
from weight_readers_runai.environ import variables
from weight_readers_runai.uris import Uri

OK = 0
_UNKNOWN = 11
"""The library may have stopped waiting for a read that goes on: its memory is not let go of before the session ends."""
_WAKE_SECONDS = 0.2
"""A signal is heard between two waits: Python's handlers run when the native call has returned."""
CLOSE_SECONDS = 5.0
"""How long closing waits for reads under way. A server that never answers holds the library for longer (`leaving`)."""


class Target(NamedTuple):
    """``length`` bytes at ``offset`` of the file go to ``address``."""

    offset: int
    length: int
    address: int


class Answer(NamedTuple):
    """Range number ``place`` of submission ``submission`` was read, or failed with the library's ``code``.

    ``done`` says that it was the last answer of its submission.
    """

    submission: int
    place: int
    code: int
    done: bool


class StreamerError(Exception):
    """The library refused a call, in its own words."""


class Streamer:
    """One session of the library. Used by one thread at a time, and closed in the end.

    environment: variables that the library is started with. Those of object stores are read when the first request
        is served, so they are kept set until the first answer where ``keep_environment``, or `restore_environment`.
    """

    def __init__(self, environment: Mapping[str, str], *, keep_environment: bool = False) -> None:
        from runai_model_streamer.libstreamer import libstreamer

        self._library: Any = libstreamer
        self._pid = os.getpid()
        self._left: dict[int, int] = {}
        # The library writes to bare addresses: whatever owns that memory is kept here until it is done.
        self._memory: dict[int, object] = {}
        self._unsure: set[int] = set()
        self._environment = variables(environment)
        self._environment.__enter__()
        self._handle: Any = None
        self._is_shared = keep_environment
        try:
            self._handle = self._started()
            leaving.watch(self._memory)
        finally:
            if self._handle is None or not keep_environment:
                self.restore_environment()

    def _started(self) -> Any:
        if self._is_shared:
            return sessions.begin(lambda: self._call("runai_start"), self)
        return self._call("runai_start")

    def use_credentials(self, credentials: Any) -> None:
        """Give the session credentials, endpoint or region: an ``S3Credentials`` of the backend."""
        self._call("runai_set_credentials", self._handle, credentials)

    def submit(self, path: str, targets: Sequence[Target], memory: object) -> int:
        """Ask for ranges of one file, to be written to ``memory``; returns the number of the submission.

        Raises StreamerError for what the library does not take.
        """
        number: int = self._call(
            "runai_request",
            self._handle,
            [path if Uri.parse(path) else os.path.abspath(path)],
            [len(targets)],
            [each.offset for each in targets],
            [each.length for each in targets],
            [each.address for each in targets],
        )
        self._left[number] = len(targets)
        self._memory[number] = memory
        return number

    def next(self, timeout: float) -> Answer | None:
        """The next answer of any submission, or None where none came within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                response = self._library.runai_response(self._handle, max(1, int(min(left, _WAKE_SECONDS) * 1000)))
            except TimeoutError:
                continue
            self.restore_environment()
            if response is None:
                raise StreamerError("the library was shut down")
            code, submission, _, place, done = response
            self._left[submission] -= 1
            self._unsure |= {submission} if code == _UNKNOWN else set()
            if done:
                del self._left[submission]
                if submission not in self._unsure:
                    del self._memory[submission]
            return Answer(submission, place, code, done)
        return None

    def words(self, code: int) -> str:
        """What the library says of a code."""
        said = self._library.runai_response_str(code)
        return said.decode(errors="replace") if isinstance(said, bytes) else str(said)

    def close(self, *, patience: float = CLOSE_SECONDS) -> bool:
        """End the session. Reads under way are waited for, ``patience`` seconds long, and end by themselves then.

        Returns whether they have ended: until then the library may write to the memory that it was given.
        """
        handle, self._handle = self._handle, None
        self.restore_environment()
        if handle is None or os.getpid() != self._pid:  # in a forked child, the library's threads are not there
            return True

        def finish() -> bool:
            return leaving.end(self._library, handle, self._memory, patience)

        if self._is_shared:
            return sessions.end(self, finish, at_rest=not self._memory)
        return finish()

    @property
    def holds_environment(self) -> bool:
        """Whether the variables are still set, and sessions of other threads wait for theirs."""
        return self._environment is not None

    def restore_environment(self) -> None:
        """Take the variables back, in the thread that started the session."""
        environment, self._environment = self._environment, None  # type: ignore[assignment]
        if environment is not None:
            environment.__exit__(None, None, None)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, name)(*arguments)
        except ValueError as error:
            raise StreamerError(str(error)) from error
