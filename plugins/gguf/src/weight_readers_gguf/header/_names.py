# SPDX-License-Identifier: Apache-2.0
"""Keys and names of tensors: text that can be shown, compared and looked up."""

from __future__ import annotations

from weight_readers.errors import CheckpointError
from weight_readers_gguf.header._window import Window


def checked_name(window: Window, problems: list[CheckpointError]) -> str:
    """Read a key or name. One that is empty, has a NUL or is no UTF-8 goes to ``problems``, and stays readable."""
    raw = window.name()
    name = raw.decode("utf-8", "backslashreplace")
    if fault := _fault(raw):
        problems.append(window.error(f"a name that {fault}", expected="UTF-8 text without NUL", found=repr(name[:80])))
    return name


def _fault(raw: bytes) -> str | None:
    if not raw:
        return "is empty"
    if 0 in raw:
        return "has a NUL in it"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"is no UTF-8 (byte 0x{raw[error.start]:02x} at {error.start})"
    return None
