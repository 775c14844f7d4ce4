# SPDX-License-Identifier: Apache-2.0
"""The header's JSON, read in bounded windows and taken apart one member at a time.

``json.loads`` would need the whole header at once, and its length is a number from the file. Here a window grows
only for one value that really spans it, up to the limit its caller gives, so memory is bounded by one member.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Iterator
from json import JSONDecodeError
from typing import Any, Protocol

from weight_readers.errors import CheckpointError, FileChangedError, HeaderError
from weight_readers_safetensors._json import DECODER, depth, has_lone_surrogate
from weight_readers_safetensors._plain import PIECES, PlainRun, plain_run

WINDOW = 256 * 1024
"""Bytes read at a time."""
MAX_NAME = 64 * 1024
"""Characters in a tensor's name or a metadata key."""
MAX_DEPTH = 127
"""Nested lists and objects, the header's own object included: the limit of the safetensors library."""

_RUN = 64 * 1024
"""Characters that are looked at for plain entries at a time: the pieces of all of them are held meanwhile."""
_METADATA = '"__metadata__"'
_SPACES = b" " * WINDOW
_skip_blanks = re.compile(r"[ \t\n\r]*").match


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class HeaderText:
    """The ``length`` header bytes that follow in ``file``, which stands behind the 8 bytes of the length field.

    ``cut`` is raised in place of the ordinary error when the text ends too early, where the caller knows why.
    """

    def __init__(self, file: _Readable, length: int, path: str, cut: CheckpointError | None) -> None:
        self._file = file
        self._left = length
        self._path = path
        self._cut = cut
        self._text = ""
        self._at = 0
        self._base = 8
        self._undecoded = b""
        self._fault: CheckpointError | None = None
        self._careful = 0

    def entries(self) -> Iterator[tuple[str, PlainRun | None]]:
        """Take the object that begins here: its keys, or runs of plain tensor entries.

        A run has no key (""). After a key, with no run, the caller takes the value with `value` or `keys` before it
        asks for the next one.
        """
        return self._members(self._plain_run)

    def keys(self) -> Iterator[str]:
        """Take the object that begins here: its keys, after each of which the caller takes the value with `value`."""
        return (key for key, _ in self._members(lambda: None))

    def _members(self, take_run: Callable[[], PlainRun | None]) -> Iterator[tuple[str, PlainRun | None]]:
        self._take("{", "an object")
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            while run := take_run():
                yield "", run
            yield self._key(), None
            if self.peek() == "}":
                self._at += 1
                return
            self._take(",", "',' or '}'")
            if self.peek() == "}":
                raise self.error("a trailing comma before '}'")

    def _plain_run(self) -> PlainRun | None:
        """The plain entries that follow each other from here on; no more of them at once than are soon dealt with."""
        if self._careful:
            self._careful -= 1
            return None
        if self._text.startswith(_METADATA, self._at):
            return None
        text = self._text[self._at : self._at + _RUN]
        text = text[: max(text.rfind(']},"') + 3, text.rfind(']}, "') + 4, 4)]
        run = plain_run(text)
        if run:
            self._at += len(text)
        else:  # without looking at all of them again for each one
            self._careful = self._text.count('"', self._at, self._at + _RUN) // PIECES
        return run

    def _key(self) -> str:
        if self.peek() != '"':
            raise self.error(f"expected a key in double quotes, found {self._shown()}")
        key: str = self.value(MAX_NAME, "a name")
        self._take(":", "':' after the key")
        self.peek()
        return key

    def finish(self) -> None:
        """Check that nothing but blanks follows."""
        found = self.peek(may_end=True)
        if found == "\0":
            raise self.error("the header is padded with NUL bytes; the format pads with spaces")
        if found == "{":
            raise self.error("a second JSON object after the header's own")
        if found:
            raise self.error(f"unexpected text after the header's object: {self._shown()}")

    def peek(self, *, may_end: bool = False) -> str:
        """The next character that is not blank, without taking it; "" at the end where that is allowed."""
        while True:
            blanks = _skip_blanks(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                break
        if may_end:
            return ""
        raise self._ended()

    def value(self, limit: int, what: str) -> Any:
        """Take the JSON value that begins here; one of more than ``limit`` characters is refused as ``what``."""
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                self._grow_for(error, limit, what)
            except RecursionError:
                raise self.error(f"nested too deep (more than {MAX_DEPTH} levels)") from None
            except ValueError as error:
                raise self.error(str(error)) from None
            else:
                # A number may go on in the next window.
                if end < len(self._text) or not self._more():
                    break
        if end - self._at > limit:
            raise self._too_long(limit, what)
        self._check(value, self._text[self._at : end])
        self._at = end
        return value

    def error(self, what: str, at: int | None = None) -> HeaderError:
        """The error at character ``at`` of the window (by default the current one), as a byte of the file."""
        position = self._base + len(self._text[: self._at if at is None else at].encode())
        return HeaderError(f"{what}, at byte {position} of the file", path=self._path)

    def position(self) -> int:
        """The current place as a byte of the file."""
        return self._base + len(self._text[: self._at].encode())

    def _take(self, character: str, expected: str) -> None:
        if self.peek() != character:
            raise self.error(f"JSON error: expected {expected}, found {self._shown()}")
        self._at += 1

    def _shown(self) -> str:
        return repr(self._text[self._at : self._at + 1])

    def _ended(self) -> CheckpointError:
        return self._cut or self.error("the header's JSON ends before its object is closed", len(self._text))

    def _too_long(self, limit: int, what: str) -> HeaderError:
        return self.error(f"{what} takes more than {limit} characters, more than this reader allows")

    def _grow_for(self, error: JSONDecodeError, limit: int, what: str) -> None:
        """Get more text for a value that the window cuts off; raise where the value itself is wrong."""
        at, message = error.pos, error.msg.removesuffix(" at")
        # The longest token that a window can cut short is -Infinity, or a pair of \u escapes.
        cut_off = message.startswith("Unterminated string") or at >= len(self._text) - 12
        # In memory a character takes one byte, or up to four of them where the text holds an emoji.
        room = limit - sys.getsizeof(self._text[self._at :])
        if cut_off and room < 0 and self._left:
            raise self._too_long(limit, what)
        # Doubling, so that a long value is not scanned too often, and never much beyond the limit.
        if cut_off and self._more(max(WINDOW, min(limit - room, room))):
            return
        if message.startswith("Unterminated string") or at >= len(self._text):
            raise self._ended()
        raise self.error(f"JSON error: {message[0].lower()}{message[1:]}", at)

    def _more(self, wanted: int = WINDOW) -> bool:
        """Read ``wanted`` bytes behind what is not taken yet; False at the end of the header."""
        if self._fault:
            raise self._fault
        if not self._left:
            return False
        self._base = self.position()
        self._text = self._text[self._at :]
        self._at = 0
        data = self._read(wanted)
        if not self._text and not self._undecoded and _is_blank(data):
            self._base += len(data)
        else:
            self._text += self._decode(self._undecoded + data)
        return True

    def _read(self, wanted: int) -> bytes:
        data = self._file.read(min(self._left, wanted))
        if not data:
            raise FileChangedError("the file became shorter while its header was read", path=self._path)
        self._left -= len(data)
        return data

    def _decode(self, data: bytes) -> str:
        try:
            text, used = codecs.utf_8_decode(data, "strict", self._left == 0)
        except UnicodeDecodeError as error:
            # What stands before the bad byte is still read: it lists the tensors of a damaged file.
            text, used = data[: error.start].decode(), len(data)
            at = self._base + len(self._text.encode()) + error.start
            self._fault = self._not_utf8(at, data[error.start], error.reason)
        self._undecoded = data[used:]
        return text

    def _not_utf8(self, at: int, byte: int, reason: str) -> CheckpointError:
        # The end of a cut file can cut a character in two: no fault of the encoding.
        if self._cut and reason == "unexpected end of data":
            return self._cut
        return HeaderError(f"the header is not UTF-8 (byte 0x{byte:02x}), at byte {at} of the file", path=self._path)

    def _check(self, value: Any, text: str) -> None:
        """What the json module lets pass: lone surrogates and depth."""
        if "\\u" in text and has_lone_surrogate(value):
            raise self.error("a lone surrogate (\\ud800 to \\udfff) in a string")
        if text.count("[") + text.count("{") >= MAX_DEPTH and depth(value) >= MAX_DEPTH:
            raise self.error(f"nested too deep (more than {MAX_DEPTH} levels)")


def _is_blank(data: bytes) -> bool:
    # Comparing is several times as fast; isspace takes two more characters for blanks than JSON does.
    return data == _SPACES or (data.isspace() and b"\x0b" not in data and b"\x0c" not in data)
