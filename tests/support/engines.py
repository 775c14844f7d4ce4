# SPDX-License-Identifier: Apache-2.0
"""Engines that ``make engines`` has brought, each run in a process of its own: they change whatever they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "build" / "engines"
RUN_SECONDS = 300
"""Ends a child that hangs; importing an engine alone takes half a minute on two busy cores."""


def run_with(package: str, script: str, *arguments: object) -> str:
    """The last line that ``script`` prints with ``package`` of ENGINES. Skips the test where it is not there."""
    if not (ENGINES / package).is_dir():
        pytest.skip(f"{package} is not installed below {ENGINES.name}/: make engines")
    environ = {
        **os.environ,
        # The entry point is that of the installed package, its code that of today.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "examples" / "engines" / "src"), str(ENGINES)]),
        # vLLM's wheel is for CUDA; its models and loaders run without it.
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_PLUGINS": "weight_readers",
    }
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
