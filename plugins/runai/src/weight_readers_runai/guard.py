# SPDX-License-Identifier: Apache-2.0
"""Whether all bytes of a range arrived: its end is marked before, and the mark must be gone.

Run:ai 0.17.1 takes a 206 response whose body is shorter than the range for a whole one, and reports no error. A body
fills its range from the beginning, and a range of ours is one request (`requests`), so whatever is missing is
missing at the end.
"""

from __future__ import annotations

import ctypes
import os

from weight_readers_runai.streamer import Target

TAIL_BYTES = 16

_FIRST = os.urandom(TAIL_BYTES)
_SECOND = bytes(byte ^ 0xFF for byte in _FIRST)
"""Other than the first in every byte: no content can look like both."""


def mark(target: Target, *, again: bool = False) -> None:
    """Write the mark over the end of the memory that the range goes to."""
    count = min(TAIL_BYTES, target.length)
    ctypes.memmove(target.address + target.length - count, (_SECOND if again else _FIRST)[-count:], count)


def is_marked(target: Target, *, again: bool = False) -> bool:
    """Whether the last byte is as `mark` left it. One content in 256 has that byte there by itself."""
    if not target.length:
        return False
    last = ctypes.string_at(target.address + target.length - 1, 1)
    return last == (_SECOND if again else _FIRST)[-1:]


def tail(target: Target, address: int) -> Target:
    """The end of the range, to be read again to memory at ``address``."""
    count = min(TAIL_BYTES, target.length)
    return Target(target.offset + target.length - count, count, address)


def same_bytes(target: Target, again: Target) -> bool:
    """Whether the end of the range is as its second reading gave it."""
    end = ctypes.string_at(target.address + target.length - again.length, again.length)
    return end == ctypes.string_at(again.address, again.length)
