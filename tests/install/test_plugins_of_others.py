# SPDX-License-Identifier: Apache-2.0
"""Readers that somebody else writes: the template as it is, and one made from it. Built, installed, held, removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.venvs import Venv
from support.wheels import ROOT

EXAMPLE = ROOT / "examples" / "third_party_reader"


@pytest.fixture(scope="module")
def bare(mmap: Venv) -> Iterator[Venv]:
    """An environment that has core, torch and the testkit, and of this repository's readers only the fallback."""
    mmap.install("weight-readers[testkit]", "weight-readers-loader", "numpy")
    yield mmap
    mmap.uninstall("weight-readers-testkit", "weight-readers-loader")


def wheel_of(project: Path, folder: Path) -> Path:
    """Build the wheel with the build backend of this environment; no index is asked."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(project)], check=True, timeout=1200)
    (wheel,) = folder.glob("*.whl")
    return wheel


def passed(venv: Venv, tests: Path) -> str:
    """What pytest says at the end, in that environment; its failures are this test's."""
    command = [
        str(venv.python),
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        str(tests),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests.parent, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def npz(bare: Venv, tmp_path: Path) -> Iterator[Venv]:
    bare.install(wheel_of(EXAMPLE, tmp_path))
    yield bare
    bare.uninstall("npz-reader")


def test_the_example_is_discovered_explained_selected_and_loaded_and_passes_the_kit(npz: Venv, tmp_path: Path) -> None:
    assert npz.names() == ["npz", "safetensors"]
    path = tmp_path / "m.npz"
    np.savez(path, w=np.arange(4, dtype="f4"))
    read = f"""
        selection = weight_readers.explain_selection(format="npz")
        reader = weight_readers.select_weight_reader(format="npz")
        read = [[name, t.tolist()] for name, t in reader.iter_weights([{str(path)!r}])]
        say([selection.chosen, reader.selection.reason, read])
    """
    assert npz.run(read).json == ["npz", "the only reader that fits", [["w", [0, 1, 2, 3]]]]
    assert "failed" not in passed(npz, EXAMPLE / "tests")


def command(venv: Venv, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What ``weight-readers`` of that environment says."""
    line = [str(venv.folder / "bin" / "weight-readers"), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300)


def test_the_command_line_takes_a_format_as_long_as_its_reader_is_there(bare: Venv, tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, w=np.arange(4, dtype="f4"))
    bare.install(wheel_of(EXAMPLE, tmp_path))
    try:
        done = {name: command(bare, name, path) for name in ("load", "explain", "inspect")}
    finally:
        bare.uninstall("npz-reader")
    assert [each.returncode for each in done.values()] == [0, 0, 0], done
    assert "chosen: npz (the only reader that fits)" in done["explain"].stdout
    assert "w  float32  [4]  16 B" in done["inspect"].stdout
    gone = command(bare, "load", path)
    assert gone.returncode == 1
    assert "not a weight file" in gone.stderr
    assert "install the reader of its format" in gone.stderr


def test_uninstalling_the_example_leaves_nothing(bare: Venv, tmp_path: Path) -> None:
    before = sorted(path.name for path in bare.site_packages.iterdir())
    bare.install(wheel_of(EXAMPLE, tmp_path))
    assert bare.names() == ["npz", "safetensors"]
    bare.uninstall("npz-reader")
    assert bare.names() == ["safetensors"]
    assert before == sorted(path.name for path in bare.site_packages.iterdir())


def test_the_template_is_written_installed_and_passes_the_kit_as_it_is(bare: Venv, tmp_path: Path) -> None:
    command = bare.folder / "bin" / "weight-readers"
    folder = tmp_path / "acme-reader"
    subprocess.run([command, "new-plugin", "acme"], check=True, cwd=tmp_path, capture_output=True, timeout=600)
    (tmp_path / "wheels").mkdir()
    bare.install(wheel_of(folder, tmp_path / "wheels"))
    try:
        assert bare.names() == ["acme", "safetensors"]
        assert "failed" not in passed(bare, folder / "tests")
    finally:
        bare.uninstall("acme-reader")
