# SPDX-License-Identifier: Apache-2.0
"""Places that only a reader can look at: folders of an object store, listed through whichever reader lists them.

A prefix of keys is a folder here only up to a ``/``: ``models/llama`` never takes in ``models/llama-old``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weight_readers import (
    Feature,
    ListsFiles,
    NoSuitableReaderError,
    PluginContractError,
    StoredFile,
    WeightReader,
    describe_reader,
    explain_selection,
    select_weight_reader,
)
from weight_readers.errors import CheckpointNotFoundError, UnreadableFileError
from weight_readers.spelling import did_you_mean
from weight_readers_loader.config.refusals import of_options
from weight_readers_loader.resolve.formats import format_by_name
from weight_readers_loader.resolve.index import why_unsafe
from weight_readers_loader.resolve.listing import READABLE, Entry, natural_key
from weight_readers_loader.resolve.places import Located
from weight_readers_loader.resolve.references import Reference

STORES = frozenset({"s3", "gs", "az"})
"""Schemes of object stores."""


def store_of(reference: Reference) -> str | None:
    """The scheme of the object store that ``reference`` leads into; None where it leads into none."""
    return reference.scheme if reference.kind == "url" and reference.scheme in STORES else None


def locate_stored(reference: Reference, options: Mapping[str, Any]) -> tuple[Located, Mapping[str, str]]:
    """The folder or the one object that ``reference`` names, and the settings that it was found with.

    Raises core's selection errors where no installed reader lists the scheme, CheckpointNotFoundError with a close
    name where nothing lies there, and what the reader raises where the store refuses.
    """
    lister, text = _lister(reference.scheme or "", options), reference.text.strip()
    folder, _, name = text.rstrip("/").rpartition("/")
    beside = StoreListing(lister, folder)
    inside = StoreListing(lister, text)
    may_be_object = not text.endswith("/") and folder.count("/") >= 2
    is_file = may_be_object and (format_by_name(name) is not None or name.endswith(".json"))
    place = lister.place(text)
    if is_file and beside.entry(name) is not None:
        return Located(reference=reference, path=text, listing=beside, name=name), place
    if inside.names() or inside.folders():
        return Located(reference=reference, path=text, listing=inside), place
    if may_be_object and beside.entry(name) is not None:
        return Located(reference=reference, path=text, listing=beside, name=name), place
    if reference.selector is not None:
        path = text.removesuffix(f":{reference.selector}")
        before = StoreListing(lister, path)
        if before.names() or before.folders():
            return Located(reference=reference, path=path, listing=before, selector=reference.selector), place
    raise _nothing_there(text, beside if folder.count("/") >= 2 else None, name)


def reader_there(scheme: str, feature: Feature, options: Mapping[str, Any]) -> WeightReader:
    """The reader that has ``feature`` in stores of a scheme, with those of ``options`` that are its own.

    The others are for the reader of the weights: a store is looked at for GGUF files too. Raises core's selection
    errors where none is installed, and ConfigError for an option that it does not take.
    """
    need: dict[str, Any] = {"schemes": frozenset({scheme}), "needs": frozenset({feature})}
    chosen = explain_selection(**need).chosen
    known = describe_reader(chosen).options if chosen is not None else options
    own = {name: value for name, value in options.items() if name in known}
    try:
        with of_options(own):
            return select_weight_reader(**need, options=own, strict=True)
    except NoSuitableReaderError as error:
        error.fix = error.fix or "Copy the folder to this machine (rclone copy, azcopy), then give it from there"
        raise


def _lister(scheme: str, options: Mapping[str, Any]) -> ListsFiles:
    reader = reader_there(scheme, Feature.LISTS, options)
    if not isinstance(reader, ListsFiles):
        name = reader.info.name
        breach = "declares that it lists and has no list_folder, read_start and place"
        raise PluginContractError(f"reader {name!r} {breach}", name=name, reason=breach, code="broken")
    return reader


def _nothing_there(text: str, beside: StoreListing | None, name: str) -> CheckpointNotFoundError:
    names = [*beside.folders(), *beside.names()] if beside is not None else []
    return CheckpointNotFoundError(
        "no object lies there",
        path=text,
        expected="a folder with objects, or an object",
        found="0 objects",
        fix=did_you_mean(name, names) or "Check bucket and prefix.",
    )


class StoreListing:
    """The `Listing` of a folder of an object store. Every folder is listed once, when it is asked for.

    A key that is no plain name below the folder (``models/llama/../x``) is not listed.
    """

    def __init__(self, lister: ListsFiles, root: str) -> None:
        self._lister = lister
        self._root = root
        self._folders: dict[str, dict[str, StoredFile]] = {}
        self._unsafe: dict[str, tuple[str, ...]] = {}

    @property
    def root(self) -> str:
        return self._root

    def names(self) -> tuple[str, ...]:
        return tuple(name for name, found in self._listed("").items() if found.nbytes is not None)

    def folders(self) -> tuple[str, ...]:
        return tuple(name for name, found in self._listed("").items() if found.nbytes is None)

    def unsafe(self) -> tuple[str, ...]:
        self._listed("")
        return self._unsafe[""]

    def below(self, name: str) -> StoreListing | None:
        listing = StoreListing(self._lister, self.path_of(name))
        return listing if listing.names() or listing.folders() else None

    def entry(self, name: str) -> Entry | None:
        folder, _, last = name.rpartition("/")
        found = self._listed(folder).get(last)
        if found is None:
            return None
        return Entry(name=name, size=found.nbytes or 0, fault="a folder" if found.nbytes is None else None)

    def read_bytes(self, name: str, limit: int) -> bytes:
        path, entry = self.path_of(name), self.entry(name)
        if entry is None or entry.fault is not None:
            found = entry.fault if entry else "nothing"
            raise UnreadableFileError("the object cannot be read", path=path, found=found, fix=READABLE)
        return self._lister.read_start(path, limit)

    def path_of(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _listed(self, folder: str) -> dict[str, StoredFile]:
        if folder not in self._folders:
            found = self._lister.list_folder(self.path_of(folder) if folder else self._root)
            self._unsafe[folder] = tuple(sorted(each.name for each in found if why_unsafe(each.name) and each.name))
            plain = (each for each in found if why_unsafe(each.name) is None)
            # A file comes after the folder of its name, and is what the name means.
            ordered = sorted(plain, key=lambda each: (natural_key(each.name), each.nbytes is not None))
            self._folders[folder] = {each.name: each for each in ordered}
        return self._folders[folder]
