# SPDX-License-Identifier: Apache-2.0
"""The extra ``gguf`` in a real environment: what it brings, and what its absence says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.venvs import Venv
from unit.gguf.gguf_bytes import write_gguf

Q8_0 = 8
INSTALL = 'pip install "weight-readers[gguf]"'


@pytest.fixture
def gguf(mmap: Venv) -> Iterator[Venv]:
    mmap.install("weight-readers[gguf]")
    yield mmap
    mmap.uninstall("weight-readers-gguf")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One row of 32 times one half: the scale is 0.5 in half precision, each code 1."""
    block = b"\x00\x38" + bytes([1] * 32)
    return write_gguf(tmp_path / "x.gguf", {"a.weight": (Q8_0, (1, 32), block)})


def test_the_extra_brings_the_reader_and_its_quant_methods_without_importing_a_backend(gguf: Venv) -> None:
    assert gguf.names() == ["gguf", "safetensors"]
    methods, imported = gguf.run("""
        import sys
        methods = [[m.name, sorted(m.device_types)] for m in weight_readers.available_quant_methods()]
        say([methods, sorted({"torch", "numpy", "gguf"} & set(sys.modules))])
    """).json
    assert methods == [["gguf", ["cpu"]], ["gguf", ["cuda"]]]
    assert imported == []


def test_a_file_is_read_packed_and_as_numbers_without_numba_or_triton(gguf: Venv, file: Path) -> None:
    read = f"""
        import importlib.util
        assert not importlib.util.find_spec("numba") and not importlib.util.find_spec("triton")
        packed = weight_readers.select_weight_reader(format="gguf")
        numbers = weight_readers.select_weight_reader(format="gguf", options={{"dequantize": "float32"}})
        say([[t.tolist() for _, t in r.iter_weights([{str(file)!r}])] for r in (packed, numbers)])
    """
    assert gguf.run(read).json == [[[[0, 0x38, *[1] * 32]]], [[[0.5] * 32]]]


def test_an_uninstalled_plugin_takes_its_quant_methods_along_and_leaves_the_command_that_mends_it(
    gguf: Venv, file: Path
) -> None:
    gguf.install("weight-readers[loader]")
    gguf.uninstall("weight-readers-gguf")
    try:
        names, methods = gguf.run(
            "say([weight_readers.available_reader_names(), len(weight_readers.available_quant_methods())])"
        ).json
        assert (names, methods) == (["safetensors"], 0)
        for call in (
            "weight_readers.select_weight_reader(requested='gguf', format='gguf')",
            "weight_readers.select_weight_reader(format='gguf')",
            "weight_readers.select_quant_method('Q4_K', 'cuda')",
        ):
            error, said, fix = gguf.run(f"refused(lambda: {call})").json
            assert INSTALL in said, (error, said, fix)
        command = [str(gguf.folder / "bin" / "weight-readers"), "explain", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert INSTALL in done.stderr
    finally:
        gguf.install("weight-readers[gguf]")
        gguf.uninstall("weight-readers-loader")
