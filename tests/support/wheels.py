# SPDX-License-Identifier: Apache-2.0
"""Wheels: ours, built once as ``make wheels`` does, and those of third parties, written with zipfile."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def our_distributions() -> list[Path]:
    """The folder of each distribution of the workspace, by the one list in the Makefile; core is the first."""
    return [ROOT / name for name in _of_makefile("DISTRIBUTIONS")]


def our_extras() -> list[str]:
    """What the wheelhouse has for the extras of single distributions."""
    return _of_makefile("EXTRAS")


def _of_makefile(variable: str) -> list[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{variable} := (.+)$", text, re.MULTILINE)
    return line.split()


def build_wheelhouse(folder: Path) -> Path:
    """Build our wheels and gather all that they depend on, from an index or pip's cache; installs need neither."""
    core, *others = our_distributions()
    # pip before 23.3 resolves the extras of the first requirement only, so core[all] leads.
    # The build backend is the one of this environment (requirements-dev.txt): no index is asked for it.
    options = ["--no-build-isolation", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder)]
    for wanted in ([f"{core}[all]", *map(str, others)], ["--find-links", str(folder), *our_extras()]):
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=1200)
        if done.returncode:
            raise RuntimeError(f"the wheelhouse could not be built:\n{done.stderr}")
    return folder


def download(requirement: str, folder: Path) -> Path:
    """The wheel of somebody else's release. The test is skipped where no index that has it for here can be reached."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=1200)
    if "(from versions: none)" in done.stderr:
        pytest.skip(f"no index that has a wheel of {requirement} for this platform can be reached")
    if done.returncode:
        raise RuntimeError(f"{requirement} could not be downloaded:\n{done.stderr}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_wheel(
    folder: Path,
    name: str,
    *,
    entry_points: Mapping[str, str] | str = "",
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> Path:
    """Write a wheel of one distribution: ``entry_points`` of our group (or as text), ``modules`` by file name."""
    escaped = name.replace("-", "_")
    info = f"{escaped}-{version}.dist-info"
    text = entry_points if isinstance(entry_points, str) else _group(entry_points)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        **(modules or {}),
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": text,
    }
    record = "".join(f"{path},{_digest(content)},{len(content.encode())}\n" for path, content in files.items())
    wheel = folder / f"{escaped}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(path, content)
    return wheel


def _group(entry_points: Mapping[str, str]) -> str:
    return "[weight_readers]\n" + "".join(f"{name} = {value}\n" for name, value in entry_points.items())


def _digest(content: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
