# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to the files of one checkpoint: reference, place, listing, layout. Reads no tensor."""

from __future__ import annotations

import os
from typing import Any

from weight_readers_loader.resolve.components import within
from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.listing import LayoutFile
from weight_readers_loader.resolve.references import locate, parse_reference

__all__ = ["Layout", "LayoutFile", "resolve"]


def resolve(reference: str | os.PathLike[str], *, subfolder: str | None = None, **which: Any) -> Layout:
    """The layout at ``reference``, or in a folder below it: the component of a model that has several.

    ``which`` are the keyword arguments of `resolve_layout`; the errors are its, and those of `within`.
    """
    return resolve_layout(within(locate(parse_reference(reference)), subfolder), **which)
