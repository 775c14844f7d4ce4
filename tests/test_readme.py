# SPDX-License-Identifier: Apache-2.0
"""The README's examples are run, and their output is compared with what the README shows."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.blocks import blocks, normalised

ROOT = Path(__file__).parents[1]
READMES = [
    "README.md",
    "core/README.md",
    "formats/files/README.md",
    "formats/safetensors/README.md",
    "plugins/mmap/README.md",
    "plugins/threaded/README.md",
    "plugins/runai/README.md",
    "plugins/gguf/README.md",
    "plugins/pt/README.md",
    "loader/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/engines/*.md")),
]


def examples() -> list[tuple[str, str, str]]:
    """Each Python block that is followed by a block of output."""
    found = []
    for readme in READMES:
        for (kind, code), (next_kind, output) in pairwise(blocks(ROOT / readme)):
            if (kind, next_kind) == ("python", "text"):
                found.append((readme, code, output))
    return found


@pytest.mark.parametrize(("readme", "code", "output"), examples(), ids=[e[0] for e in examples()])
def test_a_python_example_prints_what_is_shown(readme: str, code: str, output: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples" / "engines" / "src")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert normalised(output) == normalised(done.stdout)


def test_every_readme_has_an_example() -> None:
    # Core's is a doctest, which the tests of core run.
    assert set(READMES) == {readme for readme, _, _ in examples()} | {"core/README.md"}


def test_make_demo_prints_what_is_shown() -> None:
    console = next(
        text for kind, text in blocks(ROOT / "README.md") if kind == "console" and text.startswith("$ make demo\n")
    )
    shown = console.removeprefix("$ make demo\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert normalised(shown) == normalised(done.stdout)
