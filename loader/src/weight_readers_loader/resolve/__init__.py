# SPDX-License-Identifier: Apache-2.0
"""From what a user typed to the files of one checkpoint: reference, place, listing, layout. Reads no tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weight_readers_loader.resolve.components import within
from weight_readers_loader.resolve.hub.entry import hub_resolver, locate_listed
from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.listing import LayoutFile, Listing
from weight_readers_loader.resolve.places import leads_to_hub, locate
from weight_readers_loader.resolve.references import Reference, parse_reference
from weight_readers_loader.resolve.stores import locate_stored, store_of

__all__ = ["Layout", "LayoutFile", "format_named_by", "resolve", "scheme_of"]


def resolve(
    reference: str | os.PathLike[str],
    *,
    subfolder: str | None = None,
    reader_options: Mapping[str, Any] | None = None,
    **which: Any,
) -> Layout:
    """The layout at ``reference``, or in a folder below it: the component of a model that has several.

    A folder of an object store is listed by the reader that reads there, made with ``reader_options``; a repository
    of the Hub by huggingface_hub. Of the Hub nothing but an index is downloaded: `Layout.brought` does the rest.
    ``which`` are the keyword arguments of `resolve_layout`; the errors are its, and those of `within`,
    `locate_stored` and `resolve_on_hub`.
    """
    parsed = parse_reference(reference)
    if leads_to_hub(parsed):
        return _on_hub(parsed, subfolder, which)
    scheme = store_of(parsed)
    if scheme is None:
        return resolve_layout(within(locate(parsed), subfolder), **which)
    located, place = locate_stored(parsed, reader_options or {})
    return replace(resolve_layout(within(located, subfolder), **which), scheme=scheme, place=place)


def _on_hub(parsed: Reference, subfolder: str | None, which: Mapping[str, Any]) -> Layout:
    resolve_on_hub = hub_resolver(parsed)
    assert parsed.hub is not None  # noqa: S101 - for mypy: only such references lead there
    name = parsed.hub

    def layout_of(root: str, listing: Listing) -> Layout:
        located = locate_listed(parsed, name, root, listing)
        return resolve_layout(within(located, subfolder), **which)

    return resolve_on_hub(name, layout_of)


def scheme_of(reference: str | os.PathLike[str]) -> str:
    """Where ``reference`` leads: the scheme of an object store, or ``file``. Looks at the text only."""
    return store_of(parse_reference(reference)) or "file"


def format_named_by(reference: str | os.PathLike[str]) -> str | None:
    """The format that the text of ``reference`` tells; None where only a look at the files can."""
    return parse_reference(reference).names_format
