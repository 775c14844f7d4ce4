# SPDX-License-Identifier: Apache-2.0
"""Clients of boto3. To make one takes a third of a second of work, so readers that would make the same share it."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

from weight_readers_runai.s3_settings import S3Settings

_CONNECT_SECONDS = 5.0
_MOST = 8
"""Clients that are kept when nobody uses them."""
_VARIABLES = re.compile(r"AWS_.*|BOTO_.*|HOME|.*_(CA_BUNDLE|PROXY)|SSL_CERT_.*", re.IGNORECASE)
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}


class S3Client(NamedTuple):
    """A client, and the session of boto3 that it was made by."""

    client: Any
    session: Any

    def keys(self) -> tuple[str, str, str | None]:
        """Key, secret and session token as they are now. Raises what boto3 raises where there are none."""
        from botocore.exceptions import NoCredentialsError

        found = self.session.get_credentials()
        if found is None:
            raise NoCredentialsError
        now = found.get_frozen_credentials()
        return now.access_key, now.secret_key, now.token


class _Slot:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: S3Client | None = None


_slots: OrderedDict[Hashable, _Slot] = OrderedDict()
_lock = threading.Lock()


def s3_client(settings: S3Settings, *, attempts: int, seconds: float) -> S3Client:
    """A client that asks ``attempts`` times, ``seconds`` each at most. Thread-safe, as boto3's are.

    Raises what boto3 raises: for a profile that is not there, or credentials that a service does not give.
    """
    with _lock:
        key = (_identity(settings), attempts, seconds, *_surroundings())
        slot = _slots.setdefault(key, _Slot())
        _slots.move_to_end(key)
        while len(_slots) > _MOST:
            _slots.popitem(last=False)
    with slot.lock:
        if slot.made is None:
            slot.made = _made(settings, attempts, seconds)
        return slot.made


def _identity(settings: S3Settings) -> Hashable:
    return settings.endpoint, settings.region, settings.path_style, settings.unsigned, settings.profile


def _surroundings() -> tuple[Hashable, ...]:
    """What else a client is made from; connections do not survive a fork."""
    variables = sorted((name, value) for name, value in os.environ.items() if _VARIABLES.fullmatch(name))
    files = [os.path.expanduser(os.environ.get(name) or usual) for name, usual in _FILES.items()]
    return os.getpid(), tuple(variables), *map(_state, files)


def _state(path: str) -> Hashable:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _made(settings: S3Settings, attempts: int, seconds: float) -> S3Client:
    import boto3
    import botocore.config
    import botocore.session

    config = botocore.config.Config(
        connect_timeout=min(seconds, _CONNECT_SECONDS),
        read_timeout=seconds,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        signature_version=botocore.UNSIGNED if settings.unsigned else None,
    )
    session = boto3.Session(profile_name=settings.profile, region_name=settings.region)
    return S3Client(session.client("s3", endpoint_url=settings.endpoint, config=config), session)
