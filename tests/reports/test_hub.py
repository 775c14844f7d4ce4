# SPDX-License-Identifier: Apache-2.0
"""Public reports about the Hub's cache and offline use, each with the smallest input that shows it."""

from __future__ import annotations

import logging
import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file
from support.hub_models import quantized_repository, sharded, write_cache
from support.hub_server import HubServer, commit_of, only_loopback

from weight_readers import (
    AmbiguousCheckpointError,
    CheckpointError,
    CheckpointNotFoundError,
    MissingShardError,
    TruncatedFileError,
    UnreadableFileError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_loader.resolve import resolve
from weight_readers_loader.resolve.hub import stall

FIRST, SECOND, THIRD = commit_of(1), commit_of(2), commit_of(3)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a process that is offline, and in which no socket can be opened."""

    def refuse(*arguments: Any, **keywords: Any) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.chdir(tmp_path)
    only_loopback(monkeypatch, "http://127.0.0.1:9", str(tmp_path / "cache"), offline=True)
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub on loopback that answers, with an empty cache."""
    with HubServer().running() as server:
        monkeypatch.chdir(tmp_path)
        only_loopback(monkeypatch, server.endpoint, str(tmp_path / "cache"))
        yield server
        huggingface_hub.close_session()


def refused(reference: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(reference)
    return caught.value


class TestB070BothFormatsAreDownloaded:
    SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

    @pytest.fixture
    def both(self, hub: HubServer, tmp_path: Path) -> HubServer:
        torch.save({"w": torch.ones(1)}, tmp_path / "pytorch_model.bin")
        hub.put(
            "own/m", {**sharded(tmp_path / "m"), "pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()}
        )
        return hub

    def test_of_two_formats_one_is_fetched(self, both: HubServer) -> None:
        open_checkpoint("own/m")
        assert set(both.downloads()) == {*self.SHARDS, "model.safetensors.index.json", "config.json"}

    def test_of_two_formats_without_an_index_one_is_fetched(self, both: HubServer, tmp_path: Path) -> None:
        save_file({"s": torch.ones(1)}, tmp_path / "model.safetensors")
        files = {name: (tmp_path / name).read_bytes() for name in ("model.safetensors", "pytorch_model.bin")}
        both.put("own/single", files)
        assert list(open_checkpoint("own/single").state_dict()) == ["s"]
        assert both.downloads() == ["model.safetensors"]

    def test_the_other_one_where_it_is_asked_for(self, both: HubServer) -> None:
        assert list(open_checkpoint("own/m", use_format="pt").state_dict()) == ["w"]
        assert set(both.downloads()) == {"pytorch_model.bin", "config.json"}


class TestB164ADownloadStalls:
    @pytest.fixture
    def slow(self, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
        monkeypatch.setattr(stall, "SECONDS", 0.5)
        save_file({"w": torch.arange(4096.0)}, tmp_path / "m.safetensors")
        hub.put("own/m", {"model.safetensors": (tmp_path / "m.safetensors").read_bytes()})
        return hub

    @pytest.mark.parametrize("without_xet", [False, True])
    def test_a_stop_in_the_midst_is_told_of_once_and_the_rest_is_fetched(
        self,
        slow: HubServer,
        without_xet: bool,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", without_xet)
        slow.stalls = 1
        with caplog.at_level(logging.WARNING, "weight_readers.hub"):
            found = open_checkpoint("own/m").state_dict()["w"]
        said = [record.getMessage() for record in caplog.records if record.name == "weight_readers.hub"]
        assert torch.equal(found, torch.arange(4096.0))
        assert len(said) == 1
        assert said[0].startswith(f"hf://own/m@{FIRST}/model.safetensors: nothing has arrived for 0.5 s. ")
        assert ("HF_HUB_DOWNLOAD_TIMEOUT" if without_xet else "HF_HUB_DISABLE_XET=1") in said[0]

    def test_one_that_goes_on_is_not_told_of(self, slow: HubServer, caplog: pytest.LogCaptureFixture) -> None:
        open_checkpoint("own/m")
        assert not [record for record in caplog.records if record.name == "weight_readers.hub"]

    def test_a_hub_that_sends_nothing_more_is_an_error_in_the_end(
        self, slow: HubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
        slow.stalls = 100
        error = refused("own/m")
        assert isinstance(error, UnreadableFileError)
        assert "the Hub does not answer" in str(error)
        assert "ReadTimeout" in str(error)


class TestB168MainMovesMeanwhile:
    def test_one_commit_from_the_listing_to_the_report(self, hub: HubServer, tmp_path: Path) -> None:
        hub.put("own/m", sharded(tmp_path / "old"), commit=FIRST)
        layout = resolve("own/m")
        hub.put("own/m", {"model.safetensors": b"other"}, commit=SECOND)
        assert layout.place["commit"] == FIRST
        assert all(f"/{FIRST}/" in path for path in layout.brought().paths)
        assert all("/main/" not in each.path for each in hub.asked if "/resolve/" in each.path)


class TestB156OfflineAPartIsNotTheWhole:
    @pytest.mark.parametrize("dangling", [True, False])
    def test_what_is_missing_is_named_with_the_word_offline(self, cache: Path, tmp_path: Path, dangling: bool) -> None:
        folder = write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        link = folder / "model-00002-of-00002.safetensors"
        blob = link.resolve()
        (blob if dangling else link).unlink()
        (blob.parent / f"{blob.name}.incomplete").write_bytes(b"half")
        error = refused("own/m")
        assert isinstance(error, MissingShardError)
        assert str(link) == error.path
        assert str(error).count("HF_HUB_OFFLINE is set") == 1
        assert "1 unfinished download" in str(error)


class TestB158AWholeModelThatMainDoesNotLeadTo:
    def test_the_only_whole_snapshot_is_read_and_said(self, cache: Path, tmp_path: Path) -> None:
        write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        write_cache(cache, "own/m", SECOND, {"config.json": b"{}"})
        checkpoint = open_checkpoint("own/m")
        assert sorted(checkpoint.state_dict()) == ["t1", "t2"]
        (notice,) = [each for each in checkpoint.notices if "own/m" in each]
        assert f"the cached commit of main, {SECOND}, is not whole; commit {FIRST} is, and is read" in notice

    def test_without_a_ref_it_is_read_too(self, cache: Path, tmp_path: Path) -> None:
        write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"), ref=None)
        assert sorted(open_checkpoint("own/m").state_dict()) == ["t1", "t2"]

    def test_several_are_refused_with_the_list(self, cache: Path, tmp_path: Path) -> None:
        for commit in (FIRST, THIRD):
            write_cache(cache, "own/m", commit, sharded(tmp_path / commit), ref=None)
        error = refused("own/m")
        assert isinstance(error, AmbiguousCheckpointError)
        assert f"{FIRST}, {THIRD}" == error.found
        assert f"own/m@{FIRST}" in (error.fix or "")

    def test_a_revision_that_was_asked_for_is_never_swapped(self, cache: Path, tmp_path: Path) -> None:
        write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        write_cache(cache, "own/m", SECOND, {"config.json": b"{}"}, ref="v2")
        assert isinstance(refused("own/m@v2"), CheckpointNotFoundError)
        error = refused("own/m@v3")
        assert "main, v2" in str(error.found)

    def test_a_ref_may_end_in_a_line_break(self, cache: Path, tmp_path: Path) -> None:
        write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        (cache / "models--own--m" / "refs" / "main").write_text(f"{FIRST}\n")
        checkpoint = open_checkpoint("own/m")
        assert checkpoint.layout.place["commit"] == FIRST
        assert checkpoint.notices == ()

    @pytest.mark.parametrize("revision", ["refs/../../../snapshots", "..", "../../x"])
    def test_a_revision_leads_nowhere_else(self, cache: Path, tmp_path: Path, revision: str) -> None:
        write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        assert isinstance(refused(f"own/m@{revision}"), CheckpointNotFoundError)


@pytest.mark.parametrize("offline", [True, False])
def test_b159_a_truncated_blob_is_named_with_its_link_and_what_to_delete(
    cache: Path, tmp_path: Path, offline: bool
) -> None:
    folder = write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
    link = folder / "model-00001-of-00002.safetensors"
    blob = link.resolve()
    os.truncate(blob, blob.stat().st_size - 1)
    error = refused("own/m" if offline else str(folder))
    assert isinstance(error, TruncatedFileError)
    assert str(link) == error.path
    assert f"rm {link} {blob}" in (error.fix or "")


class TestB162WhatACacheIsMadeOf:
    """A folder or file of the cache as the argument, in place of the name that it was downloaded by."""

    @pytest.mark.parametrize("below", ["", "snapshots", "snapshots/"])
    def test_the_folder_of_a_repository_is_answered_with_its_name_and_its_commits(
        self, cache: Path, tmp_path: Path, below: str
    ) -> None:
        commit = write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        error = refused(f"{cache}/models--own--m/{below}")
        assert (error.found, error.fix) == (str(commit), "Give own/m, or the folder of a commit.")

    @pytest.mark.parametrize(("below", "what"), [("", []), ("transformer", ["--include", "transformer/*"])])
    def test_a_commit_without_weights_is_answered_with_the_command_that_fetches_them(
        self, cache: Path, below: str, what: list[str]
    ) -> None:
        folder = write_cache(cache, "own/m", FIRST, {"config.json": b"{}", "transformer/config.json": b"{}"})
        error = refused(str(folder / below))
        assert error.what == "no weight files here; the Hub's cache holds a part of this commit"
        assert "config.json" in str(error.found)
        command = ["hf", "download", "own/m", *what, "--revision", FIRST, "--cache-dir", str(cache)]
        assert error.fix == f"Fetch the rest: {shlex.join(command)}"

    def test_what_is_missing_offline_comes_with_the_reason_and_then_the_command(self, cache: Path) -> None:
        write_cache(cache, "own/m", FIRST, {"config.json": b"{}"})
        said = "HF_HUB_OFFLINE is set, so only the cache was looked at. Fetch the rest: hf download own/m --revision "
        assert str(refused("own/m").fix).startswith(f"{said}{FIRST} ")
        said = "only the cache was looked at. Download it where the Hub can be reached: hf download own/none"
        assert str(refused("own/none").fix).endswith(said)
        assert str(refused("own/none@v2").fix).endswith(f"{said} --revision v2")

    @pytest.mark.parametrize("name", ["models--own--m", "models--own", "elsewhere"])
    def test_a_folder_of_another_name_or_without_snapshots_is_none(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name / ("blobs" if name == "models--own--m" else "snapshots")).mkdir(parents=True)
        assert refused(str(tmp_path / name)).fix == "Give the folder that has them."

    def test_a_blob_is_read_by_its_content(self, cache: Path, tmp_path: Path) -> None:
        folder = write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        blob = (folder / "model-00001-of-00002.safetensors").resolve()
        assert list(open_checkpoint(blob).state_dict()) == ["t1"]


class TestB171OfflineNoSocketIsOpened:
    @pytest.mark.parametrize("reference", ["own/m", f"own/m@{FIRST}", "own/m@main", "hf://own/m"])
    def test_a_cached_repository_is_loaded(self, cache: Path, tmp_path: Path, reference: str) -> None:
        write_cache(cache, "own/m", FIRST, sharded(tmp_path / "m"))
        assert sorted(open_checkpoint(reference).state_dict()) == ["t1", "t2"]

    @pytest.mark.parametrize(
        ("reference", "tensors"),
        [("own/q:Q8_0", ["w0"]), ("own/q:bf16", ["w0", "w1"]), ("own/q/tiny.q8_0.gguf", ["w0"])],
    )
    def test_a_cached_quantization_is_found(self, cache: Path, reference: str, tensors: list[str]) -> None:
        write_cache(cache, "own/q", FIRST, quantized_repository())
        assert sorted(open_checkpoint(reference).state_dict()) == tensors

    def test_what_is_not_cached_is_said_with_what_is(self, cache: Path) -> None:
        error = refused("own/none")
        assert error.what == "the cache holds no revision main of the repository"
        assert str(cache / "models--own--none") == error.expected
