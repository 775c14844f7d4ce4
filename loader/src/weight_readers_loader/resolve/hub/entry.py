# SPDX-License-Identifier: Apache-2.0
"""The way into a repository: huggingface_hub where it is needed, and the folder or file that a reference means."""

from __future__ import annotations

from collections.abc import Callable

import importlib_metadata

from weight_readers.errors import CheckpointNotFoundError
from weight_readers.spelling import closest
from weight_readers_loader.resolve.hub.names import HubName
from weight_readers_loader.resolve.layouts import Layout, LayoutOf
from weight_readers_loader.resolve.listing import Listing
from weight_readers_loader.resolve.places import Located
from weight_readers_loader.resolve.references import Reference

__all__ = ["hub_resolver", "locate_listed"]

_FLOOR = "huggingface_hub>=1.0"
_INSTALL = 'Install it: pip install "weight-readers-loader[hub]"'


def hub_resolver(reference: Reference) -> Callable[[HubName, LayoutOf], Layout]:
    """What resolves a name on the Hub. Raises CheckpointNotFoundError where huggingface_hub is absent or too old."""
    try:
        from weight_readers_loader.resolve.hub.place import resolve_on_hub
    except ImportError as error:
        raise CheckpointNotFoundError(
            "no such file or folder here, and a repository of the Hub is read through huggingface_hub",
            path=reference.text,
            expected=_FLOOR,
            found=_installed(error),
            fix=_INSTALL,
        ) from error
    return resolve_on_hub


def _installed(error: ImportError) -> str:
    try:
        version = importlib_metadata.version("huggingface_hub")
    except importlib_metadata.PackageNotFoundError:
        return "not installed"
    return f"{version}, which does not import: {error}"


def locate_listed(reference: Reference, name: HubName, root: str, listing: Listing) -> Located:
    """The folder or file of a repository that ``name`` means. Raises CheckpointNotFoundError with a close name."""
    inner = name.inner
    if inner is None:
        return Located(reference=reference, path=root, listing=listing, selector=name.selector)
    if (folder := listing.below(inner)) is not None:
        return Located(reference=reference, path=folder.root, listing=folder, selector=name.selector)
    before, _, last = inner.rpartition("/")
    beside = listing.below(before) if before else listing
    if beside is None or beside.entry(last) is None:
        raise _no_such(listing, beside, inner, last)
    if name.selector is not None:
        raise CheckpointNotFoundError(
            "a quantization chooses among the files of a folder, and the reference names a file",
            path=beside.path_of(last),
            found=f":{name.selector}",
            fix="Leave it out.",
        )
    return Located(reference=reference, path=beside.path_of(last), listing=beside, name=last)


def _no_such(listing: Listing, beside: Listing | None, inner: str, last: str) -> CheckpointNotFoundError:
    here = beside or listing
    names = [*here.names(), *here.folders()]
    close = closest(last, names)
    return CheckpointNotFoundError(
        "no such file or folder in the repository",
        path=listing.path_of(inner),
        fix=f"Did you mean {here.path_of(close)!r}?" if close else "See what it holds, and give one of that.",
    )
