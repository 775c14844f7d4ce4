# SPDX-License-Identifier: Apache-2.0
"""References: the text alone, then the disk."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from weight_readers.errors import CheckpointNotFoundError, UnreadableFileError
from weight_readers_loader.resolve.places import leads_to_hub, locate
from weight_readers_loader.resolve.references import parse_reference


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("./modle", "it starts with '.'"),
        ("../a/b", "it starts with '.'"),
        ("/data/modle", "it starts with '/'"),
        ("~/m", "it starts with '~'"),
        ("a/b/c", "it has more than one slash"),
        ("a\\b", "it holds a backslash"),
        ("C:\\models\\a", "it holds a backslash"),
        ("owner/model.safetensors", "it ends in '.safetensors' as a file does"),
        ("owner/model.GGUF", "it ends in '.GGUF' as a file does"),
        ("a/model.safetensors.index.json", "it ends in '.json' as a file does"),
        ("modle", "it does not have the form owner/name"),
        ("C:/models", "it does not have the form owner/name"),
        ("a/b c", "it does not have the form owner/name"),
    ],
)
def test_a_text_that_can_be_no_repo_id_is_local_and_says_why(text: str, reason: str) -> None:
    parsed = parse_reference(text)
    assert (parsed.kind, parsed.reason) == ("local", reason)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a/b", ("a/b", None, None)),
        ("Qwen/Qwen2.5-0.5B", ("Qwen/Qwen2.5-0.5B", None, None)),
        ("a/b@v1", ("a/b", "v1", None)),
        ("a/b@refs/pr/7", ("a/b", "refs/pr/7", None)),
        ("a/b:Q4_K_M", ("a/b", None, "Q4_K_M")),
        ("a/b@v1:Q4_K_M", ("a/b", "v1", "Q4_K_M")),
    ],
)
def test_a_repo_id_is_taken_apart(text: str, parts: tuple[str | None, ...]) -> None:
    parsed = parse_reference(text)
    assert parsed.hub is not None
    assert (parsed.kind, parsed.hub.repo, parsed.hub.revision, parsed.hub.selector) == ("repo", *parts)
    assert text == parsed.text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf://a/b", ("a/b", None, None, None)),
        ("hf://models/a/b", ("a/b", None, None, None)),
        ("HF://a/b@rev:Q8_0", ("a/b", "rev", None, "Q8_0")),
        ("hf://a/b/", ("a/b", None, None, None)),
        ("hf://a/b/transformer", ("a/b", None, "transformer", None)),
        ("hf://a/b@v1/sub/model.safetensors", ("a/b", "v1", "sub/model.safetensors", None)),
        ("hf://a/b@refs/pr/7/sub", ("a/b", "refs/pr/7", "sub", None)),
        ("hf://a/b@feature%2Fx/sub:Q4_0", ("a/b", "feature/x", "sub", "Q4_0")),
        ("a/b/c.gguf", ("a/b", None, "c.gguf", None)),
        ("a/b@v1/sub/c-00001-of-00002.GGUF", ("a/b", "v1", "sub/c-00001-of-00002.GGUF", None)),
        ("a/b@refs/pr/7/c.gguf", ("a/b", "refs/pr/7", "c.gguf", None)),
    ],
)
def test_what_lies_in_a_repository_is_taken_apart(text: str, parts: tuple[str | None, ...]) -> None:
    hub = parse_reference(text).hub
    assert hub is not None
    assert (hub.repo, hub.revision, hub.inner, hub.selector) == parts


@pytest.mark.parametrize(
    "text",
    [
        "hf://",
        "hf://a",
        "hf://datasets/a/b",
        "hf://a/b/../../c",
        "hf://a--b/c",
        "hf://a/b.git",
        "hf://a/b@/c",
        "hf://-a/b",
        f"hf://a/{'b' * 100}",
    ],
)
def test_an_hf_url_that_names_no_model_is_refused_without_a_request(text: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="names no model on the Hub"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a/b", None),
        ("a/b:Q4_K_M", "gguf"),
        ("hf://a/b/x.safetensors", "safetensors"),
        ("a/b/x.gguf", "gguf"),
        ("x.bin", "pt"),
        ("s3://a/x.gguf", "gguf"),
    ],
)
def test_a_text_may_tell_the_format(text: str, form: str | None) -> None:
    assert form == parse_reference(text).names_format


def test_a_path_object_has_no_selector() -> None:
    assert parse_reference(Path("models:Q4_0")).selector is None


@pytest.mark.parametrize(
    ("text", "asked"),
    [("a/b", True), ("hf://here/b", True), ("here/b", False), ("here/b/c.gguf", False), ("a/b/c", False)],
)
def test_the_hub_is_asked_for_what_is_nothing_here(
    text: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert asked == leads_to_hub(parse_reference(text))


@pytest.mark.parametrize("typed", ["own/model", "own/model:Q4_0"])
def test_a_local_folder_wins_over_a_repository_of_its_name(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "model").mkdir(parents=True)
    assert not leads_to_hub(parse_reference(typed))
    assert locate(parse_reference(typed)).path == "own/model"


def test_a_path_below_a_folder_that_is_here_is_a_path_and_the_message_says_how_to_ask_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llama").mkdir(parents=True)
    with pytest.raises(
        CheckpointNotFoundError, match="not tried on the Hub because there is a folder 'models'"
    ) as caught:
        locate(parse_reference("models/lama"))
    assert caught.value.fix == "Did you mean 'models/llama'? For the Hub write hf://models/lama."


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_a_url_is_refused_with_what_to_do(scheme: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match=f"no {scheme}:// URL is opened") as caught:
        locate(parse_reference(f"{scheme}://a/b"))
    assert f"{scheme}://a/b" == caught.value.path
    assert (caught.value.fix or "").startswith("Download it first")


@pytest.mark.parametrize(("text", "what"), [("", "empty"), (" \t\n", "empty"), ("a\0b", "NUL")])
def test_a_text_that_names_nothing_is_refused_when_parsed(text: str, what: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match=what):
        parse_reference(text)


@pytest.mark.parametrize("value", [None, 3, b"model"])
def test_what_is_no_text_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        parse_reference(value)  # type: ignore[arg-type]


def test_a_path_object_is_local_whatever_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="path object"):
        locate(parse_reference(Path("a/b")))


def test_parsing_does_no_io(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("I/O while parsing")

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    assert parse_reference("/data/model").kind == "local"


def test_a_folder_is_located(tmp_path: Path) -> None:
    located = locate(parse_reference(str(tmp_path)))
    assert (located.path, located.name, located.listing.root) == (str(tmp_path), None, str(tmp_path))


def test_a_file_is_located_by_its_name_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    located = locate(parse_reference("w.safetensors"))
    assert located.name == "w.safetensors"
    assert located.listing.path_of("w.safetensors") == "w.safetensors"


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate(parse_reference("~/m")).path == str(tmp_path / "m")


def test_a_link_is_not_resolved(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / "model.safetensors").symlink_to("blob")
    assert locate(parse_reference(tmp_path / "model.safetensors")).name == "model.safetensors"


def test_a_dangling_link_says_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("../../blobs/abc")
    with pytest.raises(CheckpointNotFoundError) as caught:
        locate(parse_reference(tmp_path / "model.safetensors"))
    assert caught.value.found == "a symbolic link to ../../blobs/abc"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("modle", "model"), ("modle/sub", "model"), ("model ", "model"), ("model\\sub", "model/sub"), ("x.bin/", "x.bin")],
)
def test_a_mistyped_path_is_answered_with_what_is_there(tmp_path: Path, typed: str, meant: str) -> None:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(CheckpointNotFoundError) as caught:
        locate(parse_reference(f"{tmp_path}/{typed}"))
    assert caught.value.fix == f"Did you mean '{tmp_path}/{meant}'?"


def test_a_name_like_nothing_that_is_there_gets_no_guess(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(CheckpointNotFoundError) as caught:
        locate(parse_reference(f"{tmp_path}/zzzz"))
    assert "Did you mean" not in str(caught.value)


def test_a_path_that_exists_with_a_blank_at_its_end_is_taken_as_typed(tmp_path: Path) -> None:
    (tmp_path / "model ").mkdir()
    assert locate(parse_reference(f"{tmp_path}/model ")).path == f"{tmp_path}/model "


@pytest.mark.parametrize("typed", ["owner/name ", " owner/name", "owner/name:Q4_K_M "])
def test_a_blank_beside_a_name_on_the_hub_is_not_dropped(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reference = parse_reference(typed)
    assert (reference.hub, leads_to_hub(reference)) == (None, False)
    with pytest.raises(CheckpointNotFoundError, match="because it begins or ends with a blank") as caught:
        locate(reference)
    assert caught.value.fix == f"Did you mean {typed.strip()!r}?"


@pytest.mark.parametrize("typed", ["hf://owner/name ", " s3://bucket/folder"])
def test_a_blank_beside_a_url_is_refused(typed: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="begins or ends with a blank") as caught:
        parse_reference(typed)
    assert caught.value.fix == f"Did you mean {typed.strip()!r}?"


def test_devices_fifos_and_sockets_are_refused_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(UnreadableFileError, match="a FIFO"):
        locate(parse_reference(tmp_path / "model.safetensors"))
    with pytest.raises(UnreadableFileError, match="a character device"):
        locate(parse_reference("/dev/null"))


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.bin")
        with pytest.raises(UnreadableFileError, match="a socket"):
            locate(parse_reference("./s.bin"))


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnreadableFileError, match="cannot be looked at"):
        locate(parse_reference(tmp_path / "loop"))


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="too long"):
        locate(parse_reference(f"{tmp_path}/{'x' * 300}"))


def test_a_reference_that_is_too_long_is_refused_and_shown_in_short() -> None:
    with pytest.raises(CheckpointNotFoundError, match="longer than 4096 characters") as caught:
        locate(parse_reference("x" * 100_000))
    assert len(str(caught.value)) < 1000


def test_a_reference_that_no_disk_can_hold_is_not_found() -> None:
    with pytest.raises(CheckpointNotFoundError, match="not valid Unicode"):
        locate(parse_reference("\ud800"))


@pytest.mark.parametrize("reference", [5, b"folder", None])
def test_a_reference_of_another_type_is_refused_with_those_that_are_taken(reference: object) -> None:
    with pytest.raises(TypeError, match=r"a str or an os\.PathLike of str, not "):
        parse_reference(reference)  # type: ignore[arg-type]
