# SPDX-License-Identifier: Apache-2.0
"""A place without weights that is known for what it is: where they are, or the command that fetches them."""

from __future__ import annotations

from weight_readers import file_formats
from weight_readers.errors import CheckpointNotFoundError
from weight_readers_loader.resolve.components import components, main_one
from weight_readers_loader.resolve.hub.cache import cached_repository, fetching
from weight_readers_loader.resolve.listing import Listing
from weight_readers_loader.wording import passing, some

__all__ = ["no_weights", "suffixes"]


def no_weights(listing: Listing) -> CheckpointNotFoundError | None:
    """The error for the Hub's cache of a repository or of one commit, and for a model of components; else None."""
    if cached := cached_repository(listing):
        repo, commits = cached
        return _error(
            listing,
            "the Hub's cache keeps a repository so, with each commit in a folder of its own",
            expected="the folder of one commit",
            found=some(commits),
            fix=f"Give {repo}, or the folder of a commit.",
        )
    if parts := components(listing):
        return _error(
            listing,
            "this is a model of several components, and each is loaded by itself",
            expected=f"subfolder= one of {some(parts)}",
            found="no subfolder=",
            fix=f"{passing('subfolder', main_one(parts))}, or give the folder of the component.",
        )
    if fetch := fetching(listing.root):
        said = "the Hub's cache holds a part of this commit"
        here = [*listing.names(), *(f"{folder}/" for folder in listing.folders())]
        return _error(listing, said, expected=suffixes(), found=some(here), fix=f"Fetch the rest: {fetch}")
    return None


def suffixes(form: str | None = None) -> str:
    """How files of weights are called: all, or those of one format."""
    return " or ".join(f"*{suffix}" for suffix, of in file_formats().suffixes.items() if form in (None, *of))


def _error(listing: Listing, because: str, *, expected: str, found: str, fix: str) -> CheckpointNotFoundError:
    what = f"no weight files here; {because}"
    return CheckpointNotFoundError(what, path=listing.root, expected=expected, found=found, fix=fix)
