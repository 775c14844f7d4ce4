# SPDX-License-Identifier: Apache-2.0
"""Bare virtual environments that are filled from a wheelhouse, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

RUN_SECONDS = 300
"""Ends a child that hangs."""


@dataclass(frozen=True)
class Outcome:
    """What a Python of the environment printed (as JSON where it is), warned and raised."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        assert self.returncode == 0, self.stderr
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Venv:
    """An environment without pip; the outer pip installs into it, from ``wheelhouse`` only."""

    folder: Path
    wheelhouse: Path

    @classmethod
    def create(cls, folder: Path, wheelhouse: Path, base: str | Path = sys.executable) -> Venv:
        subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=1200)
        return cls(folder, wheelhouse)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *requirements: str | Path) -> None:
        self._pip(
            "install", "--no-compile", "--no-index", "--find-links", str(self.wheelhouse), *map(str, requirements)
        )

    def uninstall(self, *names: str) -> None:
        self._pip("uninstall", "--yes", *names)

    def run(self, source: str, *options: str, **environ: str) -> Outcome:
        """Run ``source`` with the environment's Python and nothing of the outer environment's settings."""
        command = [str(self.python), "-W", "always", *options, "-c", _PRELUDE + dedent(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_SECONDS, env={**clean_environ(), **environ}
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def names(self, **environ: str) -> list[str]:
        """What ``available_reader_names()`` answers in a fresh process."""
        names: list[str] = self.run("say(weight_readers.available_reader_names())", **environ).json
        return names

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = self.run("say(weight_readers.registry_report())").json
        return report

    def _pip(self, *arguments: str) -> None:
        # The machine's own pip settings could add an index; --isolated and no configuration file keep it offline.
        environ = {**clean_environ(), "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        command = [sys.executable, "-m", "pip", "--isolated", "--python", str(self.python), "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=1200)
        if done.returncode:
            raise RuntimeError(f"pip {' '.join(arguments)}:\n{done.stdout}{done.stderr}")


_PRELUDE = """
import json, weight_readers
def say(value):
    print(json.dumps(value))
def refused(call):
    try:
        call()
    except Exception as error:
        say([type(error).__name__, str(error), getattr(error, "fix", None)])
    else:
        raise SystemExit("nothing was raised")
"""


def clean_environ() -> Mapping[str, str]:
    dropped = ("PIP_", "PYTHON", "WEIGHT_READERS_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
