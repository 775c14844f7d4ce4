# SPDX-License-Identifier: Apache-2.0
"""Old releases of the Run:ai Model Streamer beside our plugin, whose requirement on it somebody overrode."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import floats, write_tensors
from support.venvs import Venv
from support.wheels import download

OLDEST, OLD, LAST = "0.5.0", "0.14.0", "0.16.1"
"""The first release, one that people have, and the last one without what the reader needs."""

FIX = 'Update it: pip install --upgrade "runai-model-streamer>=0.17"'


@pytest.fixture(scope="module")
def runai(mmap: Venv) -> Iterator[Venv]:
    mmap.install("weight-readers[runai,loader]")
    yield mmap
    mmap.uninstall("weight-readers-runai", "weight-readers-loader", "runai-model-streamer")


@pytest.fixture(scope="module")
def version(request: pytest.FixtureRequest, runai: Venv, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The version of the streamer that is installed in ``runai``."""
    version: str = request.param
    runai.install("--no-deps", download(f"runai-model-streamer=={version}", tmp_path_factory.mktemp(version)))
    return version


@pytest.mark.parametrize("version", [OLDEST, OLD, LAST], indirect=True)
def test_it_is_declined_with_its_version_and_the_command_that_mends_it(runai: Venv, version: str) -> None:
    assert runai.names() == ["safetensors"]
    select = "weight_readers.select_weight_reader(requested='runai_streamer', strict=True)"
    kind, said, fix = runai.run(f"refused(lambda: {select})").json
    assert kind == "ReaderUnavailableError"
    assert f"runai-model-streamer {version} has no runai_request(range_offsets=)" in said
    assert "runai_response(timeout_ms=)" in said
    assert fix == FIX


@pytest.mark.parametrize("version", [OLD], indirect=True)
def test_a_local_file_is_read_by_another_reader_aloud(runai: Venv, version: str, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"w": ("F32", [2], floats(1.5, -2.0))})
    done = runai.run(f"""
        import sys
        from weight_readers_loader import open_checkpoint
        checkpoint = open_checkpoint({str(path)!r}, reader="runai_streamer")
        values = checkpoint.state_dict()["w"].tolist()
        say([checkpoint.report.reader, values, "runai_model_streamer" in sys.modules])
    """)
    assert done.json == ["safetensors", [1.5, -2.0], False]
    assert "ReaderFallbackWarning: weight reader 'safetensors' is used in place of 'runai_streamer'" in done.stderr
    assert f"runai-model-streamer {version} has no" in done.stderr
    assert FIX in done.stderr


@pytest.mark.parametrize("version", [OLD], indirect=True)
def test_the_doctor_finds_it(runai: Venv, version: str) -> None:
    command = [str(runai.folder / "bin" / "weight-readers"), "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"runai-model-streamer {version} has no" in done.stdout
    assert FIX in done.stdout
