# SPDX-License-Identifier: Apache-2.0
"""Repositories of the Hub through huggingface_hub itself, against a loopback stub of the Hub's HTTP API."""

from __future__ import annotations

import builtins
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from support.commands import invoke, run
from support.files import write_tensors
from support.hub_models import gguf_file, quantized_repository, sharded
from support.hub_server import HubServer, commit_of, only_loopback, variables

from weight_readers import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    MissingShardError,
    NoSuitableReaderError,
    ReaderUnavailableError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownReaderError,
    UnreadableFileError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_loader.resolve import resolve

COMMIT = commit_of(1)
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with ``own/model`` (sharded, with an index, a config, and the same as a pickle) and ``own/quants``."""
    server = HubServer()
    model = sharded(tmp_path / "model")
    server.put("own/model", {**model, "pytorch_model.bin": b"pickle" * 1000, "README.md": b"# model"})
    server.put("own/quants", quantized_repository())
    with server.running():
        only_loopback(monkeypatch, server.endpoint, str(cache))
        monkeypatch.chdir(tmp_path)
        yield server
        huggingface_hub.close_session()


def snapshot(cache: Path, repo: str = "own/model", commit: str = COMMIT) -> Path:
    return cache / f"models--{repo.replace('/', '--')}" / "snapshots" / commit


# --- what is downloaded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["own/model", "hf://own/model", "own/model@main", f"own/model@{COMMIT}"])
def test_a_repository_is_loaded(hub: HubServer, reference: str) -> None:
    state = open_checkpoint(reference).state_dict()
    assert {name: values.tolist() for name, values in state.items()} == {"t1": [1.0, 1.5], "t2": [2.0, 2.5]}


def test_only_the_files_of_the_chosen_format_are_downloaded_and_the_config(hub: HubServer, cache: Path) -> None:
    open_checkpoint("own/model")
    assert hub.downloads() == ["model.safetensors.index.json", *SHARDS, "config.json"]
    assert json.loads((snapshot(cache) / "config.json").read_text())["model_type"] == "llama"


def test_resolving_downloads_nothing_but_the_index(hub: HubServer) -> None:
    layout = resolve("own/model")
    assert layout.paths == tuple(f"hf://own/model@{COMMIT}/{name}" for name in SHARDS)
    assert hub.downloads() == ["model.safetensors.index.json"]


def test_what_is_in_the_cache_is_not_downloaded_again(hub: HubServer) -> None:
    open_checkpoint("own/model")
    hub.asked.clear()
    open_checkpoint("own/model")
    assert [(each.method, each.path) for each in hub.asked] == [("GET", "/api/models/own/model")]


def test_one_of_two_formats_is_asked_for(hub: HubServer) -> None:
    assert resolve("own/model", use_format="pt").paths == (f"hf://own/model@{COMMIT}/pytorch_model.bin",)
    with pytest.raises(CheckpointNotFoundError, match="no gguf files here"):
        open_checkpoint("own/model", use_format="gguf")
    assert hub.downloads() == []


@pytest.mark.parametrize(
    ("reference", "tensors"),
    [
        ("own/quants:Q4_K_M", {"w0": 1}),
        ("own/quants:ud-q4_k_m", {"w0": 2}),
        ("hf://own/quants@main:Q8_0", {"w0": 3}),
        ("own/quants:BF16", {"w0": 4, "w1": 5}),
        ("own/quants/BF16/Tiny-BF16-00002-of-00002.gguf", {"w0": 4, "w1": 5}),
        ("hf://own/quants/BF16", {"w0": 4, "w1": 5}),
        ("own/quants@main/tiny.q8_0.gguf", {"w0": 3}),
    ],
)
def test_a_quantization_a_folder_or_a_file_of_a_repository(
    hub: HubServer, reference: str, tensors: dict[str, int]
) -> None:
    checkpoint = open_checkpoint(reference)
    assert {name: values.tolist() for name, values in checkpoint.state_dict().items()} == {
        name: [float(value)] * 4 for name, value in tensors.items()
    }
    assert sorted(hub.downloads()) == sorted([*(file.name for file in _files_of(checkpoint)), "config.json"])


def _files_of(checkpoint: Any) -> list[Any]:
    folder = checkpoint.layout.root.partition(f"/snapshots/{COMMIT}")[2].strip("/")
    return [type(file)(name=f"{folder}/{file.name}".lstrip("/"), path="", size=0) for file in checkpoint.layout.files]


def test_a_component_of_a_repository(hub: HubServer, tmp_path: Path, cache: Path) -> None:
    files = {
        f"{part}/{name}": data for part in ("transformer", "vae") for name, data in sharded(tmp_path / "m").items()
    }
    hub.put("own/flux", {"model_index.json": b"{}", **files, "scheduler/config.json": b"{}"})
    with pytest.raises(CheckpointNotFoundError, match="transformer, vae"):
        open_checkpoint("own/flux")
    checkpoint = open_checkpoint("own/flux", subfolder="transformer")
    assert list(checkpoint.tensors) == ["t1", "t2"]
    assert checkpoint.layout.root == str(snapshot(cache, "own/flux") / "transformer")
    assert {name.partition("/")[0] for name in hub.downloads()} == {"transformer", "model_index.json"}


def test_a_cut_download_goes_on_where_it_ended(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 10)
    data = np.arange(1 << 16, dtype=np.float32).tobytes()
    path = write_tensors(tmp_path / "big.safetensors", {"w": ("F32", [1 << 16], data)})
    hub.put("own/big", {"model.safetensors": path.read_bytes()})
    hub.cut = 1
    assert open_checkpoint("own/big").state_dict()["w"].numpy().tobytes() == data
    (again,) = [each for each in hub.asked if each.span is not None and each.method == "GET"]
    assert again.span is not None
    assert path.stat().st_size // 2 - (1 << 10) < again.span[0] <= path.stat().st_size // 2


# --- which commit ------------------------------------------------------------------------------------------------


def test_a_revision_is_one_commit_from_the_listing_to_the_report(hub: HubServer, cache: Path) -> None:
    """ai-dynamo/modelexpress#643: main moves between the listing and the download."""
    layout = resolve("own/model")
    hub.put("own/model", {"model.safetensors": b"new"}, commit=commit_of(2))
    brought = layout.brought()
    assert all(path.startswith(str(snapshot(cache))) for path in brought.paths)
    assert (brought.place["revision"], brought.place["commit"]) == ("main", COMMIT)


def test_the_commit_is_shown_by_the_report(hub: HubServer) -> None:
    checkpoint = open_checkpoint("own/model")
    checkpoint.state_dict()
    assert f"revision main of own/model is commit {COMMIT}" in str(checkpoint.report)


@pytest.mark.parametrize("ref", ["v1.0", "refs/pr/7"])
def test_a_branch_or_tag_is_taken_and_kept_for_later(hub: HubServer, cache: Path, tmp_path: Path, ref: str) -> None:
    hub.put("own/model", sharded(tmp_path / "m", 1), ref=ref, commit=commit_of(7))
    assert list(open_checkpoint(f"own/model@{ref}").tensors) == ["t1"]
    assert (cache / "models--own--model" / "refs" / ref).read_text() == commit_of(7)


def test_a_ref_is_kept_only_once_the_files_are_there(hub: HubServer, cache: Path) -> None:
    refs = cache / "models--own--model" / "refs"
    resolve("own/model")
    assert not refs.exists()
    open_checkpoint("own/model")
    assert (refs / "main").read_text() == COMMIT


# --- refusals ----------------------------------------------------------------------------------------------------


def refused(reference: str, **keywords: Any) -> UnreadableFileError | CheckpointNotFoundError:
    with pytest.raises((CheckpointNotFoundError, UnreadableFileError)) as caught:
        open_checkpoint(reference, **keywords)
    return caught.value


@pytest.mark.parametrize(
    ("reference", "what", "fix"),
    [
        ("own/none", "no such repository, or none that this account may see", "hf auth login"),
        ("own/model@v9", "no such revision in the repository", "Give a branch, tag or commit"),
        (f"own/model@{commit_of(9)}", "no such revision in the repository", "Give a branch, tag or commit"),
        ("hf://own/model/model.safetensor", "no such file or folder in the repository", "Did you mean"),
        ("hf://own/quants/BF17", "no such file or folder in the repository", "Did you mean"),
        ("own/quants/BF16/none.gguf", "no such file or folder in the repository", "See what it holds"),
        ("hf://own/quants/tiny.q8_0.gguf:Q8_0", "the reference names a file", "Leave it out"),
    ],
)
def test_what_is_not_there_is_one_error_with_what_mends_it(hub: HubServer, reference: str, what: str, fix: str) -> None:
    error = refused(reference)
    assert what in error.what
    assert fix in (error.fix or "")
    assert isinstance(error, CheckpointNotFoundError)


@pytest.mark.parametrize(
    ("status", "code", "what"),
    [
        (403, "GatedRepo", "the repository is gated, and this account has no access"),
        (401, "GatedRepo", "the repository is gated, and this account has no access"),
        (403, "", "the Hub refuses this account"),
    ],
)
def test_a_gated_repository_names_the_page_and_the_command(hub: HubServer, status: int, code: str, what: str) -> None:
    hub.repos["own/model"].refuses = (status, code)
    error = refused("own/model")
    assert error.what == what
    assert f"{hub.endpoint}/own/model" in (error.fix or "")
    assert "hf auth login" in (error.fix or "").lower()


def test_a_token_opens_a_gated_repository(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["own/model"].refuses, hub.repos["own/model"].token = (403, "GatedRepo"), "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert list(open_checkpoint("own/model").tensors) == ["t1", "t2"]


def test_a_message_never_holds_the_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["own/model"].refuses = (403, "GatedRepo")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in str(refused("own/model"))


def test_a_file_that_is_gone_from_the_hub_after_the_listing_is_not_found(hub: HubServer) -> None:
    layout = resolve("own/model")
    del hub.repos["own/model"].commits[COMMIT][SHARDS[1]]
    with pytest.raises(CheckpointNotFoundError, match="no such file in the repository") as caught:
        layout.brought()
    assert caught.value.path == f"hf://own/model@{COMMIT}/{SHARDS[1]}"


def test_a_shard_that_the_index_names_and_the_hub_lacks_is_missing_before_any_download(hub: HubServer) -> None:
    del hub.repos["own/model"].commits[COMMIT][SHARDS[1]]
    with pytest.raises(MissingShardError) as caught:
        open_checkpoint("own/model")
    assert caught.value.path == f"hf://own/model@{COMMIT}/{SHARDS[1]}"
    assert hub.downloads() == ["model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("keywords", "kind"),
    [
        ({"reader": "gguf", "strict": True}, ReaderUnavailableError),
        ({"reader_options": {"dequantize": "bfloat16"}}, NoSuitableReaderError),
    ],
)
def test_what_no_reader_can_do_is_refused_before_any_download(
    hub: HubServer, keywords: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        open_checkpoint("own/model", **keywords)
    assert hub.downloads() == ["model.safetensors.index.json"]


def test_a_reader_that_nobody_has_is_refused_before_any_request(hub: HubServer) -> None:
    with pytest.raises(UnknownReaderError):
        open_checkpoint("own/model", reader="none")
    assert hub.asked == []


def test_a_conflict_with_a_quantization_is_refused_before_any_request(hub: HubServer) -> None:
    with pytest.raises(NoSuitableReaderError, match="LoRA"):
        open_checkpoint("own/quants:Q4_K_M", engine={"lora": True})
    assert hub.asked == []


def test_strict_looks_into_what_the_index_does_not_name_before_any_download(hub: HubServer, tmp_path: Path) -> None:
    extra = write_tensors(tmp_path / "mtp.safetensors", {"mtp": ("F32", [1 << 18], bytes(1 << 20))}).read_bytes()
    hub.repos["own/model"].commits[COMMIT]["mtp.safetensors"] = extra
    with pytest.raises(ValueError, match=r"mtp"):
        open_checkpoint("own/model", strict=True)
    assert hub.sent("mtp") <= 64 << 10
    assert hub.sent("config.json") == 0


@pytest.mark.parametrize(("size", "kind"), [(-1, TruncatedFileError), (1, TrailingBytesError)])
def test_a_blob_of_another_size_is_named_with_its_link_and_the_remedy(
    hub: HubServer, cache: Path, size: int, kind: type[Exception]
) -> None:
    open_checkpoint("own/model")
    link = snapshot(cache) / SHARDS[0]
    blob = link.resolve()
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] if size < 0 else data + b"x")
    with pytest.raises(kind, match="by the Hub's listing") as caught:
        open_checkpoint("own/model")
    assert str(link) == caught.value.path  # type: ignore[attr-defined]
    assert f"rm {link} {blob}" in str(caught.value)
    link.unlink(), blob.unlink()
    assert len(open_checkpoint("own/model").state_dict()) == 2


def test_a_hub_that_never_answers_is_an_error_in_time(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
    hub.never = True
    error = refused("own/model")
    assert error.what == "the Hub does not answer"
    assert "HF_HUB_OFFLINE=1" in (error.fix or "")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_fault_of_the_hub_is_said_and_the_cache_stands_in_with_a_notice(hub: HubServer, status: int) -> None:
    hub.status = status
    assert refused("own/model").what == "the Hub does not answer"
    hub.status = None
    open_checkpoint("own/model")
    hub.status = status
    (notice,) = [each for each in open_checkpoint("own/model").notices if "answer" in each]
    assert notice.startswith(f"own/model: the Hub does not answer (status {status}")


def test_without_huggingface_hub_the_command_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import_ = builtins.__import__

    def absent(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("weight_readers_loader.resolve.hub.place"):
            raise ModuleNotFoundError("No module named 'huggingface_hub'", name="huggingface_hub")
        return import_(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    error = refused("own/model")
    assert (error.expected, error.fix) == (
        "huggingface_hub>=1.0",
        'Install it: pip install "weight-readers-loader[hub]"',
    )


# --- headers from afar -------------------------------------------------------------------------------------------


@pytest.fixture
def large(hub: HubServer, tmp_path: Path) -> bytes:
    """``own/large``: 4 MiB of a tensor behind a header of about 100 KiB."""
    small = {f"layer.{number}": ("F32", [1], bytes(4)) for number in range(1200)}
    path = write_tensors(tmp_path / "l.safetensors", {"w": ("F32", [1 << 20], bytes(4 << 20)), **small})
    hub.put("own/large", {"model.safetensors": path.read_bytes()})
    return path.read_bytes()


@pytest.mark.parametrize("command", ["explain", "inspect"])
def test_a_look_at_a_repository_downloads_headers_and_keeps_nothing(
    hub: HubServer, large: bytes, cache: Path, command: str
) -> None:
    done = invoke(command, "own/large", "--json")
    assert done.exit_code == 0, done.output
    assert 0 < hub.sent("model.safetensors") <= 256 << 10
    assert not cache.exists()


def test_inspect_lists_what_a_load_finds(hub: HubServer, large: bytes) -> None:
    seen = json.loads(invoke("inspect", "own/large", "--json").stdout)
    loaded = open_checkpoint("own/large")
    assert [tensor["name"] for tensor in seen["tensors"]] == list(loaded.tensors)
    assert {tensor["file"] for tensor in seen["tensors"]} == {f"hf://own/large@{COMMIT}/model.safetensors"}


def test_explain_says_the_commit_and_what_a_load_would_download(hub: HubServer, large: bytes) -> None:
    shown = invoke("explain", "own/large").output
    assert f"commit: {COMMIT}" in shown
    assert "download: 1 file, 4.09 MiB" in shown
    open_checkpoint("own/large")
    assert "download: nothing, all is in the cache" in invoke("explain", "own/large").output


def test_a_server_that_ignores_ranges_is_not_read_to_the_end(hub: HubServer, large: bytes) -> None:
    hub.ignores_ranges = True
    seen = json.loads(invoke("inspect", "own/large", "--json").stdout)
    assert len(seen["tensors"]) == 1201


def test_a_bad_header_is_told_by_the_name_on_the_hub(hub: HubServer, tmp_path: Path) -> None:
    hub.put("own/bad", {"model.safetensors": b"\x20" + bytes(7) + b'{"a": nonsense' + bytes(1 << 20)})
    done = invoke("inspect", "own/bad")
    assert done.exit_code == 1
    assert f"hf://own/bad@{COMMIT}/model.safetensors" in done.stderr
    assert "weight-readers-" not in done.stderr


def test_a_gguf_set_is_inspected_by_its_headers(hub: HubServer) -> None:
    parts = {f"m-Q8_0-0000{n + 1}-of-00002.gguf": gguf_file(n, part=n, parts=2) + bytes(1 << 20) for n in range(2)}
    hub.put("own/parts", parts)
    seen = json.loads(invoke("inspect", "own/parts:Q8_0", "--json").stdout)
    assert [tensor["name"] for tensor in seen["tensors"]] == ["w0", "w1"]
    assert hub.sent(".gguf") <= 2 * (64 << 10)


def test_files_that_are_described_at_their_end_are_not_looked_into_from_afar(hub: HubServer) -> None:
    explained = invoke("explain", "own/model", "--format", "pt")
    assert explained.exit_code == 0
    assert "the headers of pt files are read after the download" in explained.output
    inspected = invoke("inspect", "own/model", "--format", "pt")
    assert inspected.exit_code == 1
    assert "not described at their start" in inspected.stderr
    assert hub.sent("pytorch_model.bin") == 0


# --- the command line --------------------------------------------------------------------------------------------


def test_the_command_loads_by_the_variables_of_huggingface_hub_and_is_quiet_off_a_terminal(
    hub: HubServer, cache: Path
) -> None:
    done = run("load", "own/quants:BF16", env=variables(hub.endpoint, str(cache)), cwd=cache.parent)
    assert done.returncode == 0, done.stderr
    assert "Tiny" not in done.stderr
    assert f"revision main of own/quants is commit {COMMIT}" in done.stdout
    offline = variables("http://127.0.0.1:9", str(cache), offline=True)
    assert run("load", "own/quants:BF16", env=offline, cwd=cache.parent).returncode == 0


@pytest.mark.parametrize("left", [["config.json"], ["config.json", "model.safetensors.index.json", SHARDS[0]]])
def test_the_command_that_a_cached_part_of_a_commit_is_answered_with_fetches_the_rest(
    hub: HubServer, cache: Path, left: list[str]
) -> None:
    open_checkpoint("own/model")
    for link in snapshot(cache).iterdir():
        if link.name not in left:
            link.resolve().unlink()
            link.unlink()
    with pytest.raises(CheckpointNotFoundError if len(left) == 1 else MissingShardError) as caught:
        open_checkpoint(snapshot(cache))
    assert caught.value.found == ("config.json" if len(left) == 1 else "nothing")
    _, _, command = str(caught.value.fix).partition(": ")
    program, *arguments = shlex.split(command)
    hf = [str(Path(sys.executable).with_name(program)), *arguments]
    child = {**os.environ, **variables(hub.endpoint, str(cache.with_name("another")))}
    subprocess.run(hf, env=child, check=True, capture_output=True, timeout=120)
    assert sorted(open_checkpoint(snapshot(cache)).state_dict()) == ["t1", "t2"]


def test_verify_downloads_and_compares_with_the_names_of_the_blobs(hub: HubServer, cache: Path) -> None:
    assert "sha256 right for 2 files" in invoke("verify", "own/model", "--sha256").output
    blob = (snapshot(cache) / SHARDS[0]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    done = invoke("verify", "own/model", "--sha256")
    assert done.exit_code == 1
    assert f"rm {snapshot(cache) / SHARDS[0]} {blob}" in done.stderr


def test_bars_that_were_on_are_on_again_after_a_quiet_download(hub: HubServer) -> None:
    assert not are_progress_bars_disabled()
    open_checkpoint("own/model")
    assert not are_progress_bars_disabled()


def test_several_quantizations_and_no_selector_are_listed(hub: HubServer) -> None:
    with pytest.raises(AmbiguousCheckpointError, match=r"Tiny-UD-Q4_K_M\.gguf") as caught:
        open_checkpoint("own/quants")
    assert "REF:Q4_K_M" in (caught.value.fix or "")
