# SPDX-License-Identifier: Apache-2.0
"""S3 by boto3: what an object is, what lies under a prefix, and small ranges. Tensors go the native way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from weight_readers import CheckpointError, FileChangedError, StoredFile, UnreadableFileError
from weight_readers_runai import refusals
from weight_readers_runai.settings import StoreSettings
from weight_readers_runai.uris import Uri

_ATTEMPTS = 4
"""Three failures of a busy store are gone through. One attempt where ``timeout`` is too short for more."""
_BACKOFF_SECONDS = 8.0
_PAGE_KEYS = 1000
MAX_LISTED = 100_000
"""Names of one folder; a bucket may hold any number."""


class ObjectState(NamedTuple):
    """What shows that an object is another by now."""

    nbytes: int
    etag: str

    def require(self, now: ObjectState, uri: Uri, tensor: str | None = None) -> None:
        """Raise FileChangedError unless ``now`` is this state."""
        if now != self:
            raise FileChangedError(
                "the object was changed while it was read",
                path=str(uri),
                tensor=tensor,
                expected=f"{self.nbytes} bytes, ETag {self.etag}",
                found=f"{now.nbytes} bytes, ETag {now.etag}",
                fix="Load again once its writer has finished; give a new upload a prefix of its own",
            )


class Store:
    """Raises CheckpointError, of the class that fits, for whatever a request meets with (`refusals`)."""

    def __init__(self, settings: StoreSettings, timeout: float) -> None:
        self.settings = settings
        self._timeout = timeout
        self._made: Any = None
        self._lock = threading.Lock()

    def state(self, uri: Uri) -> ObjectState:
        """Size and ETag."""
        if not uri.key or uri.key.endswith("/"):
            raise UnreadableFileError("a prefix, not an object", path=str(uri), expected="the URI of a file")
        with self._asking(uri):
            answer = self._client().head_object(Bucket=uri.bucket, Key=uri.key)
        return ObjectState(int(answer["ContentLength"]), str(answer.get("ETag", "")))

    def read(self, uri: Uri, offset: int, length: int, state: ObjectState | None = None) -> bytes:
        """Exactly ``length`` bytes. Raises FileChangedError where the object is not in ``state`` any more."""
        if not length:
            return b""
        same = {"IfMatch": state.etag} if state is not None and state.etag else {}
        wanted = f"bytes={offset}-{offset + length - 1}"
        with self._asking(uri):
            answer = self._client().get_object(Bucket=uri.bucket, Key=uri.key, Range=wanted, **same)
            self._require_range(uri, answer, offset, length)
            data: bytes = answer["Body"].read(length)
        if len(data) != length:
            raise refusals.short(uri, expected=length, found=len(data), settings=self.settings)
        return data

    def list_folder(self, uri: Uri) -> list[StoredFile]:
        """What lies in the folder: a key prefix that ends in ``/``, so ``models/llama`` is never ``models/llama-old``.

        Folders below have no size. Empty where nothing lies there.
        """
        prefix = f"{uri.key.rstrip('/')}/" if uri.key.strip("/") else ""
        found: list[StoredFile] = []
        for page in self._pages(uri, prefix):
            found += [_stored(uri, prefix, each["Prefix"], None) for each in page.get("CommonPrefixes", ())]
            # An object of the folder's own name marks it, as consoles make them.
            keys = [each for each in page.get("Contents", ()) if each["Key"] != prefix]
            found += [_stored(uri, prefix, each["Key"], int(each["Size"])) for each in keys]
            if len(found) > MAX_LISTED:
                raise UnreadableFileError(
                    f"more than {MAX_LISTED} names lie there", path=str(uri), fix="Give the folder of one model"
                )
        return found

    def _pages(self, uri: Uri, prefix: str) -> Iterator[dict[str, Any]]:
        with self._asking(uri):
            paginator = self._client().get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=uri.bucket, Prefix=prefix, Delimiter="/", MaxKeys=_PAGE_KEYS)

    def _require_range(self, uri: Uri, answer: dict[str, Any], offset: int, length: int) -> None:
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        span = str(answer.get("ContentRange", ""))
        # rclone says 200 where the range is the whole object, as it may.
        is_whole = status == 200 and offset == 0 and answer.get("ContentLength") == length
        if not is_whole and (status != 206 or not span.startswith(f"bytes {offset}-{offset + length - 1}/")):
            answer["Body"].close()
            raise refusals.range_refused(uri, found=f"HTTP {status} {span}".strip(), settings=self.settings)

    @contextmanager
    def _asking(self, uri: Uri) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # botocore's, urllib3's and the socket's: what each means is one table
            raise refusals.of_request(error, uri, self.settings, self._timeout) from error

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> Any:
        """No request may take longer than the reader's timeout, its repetitions included."""
        import boto3
        import botocore.config
        import botocore.session

        attempts = _ATTEMPTS if self._timeout >= 2 * _BACKOFF_SECONDS else 1
        each = self._timeout if attempts == 1 else (self._timeout - _BACKOFF_SECONDS) / attempts
        config = botocore.config.Config(
            connect_timeout=min(each, 5.0),
            read_timeout=each,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            s3={"addressing_style": "path" if self.settings.path_style else "auto"},
            signature_version=botocore.UNSIGNED if self.settings.unsigned else None,
        )
        session = boto3.Session(profile_name=self.settings.profile, region_name=self.settings.region)
        return session.client("s3", endpoint_url=self.settings.endpoint, config=config)


def _stored(folder: Uri, prefix: str, key: str, nbytes: int | None) -> StoredFile:
    name = key.removeprefix(prefix).rstrip("/") if nbytes is None else key.removeprefix(prefix)
    return StoredFile(name=name, path=str(folder._replace(key=key)), nbytes=nbytes)
