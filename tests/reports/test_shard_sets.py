# SPDX-License-Identifier: Apache-2.0
"""Public reports about shard sets, indexes and references, each with the inputs that show it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.files import floats, write_index, write_safetensors, write_sharded, write_tensors

from weight_readers.errors import (
    AmbiguousCheckpointError,
    BadIndexError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointProblems,
    EmptyFileError,
    ForeignContentError,
    MissingShardError,
    UnreadableFileError,
    UnsafePathError,
)
from weight_readers_loader.resolve import resolve as resolve_anywhere
from weight_readers_loader.resolve.formats import format_of
from weight_readers_loader.resolve.layouts import Layout, resolve_layout
from weight_readers_loader.resolve.places import locate
from weight_readers_loader.resolve.references import parse_reference

INDEX = "model.safetensors.index.json"


def resolve(reference: str | Path, **asked: Any) -> Layout:
    return resolve_layout(locate(parse_reference(reference)), **asked)


def refused(reference: str | Path, **asked: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        resolve(reference, **asked)
    return caught.value


def weights(folder: Path, *names: str) -> None:
    for name in names:
        write_tensors(folder / name, {name: ("F32", [1], floats(1))})


def read(layout: Layout) -> list[str]:
    return [file.name for file in layout.files]


def shard(number: int, total: int) -> str:
    return f"model-{number:05}-of-{total:05}.safetensors"


class TestB047AShardOfTheIndexIsNotThere:
    def test_one_missing_shard_is_named(self, tmp_path: Path) -> None:
        write_sharded(tmp_path, 3)[1].unlink()
        error = refused(tmp_path)
        assert (type(error), error.path) == (MissingShardError, str(tmp_path / shard(2, 3)))
        assert INDEX in str(error)

    def test_all_missing_shards_are_named_in_one_error(self, tmp_path: Path) -> None:
        for path in write_sharded(tmp_path, 3)[1:]:
            path.unlink()
        error = refused(tmp_path)
        assert isinstance(error, CheckpointProblems)
        assert [str(tmp_path / shard(n, 3)) for n in (2, 3)] == [problem.path for problem in error.problems]

    def test_a_dangling_link_says_where_it_points(self, tmp_path: Path) -> None:
        path = write_sharded(tmp_path, 3)[1]
        path.unlink()
        path.symlink_to("../../blobs/abc")
        error = refused(tmp_path)
        assert (type(error), error.path) == (MissingShardError, str(path))
        assert "../../blobs/abc" in str(error)

    def test_a_folder_in_place_of_a_shard_is_said(self, tmp_path: Path) -> None:
        path = write_sharded(tmp_path, 3)[1]
        path.unlink()
        path.mkdir()
        error = refused(tmp_path)
        assert (type(error), error.path, error.found) == (UnreadableFileError, str(path), "a folder")

    def test_an_empty_shard_is_said(self, tmp_path: Path) -> None:
        path = write_sharded(tmp_path, 3)[1]
        path.write_bytes(b"")
        error = refused(tmp_path)
        assert (type(error), error.path) == (EmptyFileError, str(path))

    def test_a_shard_that_may_not_be_read_is_said(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_sharded(folder, 3)[1].chmod(0)
            folder.chmod(0o755)
            answer = _as_nobody(folder)
        assert answer == {"type": "UnreadableFileError", "path": str(folder / shard(2, 3))}

    def test_all_kinds_at_once_are_one_error(self, tmp_path: Path) -> None:
        first, second, third = write_sharded(tmp_path, 3)
        first.unlink()
        second.write_bytes(b"")
        third.unlink()
        third.mkdir()
        kinds = [type(problem) for problem in refused(tmp_path).problems]
        assert kinds == [MissingShardError, EmptyFileError, UnreadableFileError]

    def test_the_same_holds_without_an_index(self, tmp_path: Path) -> None:
        paths = write_sharded(tmp_path, 4, index=False)
        paths[1].unlink()
        paths[2].unlink()
        paths[2].symlink_to("nowhere")
        assert [str(paths[1]), str(paths[2])] == [problem.path for problem in refused(tmp_path).problems]


def _as_nobody(folder: Path) -> dict[str, str]:
    """What resolving says to a user who is not root. Imports come first: that user may not see this checkout."""
    script = (
        "import json, os, sys\n"
        "from weight_readers.errors import CheckpointError\n"
        "from weight_readers_loader.resolve.layouts import resolve_layout\n"
        "from weight_readers_loader.resolve.references import parse_reference\n"
        "from weight_readers_loader.resolve.places import locate\n"
        "if os.getuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    resolve_layout(locate(parse_reference(sys.argv[1])))\n"
        "    print('{}')\n"
        "except CheckpointError as error:\n"
        "    print(json.dumps({'type': type(error).__name__, 'path': error.path}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    if "PermissionError" in done.stderr and "os.set" in done.stderr:
        pytest.skip("root cannot become another user here")
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


class TestB048TheIndexLeadsOutOfTheFolder:
    @pytest.mark.parametrize(
        "value",
        ["../secret.safetensors", "sub/../../x", "..\\x", "C:\\x", "a\0b", "", ".", "sub/", "/abs/x", "ABSOLUTE"],
    )
    def test_the_entry_is_named_and_nothing_is_opened(
        self, tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        weights(tmp_path, "secret.safetensors", "model/a.safetensors")
        value = str(tmp_path / "secret.safetensors") if value == "ABSOLUTE" else value
        index = write_index(tmp_path / "model", {"good": "a.safetensors", "the.tensor": value})
        looked_at: list[str] = []
        real = os.stat

        def spy(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            looked_at.append(str(path))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, "stat", spy)
        error = refused(tmp_path / "model")
        assert (type(error), error.path, error.tensor) == (UnsafePathError, str(index), "the.tensor")
        assert set(looked_at) <= {str(tmp_path / "model"), str(index)}

    def test_a_plain_name_below_the_folder_is_legal(self, tmp_path: Path) -> None:
        weights(tmp_path, "sub/model.safetensors")
        write_index(tmp_path, {"a": "sub/model.safetensors"})
        assert read(resolve(tmp_path)) == ["sub/model.safetensors"]

    @pytest.mark.parametrize("value", [1, None, ["a.safetensors"], {}, True])
    def test_a_value_that_is_no_text_is_a_bad_index(self, tmp_path: Path, value: object) -> None:
        write_index(tmp_path, {"the.tensor": value})
        error = refused(tmp_path)
        assert (type(error), error.tensor) == (BadIndexError, "the.tensor")


class TestB050ConsolidatedBesideShards:
    @pytest.mark.parametrize("index", [True, False])
    def test_it_is_left_out_and_the_reason_is_said(self, tmp_path: Path, index: bool) -> None:
        write_sharded(tmp_path, index=index)
        weights(tmp_path, "consolidated.safetensors")
        layout = resolve(tmp_path)
        assert [shard(1, 2), shard(2, 2)] == read(layout)
        ((name, reason),) = layout.left_out
        assert (name, "second copy" in reason) == ("consolidated.safetensors", True)
        assert any("consolidated.safetensors" in notice for notice in layout.notices)
        assert layout.unindexed == ()


class TestB051AnotherModelBesideTheShards:
    @staticmethod
    def build(folder: Path, *, index: bool) -> None:
        write_tensors(folder / shard(1, 2), {"w": ("BF16", [4, 8], bytes(64))})
        write_tensors(folder / shard(2, 2), {"v": ("BF16", [4, 8], bytes(64))})
        write_tensors(folder / "model.safetensors", {"w": ("U32", [4, 1], bytes(16))})
        if index:
            write_index(folder, {"w": shard(1, 2), "v": shard(2, 2)})

    def test_with_an_index_only_its_files_are_read(self, tmp_path: Path) -> None:
        self.build(tmp_path, index=True)
        layout = resolve(tmp_path)
        assert [shard(1, 2), shard(2, 2)] == read(layout)
        assert layout.notices == (f"1 file left out, not named by the index {INDEX}: model.safetensors",)

    def test_without_an_index_both_are_named_and_none_is_read(self, tmp_path: Path) -> None:
        self.build(tmp_path, index=False)
        error = refused(tmp_path)
        assert isinstance(error, AmbiguousCheckpointError)
        assert "model.safetensors" in str(error.found)
        assert shard(1, 2) in str(error.found)


def test_b056_the_index_of_another_upload_is_told_by_the_totals(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2, index=False)
    write_index(tmp_path, {f"t{n}": shard(n, 3) for n in (1, 2, 3)})
    problems = refused(tmp_path).problems
    assert [str(tmp_path / shard(n, 3)) for n in (1, 2, 3)] == [problem.path for problem in problems]
    for problem in problems:
        assert problem.found == f"{shard(1, 2)} (2 of 2 shards); the index speaks of -of-00003"


def test_b056_other_files_are_no_explanation_where_shards_of_the_index_are_here(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)[1].unlink()
    weights(tmp_path, "mtp.safetensors")
    error = refused(tmp_path)
    assert (error.found, error.fix) == ("nothing", "Download it again.")


def test_b059_files_that_the_index_does_not_name_are_said_and_kept_for_a_count(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    weights(tmp_path, "mtp.safetensors")
    layout = resolve(tmp_path)
    assert [shard(1, 2), shard(2, 2)] == read(layout)
    assert layout.notices == (f"1 file left out, not named by the index {INDEX}: mtp.safetensors",)
    assert [str(tmp_path / "mtp.safetensors")] == [file.path for file in layout.unindexed]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "0 bytes"),
        ("[]", "[]"),
        ("null", "null"),
        ("{}", "null"),
        ('{"weight_map":[]}', "[]"),
        ('{"weight_map":{}}', "{}"),
        ('{"weight_map":{"a":1}}', "1"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 9\n", "git-lfs pointer"),
        ('{"metadata": {}, "weight_map": {"a": "model-0', "Unterminated string"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "the key 'a' twice"),
    ],
)
def test_b061_what_is_no_index_is_a_bad_index(tmp_path: Path, content: str, found: str) -> None:
    write_sharded(tmp_path, index=False)
    (tmp_path / INDEX).write_text(content)
    error = refused(tmp_path)
    assert (type(error), error.path) == (BadIndexError, str(tmp_path / INDEX))
    assert found in str(error.found)


LOOSE = [
    "a.safetensors",
    "layer.00001.weights.safetensors",
    "model-1.safetensors",
    "model-2.safetensors",
    "model-10.safetensors",
]


def test_b063_files_outside_the_pattern_are_one_set_in_natural_order(tmp_path: Path) -> None:
    weights(tmp_path, *reversed(LOOSE))
    assert read(resolve(tmp_path)) == LOOSE


class TestB064NoIndex:
    def test_a_single_file_in_a_folder(self, tmp_path: Path) -> None:
        weights(tmp_path, "model.safetensors")
        layout = resolve(tmp_path)
        assert (read(layout), layout.index) == (["model.safetensors"], None)

    def test_two_shards(self, tmp_path: Path) -> None:
        write_sharded(tmp_path, index=False)
        layout = resolve(tmp_path)
        assert (read(layout), layout.index) == ([shard(1, 2), shard(2, 2)], None)

    def test_two_files_of_any_name(self, tmp_path: Path) -> None:
        weights(tmp_path, "left.safetensors", "right.safetensors")
        assert read(resolve(tmp_path)) == ["left.safetensors", "right.safetensors"]

    def test_the_path_of_a_file(self, tmp_path: Path) -> None:
        weights(tmp_path, "model.safetensors")
        assert resolve(tmp_path / "model.safetensors").paths == (str(tmp_path / "model.safetensors"),)


class TestB066Variants:
    PLAIN = [shard(1, 2), shard(2, 2)]
    INFIX = ["model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"]
    SUFFIX = ["model-00001-of-00002.fp16.safetensors", "model-00002-of-00002.fp16.safetensors"]
    INDEXES = ["model.safetensors.index.fp16.json", "model.fp16.safetensors.index.json"]

    @pytest.mark.parametrize("fp16", [INFIX, SUFFIX])
    @pytest.mark.parametrize("index", [*INDEXES, None])
    def test_both_complete(self, tmp_path: Path, fp16: list[str], index: str | None) -> None:
        weights(tmp_path, *self.PLAIN, *fp16)
        if index is not None:
            write_index(tmp_path, {"a": self.PLAIN[0], "b": self.PLAIN[1]})
            write_index(tmp_path, {"a": fp16[0], "b": fp16[1]}, index)
        assert read(resolve(tmp_path)) == self.PLAIN
        assert fp16 == read(resolve(tmp_path, variant="fp16"))
        assert resolve(tmp_path, variant="fp16").variant == "fp16"
        error = refused(tmp_path, variant="bf16")
        assert isinstance(error, CheckpointNotFoundError)
        assert error.found == "no variant, variant 'fp16'"

    @pytest.mark.parametrize("index", [*INDEXES, None])
    def test_fp16_incomplete_is_an_error_and_never_the_default(self, tmp_path: Path, index: str | None) -> None:
        weights(tmp_path, *self.PLAIN, self.INFIX[0])
        if index is not None:
            write_index(tmp_path, {"a": self.PLAIN[0], "b": self.PLAIN[1]})
            write_index(tmp_path, {"a": self.INFIX[0], "b": self.INFIX[1]}, index)
        error = refused(tmp_path, variant="fp16")
        assert (type(error), error.path) == (MissingShardError, str(tmp_path / self.INFIX[1]))
        assert read(resolve(tmp_path)) == self.PLAIN

    def test_single_files(self, tmp_path: Path) -> None:
        weights(tmp_path, "model.safetensors", "model.fp16.safetensors")
        assert read(resolve(tmp_path)) == ["model.safetensors"]
        assert read(resolve(tmp_path, variant="fp16")) == ["model.fp16.safetensors"]
        assert isinstance(refused(tmp_path, variant="bf16"), CheckpointNotFoundError)

    def test_only_a_variant_is_there_and_none_was_asked_for(self, tmp_path: Path) -> None:
        weights(tmp_path, "model.fp16.safetensors")
        error = refused(tmp_path)
        assert (error.found, error.fix) == ("variant 'fp16'", "Pass variant='fp16' (--variant fp16).")


class TestB068SplitForOtherRanks:
    def test_another_world_size_is_refused(self, tmp_path: Path) -> None:
        weights(tmp_path, *(f"model-rank-{rank}-part-0.safetensors" for rank in range(4)))
        error = refused(tmp_path, rank=0, world_size=2)
        assert isinstance(error, AmbiguousCheckpointError)
        assert (error.expected, error.found) == ("rank and world_size=4", "world_size=2")

    def test_no_rank_is_refused(self, tmp_path: Path) -> None:
        weights(tmp_path, *(f"model-rank-{rank}-part-0.safetensors" for rank in range(4)))
        assert isinstance(refused(tmp_path), AmbiguousCheckpointError)

    def test_the_right_world_size_reads_the_files_of_the_rank(self, tmp_path: Path) -> None:
        weights(tmp_path, *(f"model-rank-{rank}-part-0.safetensors" for rank in range(4)))
        assert read(resolve(tmp_path, rank=3, world_size=4)) == ["model-rank-3-part-0.safetensors"]


class _Reversed:
    def __init__(self, entries: Any) -> None:
        with entries:
            self._entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

    def __enter__(self) -> Any:
        return iter(self._entries)

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.mark.parametrize("names", [LOOSE, [shard(n, 11) for n in range(1, 12)]])
def test_b069_order_is_by_name_whatever_order_the_system_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    weights(tmp_path, *names)
    as_listed = resolve(tmp_path)
    scandir, listdir = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", lambda *args: _Reversed(scandir(*args)))
    monkeypatch.setattr(os, "listdir", lambda *args: sorted(listdir(*args), reverse=True))
    assert as_listed == resolve(tmp_path)
    assert names == read(as_listed)


class TestB071AFormatThatWasAskedForIsNotSwapped:
    @staticmethod
    def build(folder: Path) -> None:
        (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04\x00\x00\x08\x08")

    def test_safetensors_asked_and_only_a_bin_there_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        self.build(tmp_path)
        error = refused(tmp_path, use_format="safetensors")
        assert isinstance(error, CheckpointNotFoundError)
        assert error.found == "pytorch_model.bin (format pt)"
        assert "use_format='pt'" in (error.fix or "")

    def test_the_file_itself_is_refused_too(self, tmp_path: Path) -> None:
        self.build(tmp_path)
        assert isinstance(refused(tmp_path / "pytorch_model.bin", use_format="safetensors"), ForeignContentError)

    def test_nothing_asked_names_the_format_for_the_selection_of_a_reader(self, tmp_path: Path) -> None:
        self.build(tmp_path)
        assert resolve(tmp_path).format == "pt"


class TestB162TheNameOfABlobSaysNothing:
    SAFETENSORS = "ab" * 32
    GGUF = "cd" * 32

    @pytest.fixture
    def snapshot(self, tmp_path: Path) -> Path:
        blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
        write_tensors(blobs / self.SAFETENSORS, {"w": ("F32", [1], floats(1))})
        (blobs / self.GGUF).write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(16))
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{self.SAFETENSORS}")
        (snapshot / "x.gguf").symlink_to(f"../../blobs/{self.GGUF}")
        return snapshot

    @pytest.mark.parametrize(("name", "form"), [("model.safetensors", "safetensors"), ("x.gguf", "gguf")])
    def test_a_link_keeps_the_name_the_user_gave(self, snapshot: Path, name: str, form: str) -> None:
        layout = resolve(snapshot / name)
        assert (form, (str(snapshot / name),)) == (layout.format, layout.paths)

    def test_a_folder_of_links_keeps_the_names_of_the_links(self, snapshot: Path) -> None:
        layout = resolve(snapshot)
        assert (layout.format, layout.paths) == ("safetensors", (str(snapshot / "model.safetensors"),))

    @pytest.mark.parametrize(("blob", "form"), [(SAFETENSORS, "safetensors"), (GGUF, "gguf")])
    def test_a_blob_itself_is_judged_by_its_content(self, snapshot: Path, blob: str, form: str) -> None:
        assert form == resolve(snapshot.parents[1] / "blobs" / blob).format

    def test_a_message_shows_the_name_the_user_gave(self, snapshot: Path) -> None:
        (snapshot.parents[1] / "blobs" / self.SAFETENSORS).write_bytes(b"")
        assert str(snapshot / "model.safetensors") == refused(snapshot).path


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".bin", ".pt", ""])
@pytest.mark.parametrize(
    ("content", "form"), [("safetensors", "safetensors"), ("gguf", "gguf"), ("zip", "pt"), ("pickle", "pt")]
)
def test_b012_name_and_content_crosswise(tmp_path: Path, suffix: str, content: str, form: str) -> None:
    path = tmp_path / f"w{suffix}"
    if content == "safetensors":
        write_safetensors(path, {"__metadata__": {"format": "pt"}})
    else:
        begins = {
            "gguf": b"GGUF\x03",
            "zip": b"PK\x03\x04" + bytes(26) + b"archive/data.pkl",
            "pickle": b"\x80\x02}q\x00.",
        }
        path.write_bytes(begins[content] + bytes(60))
    claimed = format_of(path.name, b"").by_name
    if form == "pt" and claimed not in ("pt", None):
        error = refused(path)
        assert isinstance(error, ForeignContentError)
        assert claimed in str(error.expected)
        assert "pt" in str(error.found)
    else:
        layout = resolve(path)
        assert form == layout.format
        assert len(layout.notices) == (claimed not in (form, None))


class TestB165AMistypedPathIsNoRepoId:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("./modle", "starts with '.'"),
            ("/data-of-nobody/modle", "starts with '/'"),
            ("~/m", "starts with '~'"),
            ("a/b/c", "has more than one slash"),
            ("a\\b", "holds a backslash"),
            ("a/modle.safetensors", "ends in '.safetensors' as a file does"),
        ],
    )
    def test_it_is_local_only_and_says_why_no_hub_was_asked(
        self, text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        error = refused(text)
        assert isinstance(error, CheckpointNotFoundError)
        assert error.what == f"no such file or folder; not tried on the Hub because it {reason}"

    def test_the_close_match_is_offered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "model").mkdir()
        monkeypatch.chdir(tmp_path)
        assert refused("./modle").fix == "Did you mean './model'?"

    def test_the_home_folder_is_expanded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        weights(tmp_path, "m/model.safetensors")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert resolve("~/m").paths == (str(tmp_path / "m" / "model.safetensors"),)

    @pytest.mark.parametrize("text", ["a/b", "a/b:Q4_K_M", "a/b@rev"])
    def test_a_path_that_exists_wins_over_a_repo_id(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        weights(tmp_path, f"{text}/model.safetensors")
        monkeypatch.chdir(tmp_path)
        assert resolve(text).paths == (f"{text}/model.safetensors",)

    @pytest.mark.parametrize("text", ["a/b", "Qwen/Qwen2.5-0.5B", "a/b:Q4_K_M", "hf://a/b@rev"])
    def test_a_repo_id_that_is_nothing_here_leads_to_the_hub(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(CheckpointNotFoundError) as caught:
            resolve_anywhere(text)
        assert "the cache holds no revision" in caught.value.what

    def test_a_blank_at_the_end_of_a_path_that_exists_is_pointed_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert (refused("a/b ").fix or "").startswith("Did you mean 'a/b'?")

    def test_a_backslash_is_answered_with_the_slash(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert refused("a\\b").fix == "Did you mean 'a/b'?"
