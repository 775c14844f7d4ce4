# SPDX-License-Identifier: Apache-2.0
"""The `Listing` of a repository at one commit: names and sizes are known at once, contents only where asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

from weight_readers.errors import UnreadableFileError
from weight_readers_loader.resolve.index import why_unsafe
from weight_readers_loader.resolve.listing import READABLE, Entry, natural_key

__all__ = ["HubListing", "Revision"]


class Revision(Protocol):
    """A repository at one commit."""

    @property
    def url(self) -> str:
        """``hf://owner/name@commit``."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """The path of each file, and its size in bytes."""
        ...

    def read_start(self, path: str, limit: int) -> bytes:
        """The first ``limit`` bytes of a file. Raises CheckpointError."""
        ...


class HubListing:
    """One folder of a repository. A path that is no plain name below the repository is not listed."""

    def __init__(self, revision: Revision, folder: str = "") -> None:
        self._revision = revision
        self._folder = folder

    @property
    def root(self) -> str:
        return f"{self._revision.url}/{self._folder}" if self._folder else self._revision.url

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """The files here and in folders below, by their names relative to this folder."""
        before = f"{self._folder}/" if self._folder else ""
        inside = ((path, size) for path, size in self._revision.sizes.items() if path.startswith(before))
        return {path.removeprefix(before): size for path, size in inside if why_unsafe(path) is None}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted((name for name in self._sizes if "/" not in name), key=natural_key))

    def folders(self) -> tuple[str, ...]:
        found = {name.partition("/")[0] for name in self._sizes if "/" in name}
        return tuple(sorted(found - set(self.names()), key=natural_key))

    def unsafe(self) -> tuple[str, ...]:
        before = f"{self._folder}/" if self._folder else ""
        inside = (path for path in self._revision.sizes if path.startswith(before))
        return tuple(sorted(path.removeprefix(before) for path in inside if why_unsafe(path) is not None))

    def below(self, name: str) -> HubListing | None:
        folder = f"{self._folder}/{name}" if self._folder else name
        return HubListing(self._revision, folder) if self._is_folder(name) else None

    def entry(self, name: str) -> Entry | None:
        size = self._sizes.get(name)
        if size is not None:
            return Entry(name=name, size=size)
        return Entry(name=name, size=0, fault="a folder") if self._is_folder(name) else None

    def read_bytes(self, name: str, limit: int) -> bytes:
        if name not in self._sizes:
            found = "a folder" if self._is_folder(name) else "nothing"
            raise UnreadableFileError("the file cannot be read", path=self.path_of(name), found=found, fix=READABLE)
        return self._revision.read_start(f"{self._folder}/{name}" if self._folder else name, limit)

    def path_of(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _is_folder(self, name: str) -> bool:
        return name not in self._sizes and any(path.startswith(f"{name}/") for path in self._sizes)
