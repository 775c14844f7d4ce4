# SPDX-License-Identifier: Apache-2.0
"""The console script in processes of its own: what a user sees, what a shell gets, and how it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support import slow_reader
from support.commands import (
    COMMAND,
    Terminal,
    children,
    document,
    environment,
    is_alive,
    run,
    started,
    wait_until,
)
from support.files import floats, write_index, write_sharded, write_tensors
from support.plugins import Site

SOON = 20
"""Seconds within which an interrupted command must be gone. Where that fails it would go on for many minutes."""


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Path, Path]:
    """What belongs on PYTHONPATH for a reader that is called ``slow``."""
    return slow_reader.install(tmp_path / "site")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A checkpoint of 64 KiB in 64 tensors."""
    tensors = {f"t{i}": ("F32", [256], floats(*([i] * 256))) for i in range(64)}
    return write_tensors(tmp_path / "large" / "model.safetensors", tensors).parent


def broken_site(folder: Path) -> Site:
    """Plugins that fail in every way a plugin can fail at import."""
    site = Site(folder)
    site.plugin("imports_nothing", "import not_there_at_all\n")
    site.plugin("leaves", "raise SystemExit(3)\n")
    site.plugin("misspelt", "def broken(:\n")
    site.distribution("absent-dist", {"absent": "no_such_plugin_module"})
    return site


class TestWithBrokenPluginsInstalled:
    def test_help_and_list_work_and_import_no_torch(self, tmp_path: Path) -> None:
        site = broken_site(tmp_path)
        for arguments in (["--help"], ["list"]):
            script = (
                "import sys; from weight_readers_loader import cli\n"
                f"sys.argv = ['weight-readers', *{arguments!r}]\n"
                "try:\n    cli.main()\n"
                "except SystemExit as end:\n    code = end.code\n"
                "heavy = {'torch', 'numpy', 'safetensors'} & set(sys.modules)\n"
                "sys.exit(f'imported {heavy}' if heavy else code)\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", script],
                env=environment(site.folder),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        assert any(line.startswith("safetensors ") for line in done.stdout.splitlines())
        for name in ("imports_nothing", "leaves", "misspelt", "absent"):
            assert f"broken: {name} (" in done.stdout

    def test_what_a_plugin_prints_is_no_part_of_a_json_document(self, tmp_path: Path) -> None:
        site = Site(tmp_path / "site")
        site.plugin("chatty", "print('NOISE')\nraise ValueError('and broken')\n")
        write_sharded(tmp_path / "model", 2)
        model = tmp_path / "model"
        of_a_format = ("explain", model, "--format", "safetensors")
        for arguments in (("list",), ("doctor",), ("explain", model), of_a_format, ("load", model)):
            done = run(*arguments, "--json", path=(site.folder,))
            assert document(done)["command"] == arguments[0]
            assert "NOISE" in done.stderr

    def test_doctor_names_each_fault_with_versions_and_ends_with_1(self, tmp_path: Path) -> None:
        site = broken_site(tmp_path / "one")
        site.plugin("twin", distribution="twin-one", module="twin_one")
        site.plugin("twin", distribution="twin-two", module="twin_two")
        site.plugin("off")
        done = run("doctor", path=(site.folder,), env={"WEIGHT_READERS_DISABLE": "off"})
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        for words in (
            "broken: imports_nothing (imports_nothing-dist 1.0):",
            "'not_there_at_all', which is not installed",
            "broken: misspelt (misspelt-dist 1.0):",
            "SyntaxError",
            "duplicate: twin: twin-one 1.0",
            "twin-two 1.0",
            "disabled: off (off-dist 1.0), by WEIGHT_READERS_DISABLE",
            "something is broken, see above",
        ):
            assert words in done.stdout

    def test_a_load_goes_on_with_a_report_on_standard_output_and_progress_on_standard_error(
        self, tmp_path: Path
    ) -> None:
        site = broken_site(tmp_path / "site")
        write_sharded(tmp_path / "model", 3)
        done = run("load", tmp_path / "model", "--progress", path=(site.folder,))
        assert done.returncode == 0, done.stderr
        assert "read:       3 tensors, 24 B of 24 B wanted, 3 files" in done.stdout
        assert done.stderr.splitlines()[-1].startswith("safetensors: 100%")


def test_an_error_is_one_paragraph_and_json_stays_parseable(tmp_path: Path) -> None:
    write_sharded(tmp_path)[1].unlink()
    done = run("load", tmp_path, "--json")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: a file of the checkpoint is not there: ")
    assert [problem["error"] for problem in document(done)["errors"]] == ["MissingShardError"]


def test_a_module_of_the_current_folder_is_filled_and_shown(tmp_path: Path) -> None:
    """--into and --then from a file beside the user; what that code prints does not disturb the JSON."""
    write_tensors(tmp_path / "m" / "model.safetensors", {"weight": ("F32", [1, 2], floats(3, 4))})
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def build():\n    print('building')\n    return torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)\n"
        "def show(module):\n    return f'{module.weight.dtype} {module.weight.tolist()}'\n"
    )
    arguments = ("load", "m", "--into", "mine:build", "--then", "mine:show", "--cast", "--json")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = document(done)
    assert data["result"] == "torch.bfloat16 [[3.0, 4.0]]"
    assert data["report"]["cast"] == {"float32 -> bfloat16": 1}
    assert "building" in done.stderr


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)
    for arguments in (["load", tmp_path, "--no-progress"], ["list"]):
        read, write = os.pipe()
        os.close(read)
        done = run(*arguments, capture_output=False, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


class TestInterrupted:
    """A reader so slow that the load would take over three minutes (huggingface/huggingface_hub#4730)."""

    ARGUMENTS = ("--reader", "slow", "--option", "seconds_per_kib=3")

    def load(self, folder: Path, path: tuple[Path, ...]) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return started("load", folder, *self.ARGUMENTS, path=path)

    @staticmethod
    def loading(pid: int) -> int:
        """The pid of the child, once it reads tensors: it waits in a sleep and has torch loaded."""
        wait_until(lambda: children(pid), of="a child")
        (child,) = children(pid)
        maps = Path(f"/proc/{child}/maps")
        wait_until(lambda: "libtorch_cpu" in maps.read_text() and _threads(child) > 1, of="the child to load")
        return child

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_by_a_signal_to_the_command(self, number: int, code: int, large: Path, slow: tuple[Path, Path]) -> None:
        with self.load(large, slow) as process:
            child = self.loading(process.pid)
            process.send_signal(number)
            assert process.wait(SOON) == code
            assert not is_alive(child)
            _, stderr = process.communicate(timeout=600)
        assert b"Traceback" not in stderr
        assert (b"Interrupted" in stderr) == (number == signal.SIGINT)

    def test_by_ctrl_c_on_a_terminal(self, large: Path, slow: tuple[Path, Path]) -> None:
        with Terminal("load", large, *self.ARGUMENTS, path=slow) as terminal:
            terminal.wait_for(b"\rslow:   0%|")
            (child,) = children(terminal.process.pid)
            terminal.type(b"\x03")
            assert terminal.finish(seconds=SOON) == 130
            assert not is_alive(child)
        assert b"Traceback" not in terminal.output
        assert terminal.output.rstrip().endswith(b"Interrupted")

    def test_the_second_time_hard(self, tmp_path: Path, large: Path, slow: tuple[Path, Path]) -> None:
        """Code that catches the first interrupt and goes on does not survive the second."""
        (tmp_path / "stubborn.py").write_text(
            "import pathlib, time\n"
            "def stay(filled):\n"
            "    for i in range(2000):\n"
            "        try:\n"
            "            pathlib.Path('state').write_text(str(i))\n"
            "            time.sleep(1)\n"
            "        except KeyboardInterrupt:\n"
            "            pathlib.Path('caught').touch()\n"
        )
        with started("load", large, "--then", "stubborn:stay", cwd=tmp_path) as process:
            wait_until((tmp_path / "state").exists, of="the function to run")
            (child,) = children(process.pid)
            process.send_signal(signal.SIGINT)
            wait_until((tmp_path / "caught").exists, of="the first interrupt")
            process.send_signal(signal.SIGINT)
            assert process.wait(SOON) == 130
            assert not is_alive(child)
            _, stderr = process.communicate(timeout=600)
        assert stderr.splitlines()[-1] == b"Killed"

    def test_a_parent_that_is_killed_takes_the_child_along(self, large: Path, slow: tuple[Path, Path]) -> None:
        with self.load(large, slow) as process:
            child = self.loading(process.pid)
            process.kill()
            process.wait(SOON)
            wait_until(lambda: not is_alive(child), seconds=SOON, of="the child to end")


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_file_that_shrinks_under_the_mapping_is_named_with_what_helps(tmp_path: Path) -> None:
    """SIGBUS leaves no Python code to say anything (ggml-org/llama.cpp#6774): the parent tells, and which file."""
    page = floats(*([1.0] * 4096))
    folder = tmp_path / "model"
    for name in ("a", "b", "c"):
        write_tensors(folder / f"{name}.safetensors", {name: ("F32", [4096], page)})
    write_index(folder, {name: f"{name}.safetensors" for name in ("a", "b", "c")})
    (tmp_path / "mine.py").write_text(
        "import os\ndef shrink(filled):\n    os.truncate('model/b.safetensors', 100)\n    return filled['b'].sum()\n"
    )
    begun = time.monotonic()
    done = run("load", "model", "--then", "mine:shrink", "--no-progress", cwd=tmp_path)
    assert time.monotonic() - begun < 60
    assert (done.returncode, done.stdout) == (135, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: the load died of SIGBUS (signal 7) while reading model/b.safetensors (it had 16")
    assert "--option copy=true" in line
    assert "a.safetensors" not in line


def test_json_is_one_document_with_a_schema_number(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    for arguments in (["list"], ["verify", tmp_path]):
        done = run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        data = document(done)
        assert (data["schema"], data["command"], data["ok"]) == (1, arguments[0], True)
        assert json.dumps(data).isascii()


def test_the_command_under_test_is_the_one_of_this_environment() -> None:
    assert COMMAND.exists()
    assert run("--version").stdout.startswith("weight-readers, version ")


def test_the_package_runs_as_the_command_does(tmp_path: Path) -> None:
    write_sharded(tmp_path)

    def as_module(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "weight_readers_loader", *map(str, arguments)]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)

    for arguments in (("inspect", tmp_path), ("explain", tmp_path / "nowhere"), ("load", tmp_path, "--device", "no")):
        by_name, by_module = run(*arguments), as_module(*arguments)
        assert (by_name.returncode, by_name.stdout) == (by_module.returncode, by_module.stdout)
        assert by_name.stderr == by_module.stderr
    loaded = as_module("load", tmp_path, "--json")
    assert (loaded.returncode, document(loaded)["ok"]) == (0, True)
