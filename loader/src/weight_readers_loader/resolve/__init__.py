# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to the files of one checkpoint: reference, place, listing, layout. Reads no tensor."""

from __future__ import annotations

import os
from typing import Any

from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.listing import LayoutFile
from weight_readers_loader.resolve.references import locate, parse_reference

__all__ = ["Layout", "LayoutFile", "resolve"]


def resolve(reference: str | os.PathLike[str], **which: Any) -> Layout:
    """The layout at ``reference``; ``which`` are the keyword arguments of `resolve_layout`, and its errors."""
    return resolve_layout(locate(parse_reference(reference)), **which)
