# SPDX-License-Identifier: Apache-2.0
"""Models of several components: a folder whose folders hold a checkpoint each, as diffusers saves a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from weight_readers.errors import CheckpointError, CheckpointNotFoundError, UnsafePathError
from weight_readers.spelling import closest
from weight_readers_loader.arguments import instance, short
from weight_readers_loader.resolve.families import survey
from weight_readers_loader.resolve.file_names import parse_index_name
from weight_readers_loader.resolve.index import why_unsafe
from weight_readers_loader.resolve.listing import Listing
from weight_readers_loader.resolve.places import Located
from weight_readers_loader.wording import passing, some

__all__ = ["components", "main_one", "within"]

_MOST = 100


def within(located: Located, subfolder: str | None) -> Located:
    """The place ``subfolder`` below ``located``; None is the place itself.

    Raises UnsafePathError for a name that leads out of it, CheckpointNotFoundError with the components that are there.
    """
    instance("subfolder", subfolder, str, "a str", or_none=True)
    if subfolder is None:
        return located
    if (reason := why_unsafe(subfolder)) is not None:
        raise UnsafePathError(
            f"subfolder={short(repr(subfolder))} is no plain name below the folder: {reason}",
            path=located.path,
            expected="a name such as 'transformer'",
            fix="Give the folder itself as the reference.",
        )
    listing = located.listing.below(subfolder) if located.name is None else None
    if listing is None:
        raise _no_such(located, subfolder)
    return replace(located, path=listing.root, listing=listing)


def components(listing: Listing) -> list[str]:
    """The folders right below that hold weights, in natural order."""
    folders = islice(listing.folders(), _MOST)
    return [folder for folder in folders if _has_weights(listing, folder)]


def main_one(parts: Sequence[str]) -> str:
    """The component to name in an advice: the one that denoises, or else the first."""
    return next((name for name in ("transformer", "unet") if name in parts), parts[0])


def _has_weights(listing: Listing, folder: str) -> bool:
    try:
        below = listing.below(folder)
        names = below.names() if below is not None else ()
    except CheckpointError:  # a folder that nobody may look into holds no component for this user
        return False
    return bool(survey(names).families) or any(parse_index_name(name) for name in names)


def _no_such(located: Located, subfolder: str) -> CheckpointNotFoundError:
    if located.name is not None:
        return CheckpointNotFoundError(
            "subfolder= was given with a reference that is a file",
            path=located.path,
            found=f"subfolder={subfolder!r}",
            fix="Leave it out, or give the folder.",
        )
    here = components(located.listing)
    meant = closest(subfolder, here) or (main_one(here) if here else None)
    return CheckpointNotFoundError(
        "no such folder in the checkpoint",
        path=located.listing.path_of(subfolder),
        expected=f"one of {some(here)}" if here else "a folder with weights",
        fix=passing("subfolder", meant) + "." if meant else "Leave out subfolder=.",
    )
