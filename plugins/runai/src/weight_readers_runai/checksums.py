# SPDX-License-Identifier: Apache-2.0
"""Checksums that S3 keeps of whole objects, and the same of the bytes that arrive.

Names as in the answer to HeadObject with ``x-amz-checksum-mode: ENABLED`` (API reference, "Checking object
integrity"). CRC-32C and CRC-64/NVME are awscrt's.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, Protocol

from weight_readers import StoredDigest
from weight_readers_files.threads import Pool
from weight_readers_runai.store import BLOCK_BYTES, Store
from weight_readers_runai.uris import Uri

ALGORITHMS = {
    "sha256": "ChecksumSHA256",
    "crc64nvme": "ChecksumCRC64NVME",
    "sha1": "ChecksumSHA1",
    "crc32c": "ChecksumCRC32C",
    "crc32": "ChecksumCRC32",
}
"""The name of each in an answer, the strongest first."""

_CRC_BYTES = {"crc64nvme": 8, "crc32c": 4, "crc32": 4}
_OF_PARTS = re.compile(r'-\d+"?$')
_AHEAD = 4


class Hasher(Protocol):
    """As of hashlib."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc:
    def __init__(self, function: Callable[[bytes, int], int], nbytes: int) -> None:
        self._function = function
        self._nbytes = nbytes
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{2 * self._nbytes}x}"


def hasher(algorithm: str) -> Hasher:
    """Raises ValueError for an algorithm that S3 does not have."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no digest {algorithm!r}: there are {', '.join(ALGORITHMS)}")
    if algorithm not in _CRC_BYTES:
        return hashlib.new(algorithm, usedforsecurity=False)
    if algorithm == "crc32":
        return _Crc(zlib.crc32, 4)
    from awscrt import checksums

    return _Crc(getattr(checksums, algorithm), _CRC_BYTES[algorithm])


def stored(answer: Mapping[str, Any]) -> StoredDigest:
    """What an answer to HeadObject says of the object's whole content.

    A checksum of parts (``COMPOSITE``) is a checksum of their checksums: where the parts end is not known, so it is
    not compared. An ETag is none: it is the MD5 of the content for some objects of some stores, and nothing says
    for which.
    """
    given = {algorithm: str(answer[name]) for algorithm, name in ALGORITHMS.items() if answer.get(name)}
    if not given:
        return StoredDigest(remark="the store keeps no checksum of it")
    usable = {algorithm: value for algorithm, value in given.items() if _is_computed_here(algorithm)}
    if not usable:
        install = 'pip install "weight-readers-runai[s3]"'
        return StoredDigest(remark=f"the store has its {', '.join(given)}, which takes awscrt to compute: {install}")
    algorithm, value = next(iter(usable.items()))
    if _is_of_parts(answer, value):
        return StoredDigest(
            remark=f"the store's {algorithm} is one of its parts (a multipart upload), not of the whole"
        )
    text = base64.b64decode(value).hex()
    return StoredDigest(algorithm=algorithm, value=text, remark=f"the store's checksum, {ALGORITHMS[algorithm]}")


def _is_computed_here(algorithm: str) -> bool:
    return algorithm not in ("crc64nvme", "crc32c") or importlib.util.find_spec("awscrt") is not None


def _is_of_parts(answer: Mapping[str, Any], value: str) -> bool:
    kind = answer.get("ChecksumType")
    if kind is not None:
        return bool(kind != "FULL_OBJECT")
    # Stores that do not say the kind show it by the number of parts.
    return any(_OF_PARTS.search(text) for text in (value, str(answer.get("ETag", ""))))


def digest(store: Store, uri: Uri, algorithm: str, on_bytes: Callable[[int], None] | None) -> str:
    """Hex digits of the content as it arrives by ranges, all of one state of the object."""
    sums, state = hasher(algorithm), store.state(uri)
    blocks = range(0, state.nbytes, BLOCK_BYTES)
    for data in _in_order(partial(store.read, uri, at, min(BLOCK_BYTES, state.nbytes - at), state) for at in blocks):
        sums.update(data)
        if on_bytes is not None:
            on_bytes(len(data))
    state.require(store.state(uri), uri)
    return sums.hexdigest()


def _in_order(reads: Iterator[Callable[[], bytes]]) -> Iterator[bytes]:
    """The results of ``reads`` in their order, with a few under way at a time."""
    with Pool(_AHEAD, thread_name_prefix="object-digest") as pool:
        under_way: list[Future[bytes]] = [pool.submit(read) for read in islice(reads, _AHEAD)]
        try:
            while under_way:
                yield under_way.pop(0).result()
                under_way += [pool.submit(read) for read in islice(reads, 1)]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
