# SPDX-License-Identifier: Apache-2.0
"""The settings of ``gs://``: Google's own endpoint, or an emulator's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from weight_readers_runai.plugin import NAME
from weight_readers_runai.settings import StoreSettings, checked_endpoint, first

CREDENTIAL_FILE = "RUNAI_STREAMER_GCS_CREDENTIAL_FILE"
_ANONYMOUS = "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS"
_EMULATOR = "CLOUD_STORAGE_EMULATOR_ENDPOINT"
_ENDPOINTS = (_EMULATOR, "STORAGE_EMULATOR_HOST")
_PROJECT = "GOOGLE_CLOUD_CPP_USER_PROJECT"
_CREDENTIALS = (CREDENTIAL_FILE, "GOOGLE_APPLICATION_CREDENTIALS")


@dataclass(frozen=True, kw_only=True)
class GcsSettings(StoreSettings):
    """``project`` is the one that pays for the requests, where it is not the owner of the bucket."""

    ways = (
        "Set GOOGLE_APPLICATION_CREDENTIALS or log in (gcloud auth application-default login); "
        "unsigned=True for a public bucket",
        "CLOUD_STORAGE_EMULATOR_ENDPOINT or option endpoint= is for an emulator only",
    )

    unsigned: bool = False
    project: str | None = None

    def native(self) -> dict[str, str]:
        values = {
            _EMULATOR: self.endpoint,
            _ANONYMOUS: "true" if self.unsigned else "false",
            _PROJECT: self.project,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _said(self) -> dict[str, str]:
        none = "none" if self.unsigned else "default chain"
        return {
            "endpoint": self.endpoint or "https://storage.googleapis.com",
            "requests": "unsigned" if self.unsigned else "signed",
            "project": self.project or "none to pay for requests",
            "credentials": ", ".join(self.seen) or none,
        }


def resolve(
    *,
    endpoint: str | None = None,
    unsigned: bool | None = None,
    project: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> GcsSettings:
    """The settings that count. Raises ValueError for an endpoint that is no http URL, or that is to be signed for.

    The native client takes an endpoint only as an emulator's, and sends no credentials there; so both do.
    """
    environment = os.environ if environ is None else environ
    origins: dict[str, str] = {}
    endpoint = first("endpoint", endpoint, _ENDPOINTS, environment, origins)
    endpoint = checked_endpoint(endpoint, origins.get("endpoint", ""))
    if endpoint is not None and unsigned is False:
        raise ValueError(
            f"unsigned=False of reader {NAME!r} cannot be had with endpoint {endpoint} ({origins['endpoint']}): "
            "the native client of gs:// sends no credentials to any but Google's own. Leave out one of the two"
        )
    if unsigned is None and endpoint is None and environment.get(_ANONYMOUS):
        unsigned, origins["requests"] = environment[_ANONYMOUS].lower() in ("true", "1"), _ANONYMOUS
    return GcsSettings(
        endpoint=endpoint,
        unsigned=endpoint is not None or bool(unsigned),
        project=first("project", project, (_PROJECT,), environment, origins),
        origins=origins,
        seen=tuple(name for name in _CREDENTIALS if environment.get(name)),
    )
