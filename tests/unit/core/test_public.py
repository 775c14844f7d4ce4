# SPDX-License-Identifier: Apache-2.0
"""The public surface: what is exported, and what importing it costs."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugins import Site

import weight_readers
from weight_readers import Registry, errors

FUNCTIONS = {
    "available_quant_methods",
    "available_reader_names",
    "default_registry",
    "describe_reader",
    "explain_selection",
    "file_formats",
    "refresh",
    "registry_report",
    "select_quant_method",
    "select_weight_reader",
}
SCHEMA = {
    "API_VERSION",
    "Accepted",
    "Alignment",
    "Candidate",
    "CheckpointMeta",
    "Declined",
    "DigestsFiles",
    "Environment",
    "Feature",
    "FetchesRanges",
    "FileFormat",
    "FileMeta",
    "FormatTable",
    "FileVersion",
    "Lifetime",
    "ListsFiles",
    "Order",
    "QuantMethodInfo",
    "ReadStats",
    "ReaderInfo",
    "ReadsInto",
    "Registry",
    "Rejected",
    "Request",
    "Requirement",
    "Selection",
    "Signature",
    "StoredDigest",
    "StoredFile",
    "TensorMeta",
    "TensorPart",
    "TensorSlice",
    "WeightReader",
    "Writes",
    "hookimpl",
}
ERRORS = {
    name
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BaseException) and kind.__module__.startswith("weight_readers.")
}


def test_all_is_sorted_and_is_what_is_documented() -> None:
    exported = weight_readers.__all__
    assert exported == sorted(exported)
    assert set(exported) == FUNCTIONS | SCHEMA | ERRORS


def test_every_exported_name_is_there() -> None:
    assert [name for name in weight_readers.__all__ if not hasattr(weight_readers, name)] == []


def test_every_public_module_is_typed_and_documented() -> None:
    for name in weight_readers.__all__:
        exported = getattr(weight_readers, name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            assert exported.__doc__, name


@pytest.mark.parametrize("name", sorted(FUNCTIONS - {"default_registry"}))
def test_every_public_function_is_documented_and_annotated(name: str) -> None:
    function = getattr(weight_readers, name)
    assert len(inspect.getdoc(function) or "") > 40
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


@pytest.fixture
def _fresh_default() -> Iterator[None]:
    weight_readers.refresh()
    yield
    weight_readers.refresh()


@pytest.mark.usefixtures("_fresh_default")
def test_the_functions_answer_for_everything_that_is_installed(site: Site) -> None:
    site.plugin("acme")
    weight_readers.refresh()
    assert "acme" in weight_readers.available_reader_names()
    assert weight_readers.describe_reader("acme").name == "acme"
    assert weight_readers.explain_selection(requested="acme").chosen == "acme"
    assert weight_readers.select_weight_reader(requested="acme").info.name == "acme"
    assert "acme" in weight_readers.registry_report()["readers"]
    assert isinstance(weight_readers.available_quant_methods(), list)
    with pytest.raises(LookupError):
        weight_readers.select_quant_method("Q9_Z", "cpu")


def test_there_is_one_default_registry() -> None:
    assert isinstance(weight_readers.default_registry(), Registry)
    assert weight_readers.default_registry() is weight_readers.default_registry()


ALLOWED = {
    "weight_readers",
    "pluggy",
    "importlib_metadata",
    *("zipp", "lazy_importer"),  # what importlib_metadata depends on
}
# The standard library's copy asks for Jython's org.python.core, and platform of Python 3.12 for _wmi of Windows.
NOT_THERE = {"__main__", "org", "_wmi"}
HEAVY = ("torch", "numpy", "safetensors", "runai_model_streamer", "gguf", "transformers", "rich", "click")


def timed_imports(script: str) -> tuple[set[str], str]:
    """The packages that ``-X importtime`` saw while a child ran ``script``, and what the child printed."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True, check=True, timeout=600
    )
    lines = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.partition(".")[0] for line in lines}, done.stdout


def test_importing_and_listing_loads_no_backend() -> None:
    """Only the standard library, pluggy, importlib_metadata, and the hook modules of installed plugins."""
    at_start, _ = timed_imports("")
    timed, printed = timed_imports(
        "import weight_readers; weight_readers.available_reader_names(); import sys; print(*sys.modules)"
    )
    loaded = {name.partition(".")[0] for name in printed.split()}
    assert "weight_readers" in timed & loaded
    for names in (timed - at_start, loaded - at_start):
        assert names.isdisjoint(HEAVY)
        hook_modules = {name for name in names if name.startswith("weight_readers_")}
        assert names - set(sys.stdlib_module_names) - hook_modules - NOT_THERE <= ALLOWED


def test_importing_scans_nothing(site: Site) -> None:
    site.plugin("acme", "print('imported')")
    script = "import weight_readers; print(weight_readers.default_registry()._inventory)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        timeout=600,
    )
    assert done.stdout == "None\n"


def test_core_never_imports_a_backend_by_name() -> None:
    """``torch`` appears under TYPE_CHECKING only, and so does nothing else."""
    package = os.path.dirname(weight_readers.__file__)
    for name in sorted(os.listdir(package)):
        if name.endswith(".py"):
            with open(os.path.join(package, name), encoding="utf-8") as file:
                imported = re.findall(r"^(?:from|import) (\w+)", file.read(), re.MULTILINE)
            assert set(imported) - set(sys.stdlib_module_names) <= ALLOWED, name


def test_the_example_of_the_readme_runs_and_prints_what_it_shows() -> None:
    readme = Path(__file__).parents[3] / "core" / "README.md"
    failed, tried = doctest.testfile(str(readme), module_relative=False)
    assert (failed, tried > 3) == (0, True)
