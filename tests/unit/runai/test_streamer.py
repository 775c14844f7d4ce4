# SPDX-License-Identifier: Apache-2.0
"""What a session keeps for the library while that may write to it."""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path
from typing import Any

import pytest

from weight_readers_runai.streamer import Answer, Streamer, Target

UNKNOWN, FILE_ACCESS = 11, 2
"""Codes of the library: after the first a read may still be under way, after the second it is not."""


@pytest.mark.parametrize(("code", "kept"), [(0, False), (FILE_ACCESS, False), (UNKNOWN, True)])
def test_memory_is_let_go_of_when_no_read_of_it_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kept: bool
) -> None:
    """No file or server was found that makes the library give code 11, so its answer is replaced."""
    path = tmp_path / "m"
    path.write_bytes(b"abcd")
    memory: Any = (ctypes.c_char * 4)()
    address, held = ctypes.addressof(memory), weakref.ref(memory)
    streamer = Streamer({})
    answered = streamer._library.runai_response
    monkeypatch.setattr(streamer._library, "runai_response", lambda *wait: (code, *answered(*wait)[1:]))
    number = streamer.submit(str(path), [Target(0, 4, address)], memory)
    del memory
    assert streamer.next(30) == Answer(number, 0, code, True)
    assert (held() is not None) == kept
    streamer.close()
