# SPDX-License-Identifier: Apache-2.0
"""S3 by boto3: what an object is, what lies under a prefix, and small ranges. Tensors go the native way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from weight_readers import CheckpointError, FileChangedError, StoredFile, UnreadableFileError
from weight_readers_runai import refusals
from weight_readers_runai.deadline import within
from weight_readers_runai.settings import StoreSettings
from weight_readers_runai.uris import Uri

_ATTEMPTS = 4
"""Three failures of a busy store are gone through. One attempt where ``timeout`` is too short for more."""
_BACKOFF_SECONDS = 8.0
_PAGE_KEYS = 1000
_PIECE_BYTES = 1 << 20
BLOCK_BYTES = 8 << 20
"""Of one request, for which the reader's timeout counts."""
MAX_LISTED = 100_000
"""Names of one folder; a bucket may hold any number."""

_T = TypeVar("_T")


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
        self._attempts = _ATTEMPTS if timeout >= 2 * _BACKOFF_SECONDS else 1
        self._made: Any = None
        self._lock = threading.Lock()

    def state(self, uri: Uri) -> ObjectState:
        """Size and ETag."""
        if not uri.key or uri.key.endswith("/"):
            raise UnreadableFileError("a prefix, not an object", path=str(uri), expected="the URI of a file")
        answer = self._ask(uri, lambda: self._head(uri))
        return ObjectState(int(answer["ContentLength"]), str(answer.get("ETag", "")))

    def head_with_checksums(self, uri: Uri) -> Mapping[str, Any]:
        """The answer to HeadObject, with the checksums that the store keeps."""
        ask = partial(self._client().head_object, Bucket=uri.bucket, Key=uri.key, ChecksumMode="ENABLED")
        return cast("Mapping[str, Any]", self._ask(uri, ask))

    def read(self, uri: Uri, offset: int, length: int, state: ObjectState | None = None) -> bytes:
        """Exactly ``length`` bytes. Raises FileChangedError where the object is not in ``state`` any more."""
        blocks = range(offset, offset + length, BLOCK_BYTES)
        return b"".join(self._block(uri, at, min(BLOCK_BYTES, offset + length - at), state) for at in blocks)

    def require_same(self, uri: Uri, state: ObjectState, tensor: str | None = None) -> None:
        """Raise FileChangedError unless the bytes that are served are those of ``state``."""
        try:
            self._ask(uri, lambda: self._get(uri, 0, min(1, state.nbytes), state, heeding_match=False))
        except CheckpointError as error:
            error.tensor = tensor
            raise

    def _head(self, uri: Uri) -> Any:
        try:
            return self._client().head_object(Bucket=uri.bucket, Key=uri.key)
        except Exception as error:
            # The answer to HEAD has no body, hence no word of what is wrong; that to GET has.
            if isinstance(getattr(error, "response", None), dict):
                self._client().get_object(Bucket=uri.bucket, Key=uri.key, Range="bytes=0-0")["Body"].close()
            raise

    def _block(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        data = self._ask(uri, lambda: self._resumed(uri, offset, length, state))
        if len(data) != length:
            raise refusals.cut(uri, expected=length, found=len(data), settings=self.settings)
        return data

    def _resumed(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        """A connection that is cut is taken up where it ended, as often as a failed request is repeated."""
        data = b""
        for _ in range(self._attempts):
            data += self._get(uri, offset + len(data), length - len(data), state)
            if len(data) == length:
                break
        return data

    def _get(
        self, uri: Uri, offset: int, length: int, state: ObjectState | None, *, heeding_match: bool = True
    ) -> bytes:
        """``heeding_match``: have the store itself refuse another state, before it sends any of it."""
        same = {"IfMatch": state.etag} if heeding_match and state is not None and state.etag else {}
        wanted = f"bytes={offset}-{offset + length - 1}"
        answer = self._client().get_object(Bucket=uri.bucket, Key=uri.key, Range=wanted, **same)
        with closing(answer["Body"]) as body:
            total = self._require_range(uri, answer, offset, length)
            if state is not None:  # Not every store heeds If-Match.
                known = state.nbytes if total is None else total
                state.require(ObjectState(known, str(answer.get("ETag", "")) or state.etag), uri)
            return _whatever_comes(body, length)

    def region(self, bucket: str) -> str | None:
        """The region that the bucket is in, where the store says so."""
        try:
            answer = self._ask(Uri("s3", bucket, ""), lambda: self._client().head_bucket(Bucket=bucket))
        except CheckpointError:  # A right of its own, which reading objects does not need.
            return None
        found = answer.get("BucketRegion") or answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
        return str(found) if found else None

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
        def pages() -> Iterator[dict[str, Any]]:
            paginator = self._client().get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=uri.bucket, Prefix=prefix, Delimiter="/", MaxKeys=_PAGE_KEYS)

        left = pages()
        while (page := self._ask(uri, lambda: next(left, None))) is not None:
            yield page

    def _require_range(self, uri: Uri, answer: dict[str, Any], offset: int, length: int) -> int | None:
        """The size of the object, None where the answer does not tell.

        Raises CheckpointError for another range than the one asked for.
        """
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        span = str(answer.get("ContentRange", ""))
        # Whoever says 200 may mean the whole object; rclone says it of ranges, too, with and without naming them.
        if status == 200 and offset == 0 and not span and answer.get("ContentLength") == length:
            return None
        start, _, total = span.partition("/")
        if status not in (200, 206) or start != f"bytes {offset}-{offset + length - 1}" or not total.isdecimal():
            expected = f"HTTP 206 bytes {offset}-{offset + length - 1}"
            found = f"HTTP {status} {span or answer.get('ContentType', '')}".strip()
            raise refusals.range_refused(uri, expected=expected, found=found, settings=self.settings)
        return int(total)

    def _ask(self, uri: Uri, call: Callable[[], _T]) -> _T:
        try:
            return within(self._timeout, call)
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

        attempts = self._attempts
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


def _whatever_comes(body: Any, length: int) -> bytes:
    """What arrives before the body, or the connection under it, ends."""
    from botocore.exceptions import IncompleteReadError, ResponseStreamingError

    data = b""
    try:
        while len(data) < length and (more := body.read(min(_PIECE_BYTES, length - len(data)))):
            data += more
    except (IncompleteReadError, ResponseStreamingError):
        pass
    return data


def _stored(folder: Uri, prefix: str, key: str, nbytes: int | None) -> StoredFile:
    name = key.removeprefix(prefix).rstrip("/") if nbytes is None else key.removeprefix(prefix)
    return StoredFile(name=name, path=str(folder._replace(key=key)), nbytes=nbytes)
