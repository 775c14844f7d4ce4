# SPDX-License-Identifier: Apache-2.0
"""The commands in this process: what they find and say. The console script itself is in tests/real."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from support.commands import invoke
from support.files import entry, floats, write_index, write_safetensors, write_sharded, write_tensors
from support.measure import exit_code_of
from support.plugins import PLUGIN, Site

import weight_readers
from weight_readers_loader.commands import output
from weight_readers_loader.commands.note import Note


def document(done: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


class TestInspect:
    def test_it_lists_tensors_totals_metadata_and_notices(self, tmp_path: Path) -> None:
        write_tensors(
            tmp_path / "model.safetensors",
            {"w": ("F32", [2, 1], floats(1, 2)), "b": ("BF16", [1], b"\0\0")},
            format="pt",
        )
        write_tensors(tmp_path / "consolidated.safetensors", {"c": ("F32", [1], floats(1))})
        done = invoke("inspect", tmp_path)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert lines[0] == f"w  F32  [2, 1]  8 B  {tmp_path / 'model.safetensors'}"
        assert lines[2] == "2 tensors in 1 file, 10 B: F32: 1 (8 B), BF16: 1 (2 B)"
        assert lines[3] == "metadata: format=pt"
        assert "consolidated.safetensors" in lines[4]

    def test_a_line_end_in_what_comes_from_a_file_does_not_make_two_lines_of_one(self, tmp_path: Path) -> None:
        name = "a\nb  F32  [9]"
        path = write_tensors(tmp_path / "m.safetensors", {name: ("F32", [1], floats(1))}, note="x\ny", other=name)
        lines = invoke("inspect", tmp_path).stdout.splitlines()
        assert lines[0] == f"a\\nb  F32  [9]  F32  [1]  4 B  {path}"
        assert lines[2:] == [r"metadata: note=x\ny", r"alias: other is stored as a\nb  F32  [9]"]

    def test_json_has_every_tensor_in_full(self, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [2, 1], floats(1, 2))})
        data = document(invoke("inspect", tmp_path, "--json"))
        assert (data["schema"], data["command"], data["ok"]) == (1, "inspect", True)
        (tensor,) = data["tensors"]
        assert (tensor["name"], tensor["dtype"], tensor["shape"], tensor["file"]) == ("w", "float32", [2, 1], str(path))
        assert (data["total_bytes"], data["errors"]) == (8, [])

    def test_of_a_damaged_file_it_lists_what_it_can_and_ends_with_1(self, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "model.safetensors", {n: ("F32", [1], floats(1)) for n in "abc"})
        path.write_bytes(path.read_bytes()[:-1])
        done = invoke("inspect", tmp_path)
        assert done.exit_code == 1
        assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["a", "b", "c"]
        assert done.stderr.startswith("Error: the file is cut")
        data = document(invoke("inspect", tmp_path, "--json"))
        assert (data["ok"], len(data["tensors"])) == (False, 3)
        assert [error["error"] for error in data["errors"]] == ["TruncatedFileError"]

    @pytest.mark.parametrize("kept", [0, 3, 60])
    def test_of_a_file_of_which_nothing_can_be_listed_it_says_the_error_alone(self, kept: int, tmp_path: Path) -> None:
        path = write_tensors(tmp_path / "model.safetensors", {n: ("F32", [1], floats(1)) for n in "abc"})
        path.write_bytes(path.read_bytes()[:kept])
        done = invoke("inspect", path)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.count("Error: ") == 1

    def test_a_file_without_tensors_has_0_of_them(self, tmp_path: Path) -> None:
        done = invoke("inspect", write_tensors(tmp_path / "model.safetensors", {}))
        assert (done.exit_code, done.stdout) == (0, "0 tensors in 1 file, 0 B: nothing\n")

    def test_a_dtype_that_nobody_knows_is_marked(self, tmp_path: Path) -> None:
        header = {"w": entry("F32", [1], 0, 4), "q": entry("Q9_9", [1], 4, 8)}
        write_safetensors(tmp_path / "model.safetensors", header, bytes(8))
        done = invoke("inspect", tmp_path)
        assert done.exit_code == 1
        assert "q  Q9_9 (unknown)  [1]" in done.stdout
        assert "w  F32  [1]" in done.stdout

    def test_the_shards_that_are_there_are_listed_though_one_is_not(self, tmp_path: Path) -> None:
        write_sharded(tmp_path, 3)[1].unlink()
        done = invoke("inspect", tmp_path)
        assert done.exit_code == 1
        assert "2 tensors in 2 files" in done.stdout
        assert "00002-of-00003.safetensors" in done.stderr

    def test_names_cannot_write_to_the_terminal(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "model.safetensors", {"a\x1b[2Jb": ("F32", [1], floats(1))}, note="\x1b]0;title\x07")
        done = invoke("inspect", tmp_path)
        assert done.exit_code == 0
        assert "\x1b" not in done.stdout
        assert "a\\x1b[2Jb" in done.stdout


class TestVerify:
    def test_three_different_faults_in_four_shards_are_all_told(self, tmp_path: Path) -> None:
        paths = write_sharded(tmp_path, 4)
        paths[0].unlink()
        paths[1].write_bytes(paths[1].read_bytes()[:-1])
        paths[3].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 104\n")
        done = invoke("verify", tmp_path)
        assert done.exit_code == 1
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 3
        for path, line in zip((paths[0], paths[1], paths[3]), errors, strict=True):
            assert str(path) in line
        assert "3 problems" in done.stdout
        kinds = [error["error"] for error in document(invoke("verify", tmp_path, "--json"))["errors"]]
        assert kinds == ["MissingShardError", "TruncatedFileError", "LfsPointerError"]

    def test_a_fault_of_the_header_and_one_of_the_contents_are_told_together(self, tmp_path: Path) -> None:
        first, second = write_sharded(tmp_path, 2)
        sums = tmp_path / "SUMS"
        sums.write_text(f"{'0' * 64}  {first.name}\n{'1' * 64}  {second.name}\n")
        second.write_bytes(second.read_bytes()[:-1])
        kinds = [e["error"] for e in document(invoke("verify", tmp_path, "--manifest", sums, "--json"))["errors"]]
        assert kinds == ["TruncatedFileError", "DigestMismatchError", "DigestMismatchError"]

    def test_what_is_ambiguous_is_one_problem(self, tmp_path: Path) -> None:
        write_sharded(tmp_path, 2, index=False)
        write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [1], floats(1))})
        data = document(invoke("verify", tmp_path, "--json"))
        assert [error["error"] for error in data["errors"]] == ["AmbiguousCheckpointError"]
        assert (data["ok"], data["files"], data["contents"]) == (False, [], None)

    def test_a_sound_checkpoint_has_its_tensors_counted(self, tmp_path: Path) -> None:
        write_sharded(tmp_path, 3)
        data = document(invoke("verify", tmp_path, "--json"))
        assert (data["ok"], data["tensors"], len(data["files"]), data["errors"]) == (True, 3, 3, [])


class TestExplain:
    def test_it_names_the_reader_a_load_takes_and_why(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        done = invoke("explain", tmp_path)
        assert done.exit_code == 0
        assert done.stdout.splitlines()[0] == f"{tmp_path}: safetensors, 2 files"
        assert "chosen: safetensors (" in done.stdout

    def test_its_request_is_that_of_the_load(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        for arguments in ([], ["--filter", "t1"], ["--owned"], ["--option", "prefetch=2"]):
            explained = document(invoke("explain", tmp_path, *arguments, "--json"))["selection"]
            loaded = document(invoke("load", tmp_path, *arguments, "--json"))["report"]["selection"]
            assert explained["request"] == loaded["request"]
            assert explained["chosen"] == loaded["chosen"]

    def test_where_none_fits_it_ends_with_1_and_one_json_document(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        done = invoke("explain", tmp_path, "--option", "unsigned=true", "--option", "copy=true", "--json")
        assert done.exit_code == 1
        data = document(done)
        assert (data["ok"], data["selection"]["chosen"]) == (False, None)
        assert "has no option unsigned" in data["selection"]["candidates"][0]["reason"]
        assert [error["error"] for error in data["errors"]] == ["NoSuitableReaderError"]
        done = invoke("explain", tmp_path, "--option", "unsigned=true", "--option", "copy=true")
        assert "chosen: none" in done.stdout
        assert done.stderr.startswith("Error: no installed weight reader fits format 'safetensors'")

    def test_of_a_damaged_checkpoint_it_says_what_a_load_would_end_with(self, tmp_path: Path) -> None:
        path = write_sharded(tmp_path)[0]
        path.write_bytes(path.read_bytes()[:-1])
        done = invoke("explain", tmp_path)
        assert done.exit_code == 0
        assert "notice: a load would end with: the file is cut" in done.stdout

    def test_a_reader_that_nobody_has_is_an_error(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        done = invoke("explain", tmp_path, "--reader", "safetensor")
        assert done.exit_code == 2
        assert "unknown weight reader 'safetensor'" in done.stderr


class TestLoad:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "here_only.py").write_text(
            "import torch\n"
            "def one():\n    return {'t1': torch.zeros(2)}\n"
            "def two():\n    return {'t1': torch.zeros(2), 't2': torch.zeros(2)}\n"
            "def sum_of(filled):\n    return sum(t.float().sum() for t in filled.values()).item()\n"
            "def fails(*args):\n    raise ValueError('as it likes')\n"
            "number = 3\n"
        )
        write_sharded(tmp_path / "m")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
        yield
        sys.modules.pop("here_only", None)

    @pytest.mark.parametrize(
        ("arguments", "result"),
        [
            ([], "7.0"),
            (["--into", "here_only:two"], "7.0"),
            (["--into", "here_only:one", "--partial"], "2.5"),
            (["--filter", "t2"], "4.5"),
            (["--filter", "t1", "--filter", "t[3-9]"], "2.5"),
            (["--owned"], "7.0"),
            (["--option", "copy=true"], "7.0"),
        ],
    )
    def test_then_sees_what_was_filled(self, arguments: list[str], result: str) -> None:
        done = invoke("load", "m", *arguments, "--then", "here_only:sum_of", "--json")
        assert (done.exit_code, document(done)["result"]) == (0, result)

    def test_a_module_that_wants_less_is_refused_without_partial(self) -> None:
        done = invoke("load", "m", "--into", "here_only:one")
        assert done.exit_code == 1
        assert "1 unexpected in the checkpoint: t2" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--cast"], "--cast converts what --into fills"),
            (["--partial"], "--partial is about the names"),
            (["--into", "here_only:one", "--filter", "t1"], "--filter and --into exclude each other"),
            (["--into", "here_only:one", "--device", "meta"], "--device meta has no values to load"),
            (["--device", "meta"], "--device meta has no values to load"),
            (["--rank", "0"], "--rank and --world-size are given together"),
            (["--rank", "2", "--world-size", "2"], "--rank must be less than --world-size 2"),
            (["--rank", "-1", "--world-size", "2"], "-1 is not in the range"),
            (["--option", "copy"], "'copy' is not NAME=VALUE"),
            (["--option", "copy=true", "--option", "copy=false"], "'copy' is given twice"),
            (["--into", "here_only"], "'here_only' is not MODULE:CALLABLE"),
            (["--into", "here_only:nothing"], "cannot import 'here_only:nothing'"),
            (["--then", "not_there_at_all:f"], "cannot import 'not_there_at_all:f'"),
            (["--then", "here_only:number"], "'here_only:number' is int, which cannot be called"),
            (["--device", "nonsense"], "device='nonsense' (--device) is no device that can be used here; there is"),
            (["--device", "cuda:99"], "device='cuda:99' (--device) is no device that can be used here; there is 'cpu'"),
            (["--format", "csv"], "['safetensors', 'gguf', 'pt'], not 'csv'"),
        ],
    )
    def test_a_command_line_that_is_wrong_in_itself_ends_with_2_before_any_file_is_looked_at(
        self, arguments: list[str], words: str
    ) -> None:
        done = invoke("load", "no/such/place", *arguments)
        assert done.exit_code == 2
        assert words in done.stderr
        assert "no such file" not in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--filter", "x*"], "no tensor of m matches --filter: it has t1, t2"),
            (["--sha256"], "no digest to verify model-00001-of-00002.safetensors"),
            (["--owned", "--option", "copy=false"], "contradicts owned=True"),
            (["--variant", "fp16"], "no safetensors weights of variant 'fp16' here"),
        ],
    )
    def test_what_does_not_fit_this_checkpoint_or_reader_ends_with_1(self, arguments: list[str], words: str) -> None:
        done = invoke("load", "m", *arguments, "--json")
        assert done.exit_code == 1
        assert words in done.stderr
        assert any(words in error["what"] or words in str(error) for error in document(done)["errors"])

    @pytest.mark.parametrize("command", ["load", "explain"])
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--option", "prefetch=-1"], "option 'prefetch' of reader 'safetensors' must be 0 to 64 threads, not -1"),
            (["--option", "readonly=1"], "option 'readonly' of reader 'safetensors' must be True or False, not 1"),
            (["--option", "copy=true", "--option", "readonly=true"], "exclude each other"),
            (["--option", "num_thread=2"], "an option 'num_thread' (--option). Did you mean 'num_threads'?"),
            (
                ["--reader", "safetensors", "--option", "num_threads=2"],
                "reader 'safetensors' has no option 'num_threads' (--option). It is an option of 'threaded'",
            ),
        ],
    )
    def test_an_option_that_a_reader_refuses_ends_with_2(self, command: str, arguments: list[str], words: str) -> None:
        done = invoke(command, "m", *arguments, "--json")
        assert done.exit_code == 2
        assert words in done.stderr
        assert [error["error"] for error in document(done)["errors"]] == ["ConfigError"]

    @pytest.mark.parametrize("option", ["--into", "--then"])
    def test_an_error_of_the_users_own_code_comes_with_its_traceback(self, option: str) -> None:
        done = invoke("load", "m", option, "here_only:fails")
        assert done.exit_code == 1
        assert "in fails" in done.stderr
        assert f"Error: {option} here_only:fails raised ValueError: as it likes" in done.stderr
        assert "_guarded" not in done.stderr

    def test_aliases_are_given_when_asked(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "a" / "model.safetensors", {"t1": ("F32", [2], floats(1, 2))}, t2="t1")
        assert invoke("load", "a", "--into", "here_only:two").exit_code == 1
        done = invoke("load", "a", "--into", "here_only:two", "--aliases", "--then", "here_only:sum_of", "--json")
        assert (done.exit_code, document(done)["result"]) == (0, "6.0")
        assert document(done)["report"]["aliases"] == {"t2": "t1"}


@pytest.mark.parametrize("command", ["load", "explain", "inspect"])
def test_files_that_nothing_binds_together_are_said(command: str, tmp_path: Path) -> None:
    for name in ("encoder", "decoder"):
        write_tensors(tmp_path / f"{name}.safetensors", {name: ("F32", [1], floats(1))})
    done = invoke(command, tmp_path)
    assert done.exit_code == 0
    assert "no index says that these belong together, and all are read: decoder.safetensors, encoder" in done.stdout
    data = document(invoke(command, tmp_path, "--json"))
    assert len(data["report"]["notices"] if command == "load" else data["notices"]) == 1


@pytest.mark.parametrize("command", ["load", "explain", "bench"])
def test_a_misspelt_reader_ends_with_2_before_any_file_is_looked_at(command: str) -> None:
    done = invoke(command, "no/such/place", "--reader", "treaded", "--json")
    assert done.exit_code == 2
    assert "unknown weight reader 'treaded'" in done.stderr
    assert "Did you mean 'threaded'?" in done.stderr
    assert "no such file" not in done.stderr
    assert [error["error"] for error in document(done)["errors"]] == ["UnknownReaderError"]


def test_a_variable_that_says_nothing_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHT_READERS_STRICT", "maybe")
    weight_readers.refresh()
    done = invoke("load", write_tensors(tmp_path / "m.safetensors", {"w": ("F32", [1], floats(1))}))
    monkeypatch.undo()
    weight_readers.refresh()
    assert (done.exit_code, "WEIGHT_READERS_STRICT must be 1 or 0, not 'maybe'" in done.stderr) == (2, True)


class TestProgress:
    @pytest.fixture
    def small(self, tmp_path: Path) -> Path:
        return write_tensors(tmp_path / "m.safetensors", {"w": ("F32", [1], floats(1))})

    def test_is_not_shown_off_a_terminal(self, small: Path) -> None:
        assert invoke("load", small).stderr == ""

    def test_is_lines_there_where_it_is_asked_for(self, small: Path) -> None:
        lines = invoke("load", small, "--progress").stderr.splitlines()
        assert "100%" in lines[-1]
        assert not any("\r" in line for line in lines)


class TestListAndDoctor:
    @pytest.fixture
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
        site = Site(tmp_path / "site")
        monkeypatch.syspath_prepend(str(site.folder))
        yield site
        monkeypatch.undo()
        site.forget_modules()
        weight_readers.refresh()

    def test_a_sound_installation_is_said_to_work(self) -> None:
        done = invoke("doctor")
        assert done.exit_code == 0, done.stdout
        assert done.stdout.splitlines()[-1] == "everything that is installed works"

    def test_a_reader_without_its_backend_is_a_fault_with_a_command(self, site: Site) -> None:
        source = (
            "from weight_readers import *\nfrom weight_readers import Requirement\n"
            "INFO = ReaderInfo(name='bare', formats={'gguf'}, lifetime='owned',"
            " requires=(Requirement(module='no_such_backend', distribution='no-such-backend'),))\n"
            "@hookimpl\ndef weight_readers_describe():\n    return INFO\n"
            "@hookimpl\ndef weight_readers_create(options):\n    raise AssertionError\n"
        )
        site.plugin("bare", source)
        weight_readers.refresh()
        done = invoke("doctor")
        assert done.exit_code == 1
        assert "unusable: bare: needs the module 'no_such_backend'" in done.stdout
        assert "pip install no-such-backend" in done.stdout

    def test_a_reader_that_declines_whatever_is_asked_is_a_fault(self, site: Site) -> None:
        veto = (
            "from weight_readers import Declined\n@hookimpl\ndef weight_readers_check(request, environment):\n"
            "    return Declined(reason='its backend 0.1 is too old', fix='Update it')\n"
        )
        site.plugin("aged", f"{PLUGIN.format(name='aged')}\n{veto}")
        weight_readers.refresh()
        done = invoke("doctor")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "something is broken, see above")
        assert "declines: aged: its backend 0.1 is too old. Update it" in done.stdout

    @pytest.mark.parametrize(
        "decline",
        [
            "if request.device == 'cuda' else Declined(reason='only for cuda', fix='Ask for device=cuda')",
            "if environment.devices else Declined(reason='this machine has no device for it')",
        ],
    )
    def test_a_reader_that_declines_one_request_or_this_machine_is_no_fault(self, decline: str, site: Site) -> None:
        veto = (
            "from weight_readers import Declined\n@hookimpl\ndef weight_readers_check(request, environment):\n"
            f"    return None {decline}\n"
        )
        source = PLUGIN.format(name="choosy").replace("lifetime=", "devices={'cpu', 'cuda'}, lifetime=")
        site.plugin("choosy", f"{source}\n{veto}")
        weight_readers.refresh()
        done = invoke("doctor")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "everything that is installed works")
        assert "declines: choosy: " in done.stdout

    def test_a_reader_that_was_disabled_is_no_fault(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        site.plugin("off")
        monkeypatch.setenv("WEIGHT_READERS_DISABLE", "off")
        weight_readers.refresh()
        done = invoke("doctor")
        assert (done.exit_code, "disabled: off (off-dist 1.0)" in done.stdout) == (0, True)

    def test_a_broken_plugin_comes_with_its_traceback(self, site: Site) -> None:
        site.plugin("cracked", "def helper():\n    raise ImportError('libx.so.2')\nhelper()\n")
        weight_readers.refresh()
        done = invoke("doctor")
        assert done.exit_code == 1
        assert "traceback of cracked:" in done.stdout
        assert "in helper" in done.stdout
        assert "broken: cracked (cracked-dist 1.0)" in invoke("list").stdout
        data = document(invoke("doctor", "--json"))
        assert (data["schema"], data["command"], data["ok"]) == (1, "doctor", False)
        assert list(data["registry"]["broken"]) == ["cracked"]

    def test_without_any_reader_the_install_command_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ",".join(weight_readers.available_reader_names())
        monkeypatch.setenv("WEIGHT_READERS_DISABLE", names)
        weight_readers.refresh()
        try:
            done = invoke("list")
        finally:
            monkeypatch.undo()
            weight_readers.refresh()
        assert done.exit_code == 0
        assert "no weight reader is installed." in done.stdout


class TestOutput:
    @staticmethod
    def run(function: Any) -> int:
        @click.group()
        def group() -> None:
            pass

        @group.command()
        @output.reports_errors
        def it() -> None:
            function()

        return output.run(group, args=["it"])

    @pytest.fixture(autouse=True)
    def restore(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import warnings

        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    @pytest.mark.parametrize(
        ("error", "code", "said"),
        [
            (ValueError("bad"), 1, "Error: bad\n"),
            (MemoryError(), 1, "Error: out of memory.\n"),
            (click.UsageError("which"), 2, "which"),
            (KeyboardInterrupt(), 130, "Interrupted"),
            (SystemExit(143), 143, ""),
            (SystemExit(None), 0, ""),
            (SystemExit("text"), 1, ""),
        ],
        ids=repr,
    )
    def test_each_way_to_end_has_its_code(
        self, error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> None:
            raise error

        assert self.run(fail) == code
        assert said in capsys.readouterr().err

    def test_an_error_that_nobody_foresaw_keeps_its_traceback(self) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.run(fail)


class TestNote:
    def test_files_are_told_with_their_sizes_and_those_that_shrank(self, tmp_path: Path) -> None:
        note = Note()
        paths = []
        for name in ("a", "b \n c", "gone"):
            path = tmp_path / name
            path.write_bytes(b"1234")
            note.append(str(path))
            paths.append(str(path))
        assert note.files() == [(path, 4) for path in paths]
        assert list(note.shrunk()) == []
        os.truncate(paths[1], 1)
        os.unlink(paths[2])
        assert list(note.shrunk()) == [f"{paths[1]} (it had 4 bytes and has 1 now)"]

    def test_what_is_not_there_or_does_not_fit_is_not_noted(self, tmp_path: Path) -> None:
        note = Note()
        note.append(str(tmp_path / "absent"))
        assert note.files() == []
        path = tmp_path / ("x" * 200)
        path.write_bytes(b"1")
        for _ in range(30_000):
            note.append(str(path))
        assert len(note.files()) < 30_000
        assert set(note.files()) == {(str(path), 1)}

    def test_another_process_reads_it(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"1")
        note = Note()
        child = os.fork()
        if not child:
            note.append(str(path))
            os._exit(0)
        assert exit_code_of(child) == 0
        assert note.files() == [(str(path), 1)]


def test_an_index_with_a_name_that_leads_out_of_the_folder_is_one_paragraph(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "../secret.safetensors"})
    done = invoke("load", tmp_path)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
