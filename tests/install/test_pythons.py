# SPDX-License-Identifier: Apache-2.0
"""Core's wheel in a bare environment of each Python that it supports: its unit tests, without a deprecation warning.

The Python that runs this suite is left out: it runs the same tests, and every warning is an error there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support.venvs import clean_environ

ROOT = Path(__file__).parents[2]
SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
OTHERS = [version for version in SUPPORTED if version != "{}.{}".format(*sys.version_info)]
SECONDS = 900
"""Ends a child that hangs."""


def interpreter(version: str) -> Path | None:
    """One that can make environments: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    asked = "import sys, venv; print('{}.{}'.format(*sys.version_info))"
    for python in filter(None, found):
        # A shim of pyenv's is on the path for versions that are not chosen here, and fails.
        said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return Path(python)
    return None


def outcome_of(wheel: Path, folder: Path, version: str) -> str:
    """The last lines that pytest printed, or why there are none."""
    base = interpreter(version)
    if base is None:
        return f"skip: no Python {version} on this machine"
    subprocess.run([base, "-m", "venv", "--without-pip", folder / version], check=True)
    python = str(folder / version / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    installed = subprocess.run([*pip, wheel, "pytest", "hypothesis"], capture_output=True, text=True, check=False)
    if "from versions: none" in installed.stderr:
        return f"skip: no index that has pytest and hypothesis for Python {version} can be reached"
    assert installed.returncode == 0, installed.stderr
    command = [python, "-W", "error::DeprecationWarning", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "few-examples", str(ROOT / "tests" / "unit" / "core")]
    environment = {**clean_environ(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=SECONDS)
    return done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def outcomes(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """All at once: each is a process that needs one CPU."""
    (wheel,) = wheelhouse.glob("weight_readers-[0-9]*.whl")
    run = partial(outcome_of, wheel, tmp_path_factory.mktemp("pythons"))
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(OTHERS, pool.map(run, OTHERS), strict=True))


@pytest.mark.parametrize("version", OTHERS)
def test_the_unit_tests_of_core_pass_without_a_deprecation_warning(version: str, outcomes: Mapping[str, str]) -> None:
    said = outcomes[version]
    if said.startswith("skip: "):
        pytest.skip(said.removeprefix("skip: "))
    assert re.search(r"^\d{3,} passed in ", said, re.MULTILINE), said


def test_every_distribution_says_that_it_runs_on_the_oldest_of_these() -> None:
    projects = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("[fp]*/*/pyproject.toml")]
    assert len(projects) > 5
    wanted = f'requires-python = ">={SUPPORTED[0]}"'
    assert [str(path) for path in projects if wanted not in path.read_text(encoding="utf-8")] == []
