# SPDX-License-Identifier: Apache-2.0
"""The arrows between the distributions: loader -> core <- plugins -> formats."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weight_readers._catalogue import KNOWN_READERS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CORE = "weight_readers"
FILES = "weight_readers_files"
SAFETENSORS = {FILES, "weight_readers_safetensors"}
# What a distribution of this repo may import of the others.
ALLOWED = {
    "core": set(),
    "formats/files": {CORE},
    "formats/safetensors": {CORE, FILES},
    "plugins/mmap": {CORE, *SAFETENSORS},
    "plugins/threaded": {CORE, *SAFETENSORS},
    "plugins/runai": {CORE, *SAFETENSORS},
    "plugins/gguf": {CORE, FILES},
    "plugins/pt": {CORE, FILES},
    "loader": {CORE},
    "testkit": {CORE},
}
# Import names that differ from the name on the index, and backends whose absence is the plugin's own business.
DISTRIBUTION_OF = {"importlib_metadata": "importlib-metadata"}
IMPORTED_LATE = {
    ("formats/files", "torch"),
    ("formats/safetensors", "torch"),
    ("loader", "huggingface_hub"),
    ("loader", "matplotlib"),
    ("plugins/gguf", "llvmlite"),
    ("plugins/gguf", "numba"),
    ("plugins/gguf", "triton"),
    ("plugins/runai", "awscrt"),
    ("plugins/runai", "boto3"),
    ("plugins/runai", "botocore"),
    ("plugins/runai", "google"),
}


def source_files(distribution: str) -> list[Path]:
    return sorted((ROOT / distribution / "src").rglob("*.py"))


def imported(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Top-level package names that a module imports, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    if top_level_only:
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda))
        skipped |= {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def foreign(distribution: str, **options: bool) -> set[str]:
    own = next((ROOT / distribution / "src").iterdir()).name
    names = {name for path in source_files(distribution) for name in imported(path, **options)}
    return names - set(sys.stdlib_module_names) - {own, "__future__"}


def project(distribution: str) -> dict[str, object]:
    return tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]


def test_every_distribution_of_the_repo_is_held_to_its_arrows() -> None:
    found = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/pyproject.toml")}
    found |= {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/*/pyproject.toml")}
    assert set(ALLOWED) == {path for path in found if not path.startswith((".", "build", "examples"))}


@pytest.mark.parametrize("distribution", ALLOWED)
def test_siblings_are_imported_along_the_arrows_only(distribution: str) -> None:
    siblings = {name for name in foreign(distribution) if name.startswith("weight_readers")}
    assert siblings <= ALLOWED[distribution]


def test_core_imports_nothing_but_the_standard_library_pluggy_and_importlib_metadata() -> None:
    assert {"importlib_metadata", "pluggy"} == foreign("core")


def test_the_format_package_imports_no_backend_when_it_is_imported() -> None:
    assert {CORE, FILES} == foreign("formats/safetensors", top_level_only=True)


@pytest.mark.parametrize("module", sorted(ROOT.glob("plugins/*/src/*/plugin.py")), ids=lambda p: p.parent.name)
def test_a_hook_module_is_light(module: Path) -> None:
    names = set(imported(module, top_level_only=True)) - set(sys.stdlib_module_names)
    assert {CORE} == names - {"__future__"}


@pytest.mark.parametrize("distribution", ALLOWED)
def test_what_is_imported_is_declared_with_a_floor(distribution: str) -> None:
    declared = {
        re.split(r"[<>=!~\[; ]", requirement)[0]: requirement
        for requirement in project(distribution).get("dependencies", [])  # type: ignore[attr-defined]
    }
    used = {n for n in foreign(distribution) if (distribution, n) not in IMPORTED_LATE}
    names = {DISTRIBUTION_OF.get(name, name.replace("_", "-")) for name in used}
    assert names <= set(declared)
    assert all(">=" in requirement for requirement in declared.values())


def test_versions_move_in_lockstep_and_extras_pin_siblings_exactly() -> None:
    versions = {project(d)["name"]: project(d)["version"] for d in ALLOWED}
    assert len(set(versions.values())) == 1
    extras = project("core")["optional-dependencies"]
    pins = {pin for pinned in extras.values() for pin in pinned}  # type: ignore[attr-defined]
    assert pins <= {f"{name}=={version}" for name, version in versions.items()}


def test_core_knows_which_distribution_has_each_reader_of_ours() -> None:
    registered = {
        name: project(d)["name"]
        for d in ALLOWED
        for name in project(d).get("entry-points", {}).get("weight_readers", {})  # type: ignore[attr-defined]
    }
    assert registered == {name: known.distribution for name, known in KNOWN_READERS.items()}


def test_every_module_begins_with_its_licence() -> None:
    ours = [p for d in ALLOWED for p in source_files(d)] + sorted((ROOT / "tests").rglob("*.py"))
    ours += sorted((ROOT / "examples").rglob("*.py")) + sorted((ROOT / "tools").rglob("*.py"))
    without = [p for p in ours if not p.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")]
    assert without == []
