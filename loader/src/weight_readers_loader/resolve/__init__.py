# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to the files of one checkpoint: reference, place, listing, layout. Reads no tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.listing import LayoutFile
from weight_readers_loader.resolve.references import locate, parse_reference
from weight_readers_loader.resolve.stores import STORES, locate_stored

__all__ = ["Layout", "LayoutFile", "resolve"]


def resolve(
    reference: str | os.PathLike[str], *, reader_options: Mapping[str, Any] | None = None, **which: Any
) -> Layout:
    """The layout at ``reference``; ``which`` are the keyword arguments of `resolve_layout`, and its errors.

    A folder of an object store is listed by the reader that reads there, made with ``reader_options``.
    """
    parsed = parse_reference(reference)
    if parsed.kind != "url" or parsed.scheme not in STORES:
        return resolve_layout(locate(parsed), **which)
    located, place = locate_stored(parsed, reader_options or {})
    return replace(resolve_layout(located, **which), scheme=parsed.scheme, place=place)
