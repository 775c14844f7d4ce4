# SPDX-License-Identifier: Apache-2.0
"""The settings of ``s3://``: boto3 and the native client each read the AWS_* variables by rules of their own."""

from __future__ import annotations

import ipaddress
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from weight_readers_runai import aws_config
from weight_readers_runai.settings import OPTION, StoreSettings, checked_endpoint, first

DEPRECATED_ENDPOINT = "RUNAI_STREAMER_S3_ENDPOINT"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", DEPRECATED_ENDPOINT)
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_VIRTUAL = "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"
_UNSIGNED = "RUNAI_STREAMER_S3_UNSIGNED"
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


@dataclass(frozen=True, kw_only=True)
class S3Settings(StoreSettings):
    """``profile`` is one that was asked for by the option, whatever keys the environment has.

    AWS_PROFILE is left to both clients: keys in the environment come before it.
    """

    ways = (
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or option profile=; unsigned=True for a public bucket",
        "AWS_ENDPOINT_URL or option endpoint= says where the store is",
    )

    region: str | None = None
    path_style: bool = False
    unsigned: bool = False
    profile: str | None = None

    def native(self) -> dict[str, str]:
        values = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            _VIRTUAL: "0" if self.path_style else "1",
            _UNSIGNED: "1" if self.unsigned else "0",
        }
        return {name: value for name, value in values.items() if value is not None}

    def _said(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint or "the AWS endpoint of the region",
            "region": self.region or "as boto3 and the library find it",
            "addressing": "path" if self.path_style else "virtual host",
            "requests": "unsigned" if self.unsigned else "signed",
            "credentials": f"profile {self.profile}" if self.profile else ", ".join(self.seen) or "default chain",
        }


def resolve(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    path_style: bool | None = None,
    unsigned: bool | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
    configured: Mapping[str, str] | None = None,
) -> S3Settings:
    """The settings that count. Raises ValueError naming option or variable for an endpoint that is no http URL.

    configured: what the configuration file says (`aws_config`), after options and variables.
    Path style is the default for an endpoint that was given, except Amazon's own: few others have a host name for
    every bucket. Unsigned requests are never guessed from missing credentials.
    """
    environment = os.environ if environ is None else environ
    origins: dict[str, str] = {}
    filed = {what: (value, aws_config.ORIGIN) for what, value in (configured or {}).items()}
    endpoint = first("endpoint", endpoint, _ENDPOINTS, environment, origins, filed.get("endpoint"))
    if origins.get("endpoint") == DEPRECATED_ENDPOINT:
        _warn_deprecated()
    endpoint = checked_endpoint(endpoint, origins.get("endpoint", ""))
    region = first("region", region, _REGIONS, environment, origins, filed.get("region"))
    if profile is not None:
        origins["credentials"] = OPTION
    if path_style is None and _VIRTUAL in environment:
        path_style, origins["addressing"] = environment[_VIRTUAL] == "0", _VIRTUAL
    if unsigned is None and _UNSIGNED in environment:
        unsigned, origins["requests"] = environment[_UNSIGNED] == "1", _UNSIGNED
    return S3Settings(
        endpoint=endpoint,
        region=region,
        path_style=_wants_path_style(endpoint) if path_style is None else path_style,
        unsigned=bool(unsigned),
        profile=profile,
        origins=origins,
        seen=tuple(name for name in _CREDENTIALS if environment.get(name)),
    )


def current(*, profile: str | None = None, **options: Any) -> S3Settings:
    """The settings of this process: its environment and its configuration file."""
    return resolve(profile=profile, configured=aws_config.configured(profile), **options)


def _wants_path_style(endpoint: str | None) -> bool:
    host = urlsplit(endpoint or "").hostname or ""
    return bool(host) and (_is_address(host) or not host.endswith((".amazonaws.com", ".amazonaws.com.cn")))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _warn_deprecated() -> None:
    warnings.warn(
        f"{DEPRECATED_ENDPOINT} is deprecated, and Run:ai 0.17 itself ignores it; it is honoured here. "
        "Set AWS_ENDPOINT_URL instead",
        FutureWarning,
        stacklevel=2,
    )
