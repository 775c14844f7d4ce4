# SPDX-License-Identifier: Apache-2.0
"""An object store by a client in Python: what an object is, what lies in a folder, and small ranges.

Tensors go the native way. Each kind of store is a module of its own that answers four questions (`s3`, `gcs`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from weight_readers import CheckpointError, FileChangedError, StoredFile, UnreadableFileError
from weight_readers_runai import refusals
from weight_readers_runai.deadline import within
from weight_readers_runai.settings import StoreSettings
from weight_readers_runai.uris import Uri

BLOCK_BYTES = 8 << 20
"""Of one request, for which the reader's timeout counts."""
ATTEMPTS = 4
"""Three failures of a busy store are gone through. One attempt where the timeout is too short for more."""
BACKOFF_SECONDS = 8.0
CLIENT_SECONDS = 60.0
"""To make a client: its code is imported, which takes seconds on a busy machine, and services give credentials."""
MAX_LISTED = 100_000
"""Names of one folder; a bucket may hold any number."""

Name = tuple[str, int | None]
"""A key and its object's size, or the prefix of a folder below and None."""
_T = TypeVar("_T")


class ObjectState(NamedTuple):
    """What shows that an object is another by now: its size, and its ETag (or the word for it: ``generation 17``)."""

    nbytes: int
    etag: str

    def require(self, now: ObjectState, uri: Uri, tensor: str | None = None) -> None:
        """Raise FileChangedError unless ``now`` is this state."""
        if now != self:
            raise FileChangedError(
                "the object was changed while it was read",
                path=str(uri),
                tensor=tensor,
                expected=str(self),
                found=str(now),
                fix="Load again once its writer has finished; give a new upload a prefix of its own",
            )

    def __str__(self) -> str:
        word = "" if self.etag.startswith("generation ") else "ETag "
        return f"{self.nbytes} bytes, {word}{self.etag}"


class Store(ABC):
    """Raises CheckpointError, of the class that fits, for whatever a request meets with (`refusals`).

    No request takes longer than ``timeout`` seconds, its repetitions included.
    """

    def __init__(self, settings: StoreSettings, timeout: float) -> None:
        self.settings = settings
        self._timeout = timeout
        self._attempts = ATTEMPTS if timeout >= 2 * BACKOFF_SECONDS else 1
        self._made: Any = None
        self._lock = threading.Lock()

    def state(self, uri: Uri) -> ObjectState:
        """Size and version."""
        if not uri.key or uri.key.endswith("/"):
            raise UnreadableFileError("a prefix, not an object", path=str(uri), expected="the URI of a file")
        return self._ask(uri, lambda: self._state(uri))

    def head_with_checksums(self, uri: Uri) -> Mapping[str, Any]:
        """The checksums that the store keeps of the object, by the names of S3's HeadObject."""
        return self._ask(uri, lambda: self._checksums(uri))

    def read(self, uri: Uri, offset: int, length: int, state: ObjectState | None = None) -> bytes:
        """Exactly ``length`` bytes. Raises FileChangedError where the object is not in ``state`` any more."""
        blocks = range(offset, offset + length, BLOCK_BYTES)
        return b"".join(self._block(uri, at, min(BLOCK_BYTES, offset + length - at), state) for at in blocks)

    def require_same(self, uri: Uri, state: ObjectState, tensor: str | None = None) -> None:
        """Raise FileChangedError unless the bytes that are served are those of ``state``."""
        try:
            self._ask(uri, lambda: self._require_same(uri, state))
        except CheckpointError as error:
            error.tensor = tensor
            raise

    def require_here(self, uri: Uri) -> None:
        """Raise CheckpointError where the client in Python finds the object elsewhere than the native one does."""
        return

    def credentials(self, uri: Uri) -> Any:
        """What a session of the native library is told beside variables: an object of its own, None for nothing."""
        return None

    def list_folder(self, uri: Uri) -> list[StoredFile]:
        """What lies in the folder: a key prefix that ends in ``/``, so ``models/llama`` is never ``models/llama-old``.

        Folders below have no size. Empty where nothing lies there.
        """
        if not uri.bucket:
            raise UnreadableFileError("no bucket", path=str(uri), expected=f"{uri.scheme}://BUCKET/FOLDER")
        prefix = f"{uri.key.rstrip('/')}/" if uri.key.strip("/") else ""
        found: list[StoredFile] = []
        left = self._pages(uri, prefix)
        while (page := self._ask(uri, lambda: next(left, None))) is not None:
            # An object of the folder's own name marks it, as consoles make them.
            found += [_stored(uri, prefix, key, nbytes) for key, nbytes in page if key != prefix]
            if len(found) > MAX_LISTED:
                raise UnreadableFileError(
                    f"more than {MAX_LISTED} names lie there", path=str(uri), fix="Give the folder of one model"
                )
        return found

    def _block(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        data = self._ask(uri, lambda: self._read(uri, offset, length, state))
        if len(data) != length:
            raise refusals.cut(uri, expected=length, found=len(data), settings=self.settings)
        return data

    @abstractmethod
    def _state(self, uri: Uri) -> ObjectState: ...

    @abstractmethod
    def _read(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        """The range, or less of it; never more. Only of the object in ``state``."""

    @abstractmethod
    def _checksums(self, uri: Uri) -> Mapping[str, Any]: ...

    @abstractmethod
    def _pages(self, uri: Uri, prefix: str) -> Iterator[Sequence[Name]]:
        """What lies directly under ``prefix``, page by page."""

    def _require_same(self, uri: Uri, state: ObjectState) -> None:
        state.require(self._state(uri), uri)

    @abstractmethod
    def _make(self) -> Any:
        """The client."""

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def connect(self, uri: Uri) -> None:
        """Make the client, which no request's time is taken for. Raises CheckpointError where it cannot be made."""
        self._obtained(uri, self._client)

    def _obtained(self, uri: Uri, call: Callable[[], _T]) -> _T:
        """What a service may be asked for that gives credentials."""
        try:
            return within(CLIENT_SECONDS, call)
        except TimeoutError:
            raise refusals.no_client(uri, self.settings, CLIENT_SECONDS) from None
        except Exception as error:
            raise refusals.of_request(error, uri, self.settings, CLIENT_SECONDS) from error

    def _ask(self, uri: Uri, call: Callable[[], _T]) -> _T:
        if self._made is None:
            self.connect(uri)
        try:
            return within(self._timeout, call)
        except CheckpointError:
            raise
        except Exception as error:  # of the client, of what it is built on, or the socket's: one table for all
            raise refusals.of_request(error, uri, self.settings, self._timeout) from error

    def _each_attempt(self) -> float:
        """Seconds of one attempt, where a client repeats what failed ``_attempts`` times."""
        return self._timeout if self._attempts == 1 else (self._timeout - BACKOFF_SECONDS) / self._attempts


def _stored(folder: Uri, prefix: str, key: str, nbytes: int | None) -> StoredFile:
    name = key.removeprefix(prefix).rstrip("/") if nbytes is None else key.removeprefix(prefix)
    return StoredFile(name=name, path=str(folder._replace(key=key)), nbytes=nbytes)
