# SPDX-License-Identifier: Apache-2.0
"""``s3://`` by boto3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from weight_readers import CheckpointError, UnreadableFileError
from weight_readers_runai import refusals
from weight_readers_runai.s3_clients import S3Client, s3_client
from weight_readers_runai.s3_settings import S3Settings
from weight_readers_runai.store import Name, ObjectState, Store
from weight_readers_runai.uris import Uri

_PAGE_KEYS = 1000
_PIECE_BYTES = 1 << 20


class S3Store(Store):
    settings: S3Settings

    def _state(self, uri: Uri) -> ObjectState:
        """Raises UnreadableFileError for a key by which the native client finds another object."""
        if {"", ".", ".."}.intersection(uri.key.split("/")):
            what = "the key has an empty part, or one of dots alone: not all clients keep those"
            raise UnreadableFileError(what, path=str(uri), fix="Copy the object to a key without")
        answer = self._head(uri)
        return ObjectState(int(answer["ContentLength"]), str(answer.get("ETag", "")))

    def _head(self, uri: Uri) -> Any:
        try:
            return self._client().head_object(Bucket=uri.bucket, Key=uri.key)
        except Exception as error:
            # The answer to HEAD has no body, hence no word of what is wrong; that to GET has.
            if isinstance(getattr(error, "response", None), dict):
                self._client().get_object(Bucket=uri.bucket, Key=uri.key, Range="bytes=0-0")["Body"].close()
            raise

    def _read(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        """A connection that is cut is taken up where it ended, as often as a failed request is repeated."""
        data = b""
        for _ in range(self._attempts):
            data += self._get(uri, offset + len(data), length - len(data), state)
            if len(data) == length:
                break
        return data

    def _require_same(self, uri: Uri, state: ObjectState) -> None:
        self._get(uri, 0, min(1, state.nbytes), state, heeding_match=False)

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

    def require_here(self, uri: Uri) -> None:
        """boto3 follows a bucket to its region, the native client does not."""
        region = self._region(uri.bucket)
        if region is not None and region != (self.settings.region or "us-east-1"):
            raise refusals.elsewhere(uri, region, self.settings)

    def _region(self, bucket: str) -> str | None:
        """The region that the bucket is in, where the store says so."""
        try:
            answer = self._ask(Uri("s3", bucket, ""), lambda: self._client().head_bucket(Bucket=bucket))
        except CheckpointError:  # A right of its own, which reading objects does not need.
            return None
        found = answer.get("BucketRegion") or answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
        return str(found) if found else None

    def _checksums(self, uri: Uri) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._client().head_object(Bucket=uri.bucket, Key=uri.key, ChecksumMode="ENABLED")
        return found

    def _pages(self, uri: Uri, prefix: str) -> Iterator[Sequence[Name]]:
        paginator = self._client().get_paginator("list_objects_v2")
        for page in paginator.paginate(Bucket=uri.bucket, Prefix=prefix, Delimiter="/", MaxKeys=_PAGE_KEYS):
            folders: list[Name] = [(each["Prefix"], None) for each in page.get("CommonPrefixes", ())]
            yield folders + [(each["Key"], int(each["Size"])) for each in page.get("Contents", ())]

    def _require_range(self, uri: Uri, answer: dict[str, Any], offset: int, length: int) -> int | None:
        """The size of the object, None where the answer does not tell.

        Raises CheckpointError for another range than the one asked for, or less of it than the answer claims.
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
        if (sent := answer.get("ContentLength", length)) < length:
            raise refusals.short(uri, f"{sent} bytes in an answer of {length}", self.settings)
        return int(total)

    def credentials(self, uri: Uri) -> Any:
        """Place, region, and whose keys: the library makes a client for each of its threads, when the variables are as
        before again, and reads the keys that it finds there. Empty keys are none: requests are not signed.

        Raises CheckpointError where there are no credentials in the profile that was asked for.
        """
        from runai_model_streamer.s3_utils.s3_utils import S3Credentials

        settings = self.settings
        keys: tuple[str | None, str | None, str | None] = (None, None, None)
        if settings.unsigned:
            keys = ("", "", None)
        elif settings.profile is not None:
            keys = self._obtained(uri, lambda: self._s3().keys())
        return S3Credentials(*keys, settings.region, settings.endpoint)

    def _client(self) -> Any:
        return self._s3().client

    def _s3(self) -> S3Client:
        made: S3Client = super()._client()
        return made

    def _make(self) -> S3Client:
        return s3_client(self.settings, attempts=self._attempts, seconds=self._each_attempt())


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
