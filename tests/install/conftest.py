# SPDX-License-Identifier: Apache-2.0
"""One wheelhouse and one environment with torch for the whole session; bare environments are cheap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.venvs import Venv
from support.wheels import build_wheelhouse


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheels and all that they depend on, from an index or pip's cache."""
    return build_wheelhouse(tmp_path_factory.mktemp("wheelhouse"))


@pytest.fixture(scope="session")
def shared_core(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """Core alone. Tests that install something into it use ``core``."""
    venv = Venv.create(tmp_path_factory.mktemp("core") / "venv", wheelhouse)
    venv.install("weight-readers")
    return venv


@pytest.fixture
def core(shared_core: Venv) -> Iterator[Venv]:
    """Core alone, and what a test puts into its site-packages is gone afterwards."""
    before = {path.name for path in shared_core.site_packages.iterdir()}
    yield shared_core
    for path in shared_core.site_packages.iterdir():
        if path.name not in before:
            _remove(path)


@pytest.fixture(scope="session")
def mmap(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """``weight-readers[mmap]``, torch included: the one environment that is big."""
    venv = Venv.create(tmp_path_factory.mktemp("mmap") / "venv", wheelhouse)
    venv.install("weight-readers[mmap]")
    return venv


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()
