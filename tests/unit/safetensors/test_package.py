# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import weight_readers_safetensors

README = Path(__file__).parents[3] / "formats" / "safetensors" / "README.md"


def test_the_public_names_are_sorted_and_exist() -> None:
    assert weight_readers_safetensors.__all__ == sorted(weight_readers_safetensors.__all__)
    assert all(hasattr(weight_readers_safetensors, name) for name in weight_readers_safetensors.__all__)


def test_importing_it_imports_neither_torch_nor_numpy_nor_safetensors() -> None:
    code = (
        "import sys, weight_readers_safetensors; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0


def test_the_example_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    blocks = README.read_text().split("```")
    code = next(block.removeprefix("python\n") for block in blocks if block.startswith("python\n"))
    output = next(block.removeprefix("text\n") for block in blocks if block.startswith("text\n"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stdout == output, done.stderr
