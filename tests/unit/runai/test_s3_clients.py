# SPDX-License-Identifier: Apache-2.0
"""One client for all readers that would make the same, in a time of its own. Who gives the credentials counts them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.files import write_tensors
from support.object_server import ObjectServer
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import UnreadableFileError
from weight_readers_loader import open_checkpoint
from weight_readers_runai import store
from weight_readers_runai.reader import StreamerReader

URI = "s3://models/m.safetensors"
KEYS = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}'


@pytest.fixture
def made(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many clients asked for the credentials of profile ``counted``; those of ``slow`` take two seconds."""
    server.objects["models/m.safetensors"] = write_tensors(tmp_path / "m", {"a": ("U8", [1], b"a")}).read_bytes()
    count = tmp_path / "count"
    count.touch()
    for name, first in (("counted", f"echo >> {count}"), ("slow", "sleep 2")):
        (tmp_path / name).write_text(f"{first}\necho '{KEYS}'\n")
    (tmp_path / "config").write_text(
        "".join(
            f"[profile {name}]\ncredential_process = sh {tmp_path / name}\nregion = us-east-1\n"
            for name in ("counted", "slow")
        )
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return lambda: len(count.read_text().splitlines())


def test_the_timeout_is_for_requests_and_not_for_making_the_client(made: Callable[[], int]) -> None:
    assert list(StreamerReader(timeout=1, profile="slow").read_meta([URI])) == ["a"]


def test_a_client_that_cannot_be_made_is_an_error_in_time(
    made: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CLIENT_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(UnreadableFileError, match=r"could not be made within 0\.5 seconds.*gives the credentials"):
        StreamerReader(profile="slow").read_meta([URI])
    assert time.monotonic() - began < 15


def test_readers_of_the_same_store_share_one_client(made: Callable[[], int]) -> None:
    for _ in range(2):
        StreamerReader(profile="counted").read_meta([URI])
    assert made() == 1


def test_a_stored_gguf_file_is_listed_and_fetched_by_one_client(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The native library asks for credentials too, so it is boto3 that is counted."""
    made = 0
    make = boto3.Session.client

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal made
        made += 1
        return make(*arguments, **keywords)

    monkeypatch.setattr(boto3.Session, "client", counted)
    monkeypatch.setenv("WEIGHT_READERS_CACHE_DIR", str(tmp_path / "cache"))
    server.objects["models/x.gguf"] = write_gguf(tmp_path / "x", {"a.weight": (8, (1, 32), bytes(34))}).read_bytes()
    assert len(open_checkpoint("s3://models/x.gguf").state_dict()) == 1
    assert made == 1


@pytest.mark.parametrize("what", ["variable", "file"])
def test_after_a_change_of_what_it_is_made_from_a_client_is_made_anew(
    made: Callable[[], int], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    StreamerReader(profile="counted").read_meta([URI])
    if what == "variable":
        monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    else:
        os.utime(os.environ["AWS_CONFIG_FILE"], ns=(1, 1))
    StreamerReader(profile="counted").read_meta([URI])
    assert made() == 2
