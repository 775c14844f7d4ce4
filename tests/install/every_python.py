# SPDX-License-Identifier: Apache-2.0
"""What ``make wheels`` gathered, installed as a whole into a bare environment of each Python, with nothing but the
wheelhouse to install from.

``make pythons`` runs this, for every Python that is here. The suite does not collect it: with the torch of an index an
environment has 5 GB, and each lasts only for its own tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.pythons import SUPPORTED, interpreter
from support.venvs import Venv, clean_environ
from support.wheels import our_extras

ROOT = Path(__file__).parents[2]
WHEELHOUSE = ROOT / "build" / "wheelhouse"
SECONDS = 900
"""Ends a child that hangs."""
WEIGHT = [[1.5, -2.0, 0.25], [8.0, 0.0, -0.5]]


@pytest.fixture(scope="module", params=SUPPORTED)
def venv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Venv]:
    """Core with all extras, those of single distributions and the testkit, and what tests need beside them."""
    base = interpreter(request.param)
    if base is None:
        pytest.skip(f"no Python {request.param} on this machine")
    made = Venv.create(tmp_path_factory.mktemp("every") / "venv", WHEELHOUSE, base)
    made.install("weight-readers[all]", "weight-readers-testkit", *our_extras(), "safetensors", "hatchling")
    yield made
    shutil.rmtree(made.folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tensor ``w`` in a file of each format, written by the library that the format is of."""
    folder = tmp_path_factory.mktemp("files")
    written = {"safetensors": folder / "w.safetensors", "gguf": folder / "w.gguf", "pt": folder / "w.pt"}
    save_file({"w": torch.tensor(WEIGHT)}, written["safetensors"])
    torch.save({"w": torch.tensor(WEIGHT)}, written["pt"])
    writer = gguf.GGUFWriter(written["gguf"], "llama")
    writer.add_tensor("w", np.array(WEIGHT, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def test_the_command_lists_all_five_readers_and_each_can_be_used(venv: Venv) -> None:
    command = [venv.folder / "bin" / "weight-readers", "list"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environ(), timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["gguf", "pt", "runai_streamer", "safetensors", "threaded"]


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        ("safetensors", "safetensors"),
        ("threaded", "safetensors"),
        ("runai_streamer", "safetensors"),
        ("gguf", "gguf"),
        ("pt", "pt"),
    ],
)
def test_a_reader_reads_what_the_library_of_the_format_wrote(
    venv: Venv, reader: str, kind: str, files: dict[str, Path]
) -> None:
    read = f"""
        from weight_readers_loader import open_checkpoint
        checkpoint = open_checkpoint({str(files[kind])!r}, reader={reader!r}, strict=True)
        say({{name: tensor.tolist() for name, tensor in checkpoint.iter_weights()}})
    """
    assert venv.run(read, "-W", "error::DeprecationWarning").json == {"w": WEIGHT}


def test_the_unit_tests_of_core_pass_without_a_deprecation_warning(venv: Venv) -> None:
    pip = [sys.executable, "-m", "pip", "--python", venv.python, "install", "--quiet", "--no-compile", "hypothesis"]
    subprocess.run(pip, check=True)
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "few-examples"]
    command = [venv.python, "-W", "error::DeprecationWarning", *tests, ROOT / "tests" / "unit" / "core"]
    environment = {**clean_environ(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS)
    assert re.search(r"^\d{3,} passed in ", done.stdout, re.MULTILINE), done.stdout[-4000:] + done.stderr[-4000:]
