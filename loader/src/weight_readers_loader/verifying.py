# SPDX-License-Identifier: Apache-2.0
"""What `verify` of a load means for these files: which digests, which bytes arrive anyway, which are read besides."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from weight_readers import FileMeta, ListsFiles, TensorMeta, UnreadableFileError, WeightReader
from weight_readers.tensors import UNKNOWN
from weight_readers_loader.digests import hash_of_file, references
from weight_readers_loader.hashing import Piece, ReadAt, pieces_of
from weight_readers_loader.resolve import Layout
from weight_readers_loader.verifier import Verifier
from weight_readers_loader.wanted import Wanted
from weight_readers_loader.wording import some

Verify = bool | str | os.PathLike[str]
"""False for no, True for the digests that are known without a manifest, or the path of one."""


def verifier_of(
    verify: Verify, layout: Layout, files: Sequence[FileMeta], wanted: Wanted, reader: WeightReader
) -> Verifier | None:
    """What verifies a load of ``wanted``, or None. Files of which nothing is wanted are not looked at.

    Raises TypeError, BadIndexError for what is no manifest, and ValueError where a file has no digest, or where its
    digest needs bytes of a store that the load does not ask for.
    """
    if not isinstance(verify, (bool, str, os.PathLike)):
        raise TypeError(f"verify must be True, False, or the path of a manifest, not {verify!r}")
    if verify is False:
        return None
    delivered = _delivered(wanted)
    digests = references(layout.files, None if verify is True else verify)
    read = [file for file in layout.files if file.path in delivered]
    if unknown := [file.name for file in read if file.name not in digests]:
        fix = "Pass a manifest with their digests, as sha256sum writes it, or load without verification"
        raise ValueError(f"no digest to verify {some(unknown)} against. {fix}")
    pieces = {file.path: pieces_of(file, delivered[file.path]) for file in files if file.path in delivered}
    known = {file.path: digests[file.name] for file in read}
    if layout.scheme == "file":
        return Verifier(known, pieces, _file, again=hash_of_file)
    return Verifier(known, pieces, _store(reader, files, pieces))


def _delivered(wanted: Wanted) -> dict[str, list[TensorMeta]]:
    """The tensors whose bytes arrive as they are stored, by file; every file of which anything is wanted has a list."""
    found: defaultdict[str, list[TensorMeta]] = defaultdict(list)
    for name, meta in wanted.tensors.items():
        as_stored = meta.converted is None and meta.dtype != UNKNOWN and name not in wanted.slices
        found[meta.file] += [meta] if as_stored else []
    return dict(found)


def _file(path: str) -> ReadAt:
    def read_at(begin: int, end: int) -> bytes:
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(begin)
                return b"".join(iter(lambda: file.read(end - file.tell()), b""))
        except OSError as error:
            raise UnreadableFileError("cannot read the file", path=path, found=error.strerror) from error

    return read_at


def _store(
    reader: WeightReader, files: Sequence[FileMeta], pieces: Mapping[str, Sequence[Piece]]
) -> Callable[[str], ReadAt]:
    """Reads the headers of objects; raises ValueError where more than those would have to be read besides."""
    ends = {file.path: file.header_bytes for file in files}
    for path, parts in pieces.items():
        besides = sum(part.end - part.begin for part in parts if part.name is None and part.end > ends[path])
        if besides or not isinstance(reader, ListsFiles):
            raise ValueError(
                f"verifying hashes whole files, and {besides or ends[path]} bytes of {path} would not arrive with what "
                "is asked for. Load all of it, or verify a local copy"
            )

    def of(path: str) -> ReadAt:
        assert isinstance(reader, ListsFiles)  # noqa: S101 - for mypy: refused above
        return lambda begin, end: reader.read_start(path, end)[begin:]

    return of
