# SPDX-License-Identifier: Apache-2.0
"""The settings of ``az://``: the storage account, by its name and the domain of its endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from weight_readers_runai.settings import StoreSettings, checked_endpoint, first

KEY, SAS_TOKEN = "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
_ACCOUNT, _SUFFIX = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT_SUFFIX"
_CREDENTIALS = (SAS_TOKEN, KEY, "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_STORAGE_CONNECTION_STRING")
_DOMAIN = "blob.core.windows.net"


@dataclass(frozen=True, kw_only=True)
class AzureSettings(StoreSettings):
    """``endpoint`` is ``https://ACCOUNT.DOMAIN``, None where no account is named."""

    ways = (
        "Set AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_ACCOUNT_KEY, or log in (az login); a connection string "
        "is not read, since the native client reads none",
        "AZURE_STORAGE_ACCOUNT_NAME or option account= names the account",
    )

    account: str | None = None

    def native(self) -> dict[str, str]:
        if self.account is None or self.endpoint is None:
            return {}
        domain = self.endpoint.removeprefix(f"https://{self.account}.")
        return {_ACCOUNT: self.account, _SUFFIX: domain}

    def _said(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint or f"none: no account is named ({_ACCOUNT}, option account=)",
            "account": self.account or "none",
            "credentials": ", ".join(self.seen) or "default chain",
        }


def resolve(
    *, endpoint: str | None = None, account: str | None = None, environ: Mapping[str, str] | None = None
) -> AzureSettings:
    """The settings that count. Raises ValueError for an endpoint that is not ``https://ACCOUNT.DOMAIN``.

    The native client knows an account and the domain that follows it, and no other form.
    """
    environment = os.environ if environ is None else environ
    origins: dict[str, str] = {}
    account = first("account", account, (_ACCOUNT,), environment, origins)
    if endpoint is None:
        domain = first("endpoint", None, (_SUFFIX,), environment, origins) or _DOMAIN
        endpoint = f"https://{account}.{domain}" if account else None
    else:
        endpoint = checked_endpoint(first("endpoint", endpoint, (), environment, origins), origins["endpoint"])
        account = _account_of(endpoint or "", account, origins)
    return AzureSettings(
        endpoint=endpoint,
        account=account,
        origins=origins,
        seen=tuple(name for name in _CREDENTIALS if environment.get(name)),
    )


def _account_of(endpoint: str, account: str | None, origins: dict[str, str]) -> str:
    host = endpoint.removeprefix("https://")
    named, dot, domain = host.partition(".")
    if host == endpoint or not named or not dot or not domain or "/" in host:
        raise ValueError(
            f"endpoint {endpoint!r} ({origins['endpoint']}) must have the form https://ACCOUNT.DOMAIN for az://"
        )
    if account not in (None, named):
        raise ValueError(f"endpoint {endpoint!r} is of account {named!r}, and {origins['account']} says {account!r}")
    origins.setdefault("account", origins["endpoint"])
    return named
