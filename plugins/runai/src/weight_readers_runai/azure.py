# SPDX-License-Identifier: Apache-2.0
"""``az://`` by azure-storage-blob: ``az://container/blob`` of one storage account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from weight_readers import UnreadableFileError
from weight_readers_runai.azure_settings import KEY, SAS_TOKEN, AzureSettings
from weight_readers_runai.store import ObjectState, Store
from weight_readers_runai.uris import Uri

_ATTEMPTS = 4
_BACKOFF_SECONDS = 8.0


class AzureStore(Store):
    settings: AzureSettings

    def _state(self, uri: Uri) -> ObjectState:
        found = self._blob(uri).get_blob_properties()
        return ObjectState(int(found.size), str(found.etag))

    def _read(self, uri: Uri, offset: int, length: int, state: ObjectState | None) -> bytes:
        from azure.core import MatchConditions

        same = {"etag": state.etag, "match_condition": MatchConditions.IfNotModified} if state is not None else {}
        data: bytes = self._blob(uri).download_blob(offset=offset, length=length, max_concurrency=1, **same).readall()
        return data

    def _walk(self, uri: Uri, prefix: str) -> Iterator[tuple[str, int | None]]:
        from azure.storage.blob import BlobPrefix

        container = self._client().get_container_client(uri.bucket)
        for each in container.walk_blobs(name_starts_with=prefix or None, delimiter="/"):
            yield each.name, None if isinstance(each, BlobPrefix) else int(each.size)

    def _blob(self, uri: Uri) -> Any:
        # A key that ends in no name would be asked of the container.
        return self._client().get_blob_client(uri.bucket, uri.key)

    def _make(self) -> Any:
        from azure.storage.blob import BlobServiceClient, ExponentialRetry

        if self.settings.endpoint is None:
            fix = "Set AZURE_STORAGE_ACCOUNT_NAME, or option account="
            raise UnreadableFileError("no storage account is named", path="az://", found=str(self.settings), fix=fix)
        attempts = _ATTEMPTS if self._timeout >= 2 * _BACKOFF_SECONDS else 1
        each = self._timeout if attempts == 1 else (self._timeout - _BACKOFF_SECONDS) / attempts
        return BlobServiceClient(
            self.settings.endpoint,
            credential=self._credential(),
            retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=attempts - 1),
            connection_timeout=min(each, 5.0),
            read_timeout=each,
        )

    def _credential(self) -> Any:
        """In the order of the native client."""
        if token := os.environ.get(SAS_TOKEN):
            return token.lstrip("?")
        if key := os.environ.get(KEY):
            return {"account_name": self.settings.account, "account_key": key}
        from azure.identity import DefaultAzureCredential

        return DefaultAzureCredential()
