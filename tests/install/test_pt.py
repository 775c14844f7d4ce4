# SPDX-License-Identifier: Apache-2.0
"""The extra ``pt`` in a real environment: what it brings, what it needs, and what its absence says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.venvs import Venv
from unit.pt.torch_files import floats, one_tensor, zipped

INSTALL = 'pip install "weight-readers[pt]"'


@pytest.fixture
def pt(mmap: Venv) -> Iterator[Venv]:
    mmap.install("weight-readers[pt]")
    yield mmap
    mmap.uninstall("weight-readers-pt")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return zipped(tmp_path / "x.bin", one_tensor(), **{"0": floats(1, 2, 3, 4)})


def test_the_extra_brings_the_reader_without_importing_torch(pt: Venv) -> None:
    names, imported = pt.run("""
        import sys
        say([weight_readers.available_reader_names(), "torch" in sys.modules])
    """).json
    assert (names, imported) == (["pt", "safetensors"], False)


def test_a_file_is_read_with_nothing_else_installed(pt: Venv, file: Path) -> None:
    read = f"""
        reader = weight_readers.select_weight_reader(format="pt")
        say([[name, t.tolist()] for name, t in reader.iter_weights([{str(file)!r}])])
    """
    assert pt.run(read).json == [["w", [1, 2, 3, 4]]]


def test_without_it_the_error_says_what_to_install(mmap: Venv) -> None:
    _, said, fix = mmap.run("refused(lambda: weight_readers.select_weight_reader(format='pt'))").json
    assert INSTALL in said, fix
