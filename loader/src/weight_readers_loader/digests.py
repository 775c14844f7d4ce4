# SPDX-License-Identifier: Apache-2.0
"""Compare the content of files with digests from elsewhere: a manifest, a git-lfs pointer, an HF blob name, a store.

The safetensors format holds no checksum, so a flipped bit shows only against such a reference
(vllm-project/vllm#53537).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weight_readers import BadIndexError, CheckpointError, DigestMismatchError, UnreadableFileError
from weight_readers_loader.resolve import LayoutFile
from weight_readers_loader.resolve.hub.cache import delete_both

_CHUNK_BYTES = 8 << 20
_SUM_LINE = re.compile(r"(?P<escaped>\\?)(?P<digest>[0-9a-fA-F]{64})[ \t]+\*?(?P<name>.+)")
_TAGGED_LINE = re.compile(r"(?P<escaped>\\?)SHA256 \((?P<name>.+)\) = (?P<digest>[0-9a-fA-F]{64})")
_LFS_OID = re.compile(r"^oid sha256:(?P<digest>[0-9a-f]{64})\s*$", re.MULTILINE)
_LFS_HEAD = "version https://git-lfs.github.com/spec/"
_BLOB = re.compile(r"[0-9a-f]{64}")
_POINTER_LIMIT = 1024


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What the content of a file should have as its digest (hex digits), and where that is said."""

    value: str
    source: str
    algorithm: str = "sha256"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The outcome: files found right and by which algorithms, files without a reference, and the problems."""

    right: tuple[str, ...]
    unknown: tuple[str, ...]
    problems: tuple[CheckpointError, ...]
    algorithms: tuple[str, ...] = ()


def references(files: Iterable[LayoutFile], manifest: str | os.PathLike[str] | None) -> dict[str, Digest]:
    """File name -> digest, from ``manifest`` where given, else from the names of HF cache blobs.

    ``manifest`` is a file as sha256sum writes it, a git-lfs pointer (for a checkpoint of one file), or a folder
    with the pointers of a clone made without git-lfs. Raises BadIndexError for what is none of these.
    """
    listed = list(files)
    if manifest is None:
        return {file.name: digest for file in listed if (digest := _blob_digest(file)) is not None}
    path = Path(manifest).expanduser()
    if path.is_dir():
        found = {file.name: digest for file in listed if (digest := _pointer(path / file.name)) is not None}
        return found or _refuse(path, "a folder with git-lfs pointers for these files")
    if (pointer := _pointer(path)) is not None:
        return (
            {listed[0].name: pointer} if len(listed) == 1 else _refuse(path, "one pointer for each file, in a folder")
        )
    return _of_files(listed, _sums(path), path)


class Hash(Protocol):
    """The digest of what lies at a path, in hex digits. Raises CheckpointError."""

    def __call__(self, path: str, algorithm: str, *, on_bytes: Callable[[int], None] | None = None) -> str: ...


def hash_of_file(path: str, algorithm: str, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """The digest of a file of this machine."""
    digest = hashlib.new(algorithm)
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                if on_bytes is not None:
                    on_bytes(count)
    except OSError as error:
        raise UnreadableFileError("cannot read the file", path=path, found=error.strerror) from error
    return digest.hexdigest()


def verify(
    files: Iterable[LayoutFile],
    digests: Mapping[str, Digest],
    *,
    hash_of: Hash = hash_of_file,
    on_bytes: Callable[[int], None] | None = None,
) -> Verified:
    """Hash every file that has a reference and compare."""
    right: list[str] = []
    unknown: list[str] = []
    problems: list[CheckpointError] = []
    for file in files:
        expected = digests.get(file.name)
        if expected is None:
            unknown.append(file.name)
            continue
        try:
            _compare(file, expected, hash_of, on_bytes)
            right.append(file.name)
        except CheckpointError as error:
            problems.append(error)
    algorithms = tuple(sorted({digests[name].algorithm for name in right}))
    return Verified(right=tuple(right), unknown=tuple(unknown), problems=tuple(problems), algorithms=algorithms)


def _compare(file: LayoutFile, expected: Digest, hash_of: Hash, on_bytes: Callable[[int], None] | None) -> None:
    found = hash_of(file.path, expected.algorithm, on_bytes=on_bytes)
    if found != expected.value:
        raise mismatch(file.path, expected, found)


def mismatch(path: str, expected: Digest, found: str) -> DigestMismatchError:
    """The error for content whose digest was ``found`` to be another than the one it should have."""
    return DigestMismatchError(
        "the content is not what it should be",
        path=path,
        expected=f"{expected.algorithm} {expected.value} ({expected.source})",
        found=f"{expected.algorithm} {found}",
        fix=_fix(path),
    )


def _blob_digest(file: LayoutFile) -> Digest | None:
    """The name of the blob behind a link of the Hugging Face cache is the sha256 of LFS files."""
    target = os.path.realpath(file.path)
    name = os.path.basename(target)
    in_cache = os.path.basename(os.path.dirname(target)) == "blobs" and _BLOB.fullmatch(name)
    return Digest(value=name, source="name of its blob in the cache") if in_cache else None


def _pointer(path: Path) -> Digest | None:
    try:
        text = path.read_bytes()[:_POINTER_LIMIT].decode("utf-8", "replace") if path.is_file() else ""
    except OSError:
        return None
    match = _LFS_OID.search(text.replace("\r\n", "\n")) if text.startswith(_LFS_HEAD) else None
    return Digest(value=match["digest"], source=f"git-lfs pointer {path}") if match else None


def _of_files(files: Iterable[LayoutFile], sums: Mapping[str, Digest], path: Path) -> dict[str, Digest]:
    """The digest of each file. A manifest made in another folder has longer names that end with the file's."""
    found: dict[str, Digest] = {}
    for file in files:
        matches = [digest for name, digest in sums.items() if name == file.name or name.endswith(f"/{file.name}")]
        exact = [sums[file.name]] if file.name in sums else matches
        if len({digest.value for digest in exact}) > 1:
            said = " and ".join(digest.source for digest in exact)
            _refuse(path, f"one digest for {file.name}", f"several: {said}")
        if exact:
            found[file.name] = exact[0]
    return found


_MANIFEST = "Give a text file that this user may read, as `sha256sum *.safetensors > FILE` makes it"


def _sums(path: Path) -> dict[str, Digest]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError("cannot read the manifest", path=path, found=str(error), fix=_MANIFEST) from error
    digests: dict[str, Digest] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SUM_LINE.fullmatch(line.strip()) or _TAGGED_LINE.fullmatch(line.strip())
        if match is None:
            raise _unusable(path, "lines of 'sha256  file name'", f"line {number}: {line[:80]!r}")
        name = _unescaped(match["name"]) if match["escaped"] else match["name"]
        digest = Digest(value=match["digest"].lower(), source=f"{path} line {number}")
        known = digests.setdefault(name.removeprefix("./"), digest)
        if known.value != digest.value:
            raise _unusable(path, f"one digest for {name}", f"another one in line {number}")
    return digests or _refuse(path, "lines of 'sha256  file name'", "none")


def _unescaped(name: str) -> str:
    """sha256sum marks a line whose name has a backslash or a line break in it, and escapes those."""
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "r": "\r"}.get(match[1], match[1]), name)


def _unusable(path: Path, expected: str, found: str | None = None) -> BadIndexError:
    fix = "Make one with `sha256sum *.safetensors > FILE` where the files are known to be right"
    return BadIndexError("not a usable manifest", path=path, expected=expected, found=found, fix=fix)


def _refuse(path: Path, expected: str, found: str | None = None) -> dict[str, Digest]:
    raise _unusable(path, expected, found)


def _fix(path: str) -> str:
    if "://" in path:
        return "Upload this object again"
    return delete_both(path) or "Delete this file and download it again"
