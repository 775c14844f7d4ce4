# SPDX-License-Identifier: Apache-2.0
"""How long a name may be, and how much of one is shown: names come from files and from whoever calls."""

from __future__ import annotations

__all__ = ["NAME_LIMIT", "short"]

NAME_LIMIT = 4096
"""The longest name or path that is looked at, in characters; Linux opens no longer one."""


def short(text: str, limit: int = 200) -> str:
    """``text`` as a message shows it: cut where it is long, with its true length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
