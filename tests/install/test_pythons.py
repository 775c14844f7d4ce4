# SPDX-License-Identifier: Apache-2.0
"""Our wheels in a bare environment of each Python that they support: the unit tests of core without a deprecation
warning, every module compiled and every reader declared without any.

torch is left out, which is 4.6 GB for each with what it needs: ``make pythons`` is the check with everything
(`every_python.py`). The Python that runs this suite is left out too: it runs the same tests, and every warning is an
error there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from support.pythons import OTHERS, SUPPORTED, interpreter
from support.venvs import clean_environ

ROOT = Path(__file__).parents[2]
SECONDS = 900
"""Ends a child that hangs."""
DECLARED = """
import compileall, json, pathlib, weight_readers
packages = pathlib.Path(weight_readers.__file__).parents[1].glob("weight_readers*")
compiled = [compileall.compile_dir(package, quiet=1) for package in packages if package.suffix != ".dist-info"]
report = weight_readers.registry_report()
print(json.dumps([len(compiled), all(compiled), sorted(report["readers"]), report["broken"]]))
"""


class Said(NamedTuple):
    """The last lines of pytest in an environment, what DECLARED printed there, or why there is neither."""

    tests: str = ""
    declared: str = ""
    skip: str = ""


def said_by(wheelhouse: Path, folder: Path, version: str) -> Said:
    base = interpreter(version)
    if base is None:
        return Said(skip=f"no Python {version} on this machine")
    subprocess.run([base, "-m", "venv", "--without-pip", folder / version], check=True, timeout=1200)
    python = folder / version / "bin" / "python"
    (core,) = wheelhouse.glob("weight_readers-[0-9]*.whl")
    missing = install(python, core, "pytest", "hypothesis")
    if "from versions: none" in missing:
        return Said(skip=f"no index that has pytest and hypothesis for Python {version} can be reached")
    assert missing == ""
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "few-examples"]
    tested = run(python, "error::DeprecationWarning", *tests, str(ROOT / "tests" / "unit" / "core"))
    assert install(python, "--no-deps", *wheelhouse.glob("weight_readers_*.whl")) == ""
    return Said(tested, run(python, "error", "-c", DECLARED))


def install(python: Path, *wanted: str | Path) -> str:
    """What pip had to say against it."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=1200)
    return done.stderr if done.returncode else ""


def run(python: Path, warnings: str, *arguments: str) -> str:
    """The end of what it printed."""
    environment = {**clean_environ(), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-W", warnings, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS)
    return done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def outcomes(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Said]:
    """All at once: each is a process that needs one CPU."""
    run = partial(said_by, wheelhouse, tmp_path_factory.mktemp("pythons"))
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(OTHERS, pool.map(run, OTHERS), strict=True))


@pytest.fixture(params=OTHERS)
def said(request: pytest.FixtureRequest, outcomes: Mapping[str, Said]) -> Said:
    found = outcomes[request.param]
    if found.skip:
        pytest.skip(found.skip)
    return found


def test_the_unit_tests_of_core_pass_without_a_deprecation_warning(said: Said) -> None:
    assert re.search(r"^\d{3,} passed in ", said.tests, re.MULTILINE), said.tests


def test_every_module_compiles_and_every_reader_is_declared_without_a_warning(said: Said, wheelhouse: Path) -> None:
    wheels = len([*wheelhouse.glob("weight_readers*.whl")])
    readers = ["gguf", "pt", "runai_streamer", "safetensors", "threaded"]
    assert json.loads(said.declared) == [wheels, True, readers, {}]


def test_every_distribution_says_that_it_runs_on_the_oldest_of_these() -> None:
    projects = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("[fp]*/*/pyproject.toml")]
    assert len(projects) > 5
    wanted = f'requires-python = ">={SUPPORTED[0]}"'
    assert [str(path) for path in projects if wanted not in path.read_text(encoding="utf-8")] == []
