# SPDX-License-Identifier: Apache-2.0
"""``s3://`` by boto3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weight_readers_runai import refusals
from weight_readers_runai.s3_settings import S3Settings
from weight_readers_runai.store import ObjectState, Store
from weight_readers_runai.uris import Uri

_ATTEMPTS = 4
"""Three failures of a busy store are gone through. One attempt where ``timeout`` is too short for more."""
_BACKOFF_SECONDS = 8.0
_PAGE_KEYS = 1000


class S3Store(Store):
    settings: S3Settings

    def _state(self, uri: Uri) -> ObjectState:
        answer = self._client().head_object(Bucket=uri.bucket, Key=uri.key)
        return ObjectState(int(answer["ContentLength"]), str(answer.get("ETag", "")))

    def _read(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        same = {"IfMatch": state.etag} if state is not None and state.etag else {}
        wanted = f"bytes={offset}-{offset + length - 1}"
        answer = self._client().get_object(Bucket=uri.bucket, Key=uri.key, Range=wanted, **same)
        self._require_range(uri, answer, offset, length)
        data: bytes = answer["Body"].read(length)
        return data

    def _walk(self, uri: Uri, prefix: str) -> Iterator[tuple[str, int | None]]:
        paginator = self._client().get_paginator("list_objects_v2")
        for page in paginator.paginate(Bucket=uri.bucket, Prefix=prefix, Delimiter="/", MaxKeys=_PAGE_KEYS):
            yield from ((each["Prefix"], None) for each in page.get("CommonPrefixes", ()))
            yield from ((each["Key"], int(each["Size"])) for each in page.get("Contents", ()))

    def _require_range(self, uri: Uri, answer: dict[str, Any], offset: int, length: int) -> None:
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        span = str(answer.get("ContentRange", ""))
        # rclone says 200 where the range is the whole object, as it may.
        is_whole = status == 200 and offset == 0 and answer.get("ContentLength") == length
        if not is_whole and (status != 206 or not span.startswith(f"bytes {offset}-{offset + length - 1}/")):
            answer["Body"].close()
            raise refusals.range_refused(uri, found=f"HTTP {status} {span}".strip(), settings=self.settings)

    def _make(self) -> Any:
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
