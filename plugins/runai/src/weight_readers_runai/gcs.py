# SPDX-License-Identifier: Apache-2.0
"""``gs://`` by google-cloud-storage."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weight_readers import UnreadableFileError
from weight_readers_runai import refusals
from weight_readers_runai.gcs_settings import CREDENTIAL_FILE, GcsSettings
from weight_readers_runai.store import Name, ObjectState, Store
from weight_readers_runai.uris import Uri

_CONNECT_SECONDS = 5.0
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"


class GcsStore(Store):
    settings: GcsSettings

    def _state(self, uri: Uri) -> ObjectState:
        blob = self._blob(uri)
        blob.reload(**self._patience())
        if blob.content_encoding == "gzip":
            what = "stored compressed (Content-Encoding: gzip): its ranges are not those of the file"
            fix = "Upload it without compression (gcloud storage cp without --gzip-local)"
            raise UnreadableFileError(what, path=str(uri), fix=fix)
        return ObjectState(int(blob.size), f"generation {blob.generation}")

    def _read(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        data = _Bounded(length)
        try:
            self._blob(uri).download_to_file(
                data,
                start=offset,
                end=offset + length - 1,
                raw_download=True,
                if_generation_match=int(state.etag.split()[-1]) if state is not None else None,
                checksum=None,
                **self._patience(),
            )
        except _TooMuchError:
            found = "more bytes than were asked for"
            raise refusals.range_refused(uri, found=found, settings=self.settings) from None
        return data.getvalue()

    def _checksums(self, uri: Uri) -> Mapping[str, Any]:
        blob = self._blob(uri)
        blob.reload(**self._patience())
        return {"ChecksumCRC32C": blob.crc32c, "ChecksumType": "FULL_OBJECT"}

    def _pages(self, uri: Uri, prefix: str) -> Iterator[Sequence[Name]]:
        listed = self._bucket(uri).list_blobs(prefix=prefix or None, delimiter="/", **self._patience())
        for page in listed.pages:
            blobs: list[Name] = [(blob.name, int(blob.size)) for blob in page]
            yield [*((below, None) for below in page.prefixes), *blobs]

    def _blob(self, uri: Uri) -> Any:
        return self._bucket(uri).blob(uri.key)

    def _bucket(self, uri: Uri) -> Any:
        return self._client().bucket(uri.bucket, user_project=self.settings.project)

    def _patience(self) -> dict[str, Any]:
        """What fails is repeated for half of the time; the last attempt has the other half."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        half = self._timeout / 2
        return {"timeout": (min(half, _CONNECT_SECONDS), half), "retry": DEFAULT_RETRY.with_timeout(half)}

    def _make(self) -> Any:
        from google.cloud import storage

        place = {"api_endpoint": self.settings.endpoint} if self.settings.endpoint else None
        return storage.Client(project=None, credentials=self._credentials(), client_options=place)

    def _credentials(self) -> Any:
        import google.auth
        import google.auth.credentials

        auth: Any = google.auth
        if self.settings.unsigned:
            return auth.credentials.AnonymousCredentials()
        if not (file := os.environ.get(CREDENTIAL_FILE)):
            return auth.default([_SCOPE])[0]
        # A service account's key, as the native client takes it there.
        service_account: Any = importlib.import_module("google.oauth2.service_account")
        return service_account.Credentials.from_service_account_file(file, scopes=[_SCOPE])


class _TooMuchError(Exception):
    pass


class _Bounded(io.BytesIO):
    """Takes no more than was asked for, however much a server sends."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self._limit:
            raise _TooMuchError
        return super().write(data)
