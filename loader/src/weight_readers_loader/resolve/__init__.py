# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to the files of one checkpoint: reference, place, listing, layout. Reads no tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weight_readers_loader.resolve.components import within
from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.listing import LayoutFile
from weight_readers_loader.resolve.references import locate, parse_reference
from weight_readers_loader.resolve.stores import locate_stored, store_of

__all__ = ["Layout", "LayoutFile", "resolve", "scheme_of"]


def resolve(
    reference: str | os.PathLike[str],
    *,
    subfolder: str | None = None,
    reader_options: Mapping[str, Any] | None = None,
    **which: Any,
) -> Layout:
    """The layout at ``reference``, or in a folder below it: the component of a model that has several.

    A folder of an object store is listed by the reader that reads there, made with ``reader_options``. ``which`` are
    the keyword arguments of `resolve_layout`; the errors are its, and those of `within` and `locate_stored`.
    """
    parsed = parse_reference(reference)
    scheme = store_of(parsed)
    if scheme is None:
        return resolve_layout(within(locate(parsed), subfolder), **which)
    located, place = locate_stored(parsed, reader_options or {})
    return replace(resolve_layout(within(located, subfolder), **which), scheme=scheme, place=place)


def scheme_of(reference: str | os.PathLike[str]) -> str:
    """Where ``reference`` leads: the scheme of an object store, or ``file``. Looks at the text only."""
    return store_of(parse_reference(reference)) or "file"
