# SPDX-License-Identifier: Apache-2.0
"""Our own distributions: what each extra brings, and that all tables about that agree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from support.files import floats, write_tensors
from support.plugins import PLUGIN
from support.venvs import Venv
from support.wheels import our_distributions, write_wheel

import weight_readers
from weight_readers._catalogue import KNOWN_READERS, extras_of, normalized

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS: dict[str, dict[str, Any]] = {}
for folder in our_distributions():
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    PROJECTS[project["name"]] = project
CORE = PROJECTS["weight-readers"]
PLUGINS = {
    name: p["entry-points"]["weight_readers"]
    for name, p in PROJECTS.items()
    if "weight_readers" in p.get("entry-points", {})
}

FALLBACK = PLUGIN.format(name="acme").replace("lifetime=", "fallback=True, lifetime=")
"""A third party's fallback for safetensors files."""


# --- tables ------------------------------------------------------------------------------------------------------


def test_every_extra_of_the_built_core_names_distributions_of_this_repository_at_the_same_version(
    wheelhouse: Path,
) -> None:
    (wheel,) = wheelhouse.glob("weight_readers-[0-9]*.whl")
    with ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(path).decode().splitlines()
    provided = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")}
    required = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    extras = extras_of(required)
    assert provided == set(extras)
    for name in {name for names in extras.values() for name in names}:
        pins = [line.partition(";")[0].strip() for line in required if line.startswith(f"{name}=")]
        assert set(pins) == {f"{name}=={CORE['version']}"}
        assert PROJECTS[name]["version"] == CORE["version"]


def test_versions_move_in_lockstep() -> None:
    assert {project["version"] for project in PROJECTS.values()} == {CORE["version"]}


def test_the_extra_all_brings_every_plugin_and_the_loader_and_no_test_tools() -> None:
    pinned = {line.partition("=")[0] for line in CORE["optional-dependencies"]["all"]}
    assert pinned == {*PLUGINS, "weight-readers-loader"}


@pytest.mark.parametrize("distribution", PLUGINS)
def test_the_table_of_readers_agrees_with_the_plugins_own_entry_points(distribution: str) -> None:
    for reader in PLUGINS[distribution]:
        extra = KNOWN_READERS[reader].extra
        brought = {line.partition("=")[0] for line in CORE["optional-dependencies"][extra]}
        assert distribution in brought


def test_every_extra_that_brings_a_reader_is_in_the_table() -> None:
    bringing = {
        extra
        for extra, lines in CORE["optional-dependencies"].items()
        if extra not in ("all", "loader", "testkit") and {normalized(x.partition("=")[0]) for x in lines} & set(PLUGINS)
    }
    tabled = {known.extra for known in KNOWN_READERS.values()}
    assert bringing == tabled & set(CORE["optional-dependencies"])


@pytest.mark.parametrize("reader", [reader for readers in PLUGINS.values() for reader in readers])
def test_the_table_of_readers_agrees_with_what_the_reader_declares(reader: str) -> None:
    info = weight_readers.describe_reader(reader)
    schemes = info.schemes | set(info.more_schemes)
    assert (info.formats, schemes) == (KNOWN_READERS[reader].formats, KNOWN_READERS[reader].schemes)


@pytest.mark.parametrize(
    ("reader", "scheme", "requirement"),
    [(reader, *store) for reader, known in KNOWN_READERS.items() for store in known.stores.items()],
)
def test_what_the_table_names_for_a_store_is_an_extra_of_the_plugin_that_brings_more_than_the_plugin(
    reader: str, scheme: str, requirement: str
) -> None:
    (distribution,) = (name for name, readers in PLUGINS.items() if reader in readers)
    name, _, extra = requirement.removesuffix("]").partition("[")
    assert name == distribution
    assert PROJECTS[distribution]["optional-dependencies"][extra]


def test_only_the_loader_has_a_console_script() -> None:
    assert [name for name, project in PROJECTS.items() if "scripts" in project] == ["weight-readers-loader"]


def test_a_plugin_takes_a_range_of_core_that_holds_this_version() -> None:
    for name, project in PROJECTS.items():
        cores = [line for line in project["dependencies"] if line.startswith("weight-readers>")]
        assert cores == ([] if name == "weight-readers" else ["weight-readers>=0.1,<0.2"]), name


# --- core alone --------------------------------------------------------------------------------------------------


def test_core_alone_has_no_reader_and_says_what_to_install(shared_core: Venv) -> None:
    assert shared_core.names() == []
    for call in ("weight_readers.select_weight_reader()", "weight_readers.select_weight_reader(format='safetensors')"):
        kind, said, fix = shared_core.run(f"refused(lambda: {call})").json
        assert kind == "NoSuitableReaderError"
        assert fix == 'Install it: pip install "weight-readers[mmap]"'
        assert said.startswith("no weight reader is installed")


def test_core_alone_is_core_and_its_three_small_dependencies(shared_core: Venv) -> None:
    installed = {path.name.partition("-")[0] for path in shared_core.site_packages.glob("*.dist-info")}
    assert installed <= {"weight_readers", "pluggy", "importlib_metadata", "zipp", "lazy_importer"}


def test_core_alone_has_no_command(shared_core: Venv) -> None:
    assert not (shared_core.folder / "bin" / "weight-readers").exists()


def test_core_alone_reports_what_each_extra_lacks(shared_core: Venv) -> None:
    missing = shared_core.report()["missing_extras"]
    assert set(missing) == set(CORE["optional-dependencies"])
    assert missing["mmap"] == {
        "distributions": ["weight-readers-mmap"],
        "install": 'pip install "weight-readers[mmap]"',
    }


# --- one of ours is asked for and absent ---------------------------------------------------------------------------


def test_one_of_ours_that_is_absent_falls_back_with_a_warning_where_a_fallback_is(core: Venv, tmp_path: Path) -> None:
    core.install(write_wheel(tmp_path, "acme", entry_points={"acme": "acme_p"}, modules={"acme_p.py": FALLBACK}))
    done = core.run("say(weight_readers.select_weight_reader(requested='safetensors').selection.to_json())")
    selection = done.json
    assert (selection["chosen"], selection["fallback"]) == ("acme", True)
    assert "ReaderFallbackWarning: weight reader 'acme' is used in place of 'safetensors'" in done.stderr
    assert 'its plugin is not installed. Install it: pip install "weight-readers[mmap]"' in done.stderr


@pytest.mark.parametrize(
    ("argument", "environ"), [(", strict=True", {}), ("", {"WEIGHT_READERS_STRICT": "1"})], ids=["argument", "variable"]
)
def test_one_of_ours_that_is_absent_is_an_error_under_strict(
    core: Venv, tmp_path: Path, argument: str, environ: dict[str, str]
) -> None:
    core.install(write_wheel(tmp_path, "acme", entry_points={"acme": "acme_p"}, modules={"acme_p.py": FALLBACK}))
    call = f"weight_readers.select_weight_reader(requested='safetensors'{argument})"
    kind, said, fix = core.run(f"refused(lambda: {call})", **environ).json
    assert kind == "ReaderUnavailableError"
    assert "reader 'safetensors' cannot be used here: its plugin is not installed" in said
    assert fix == 'Install it: pip install "weight-readers[mmap]"'


# --- the extra -----------------------------------------------------------------------------------------------------


def test_the_extra_mmap_brings_the_reader_safetensors_with_a_backend_that_is_not_imported(mmap: Venv) -> None:
    names, imported = mmap.run(
        "import sys; say([weight_readers.available_reader_names(), sorted({'torch', 'numpy'} & set(sys.modules))])"
    ).json
    assert names == ["safetensors"]
    assert imported == []


def test_a_real_file_is_read_through_the_selected_reader(mmap: Venv, tmp_path: Path) -> None:
    path = write_tensors(
        tmp_path / "m.safetensors", {"w": ("F32", [2], floats(1.5, -2.0)), "b": ("I32", [], b"\7\0\0\0")}
    )
    read = f"""
        reader = weight_readers.select_weight_reader(format="safetensors", schemes=["file"], needs_key_filter=True)
        read = {{name: tensor.tolist() for name, tensor in reader.iter_weights([{str(path)!r}])}}
        some = [name for name, _ in reader.iter_weights([{str(path)!r}], key_filter=lambda name: name == "b")]
        say([reader.selection.chosen, read, some])
    """
    assert mmap.run(read).json == ["safetensors", {"w": [1.5, -2.0], "b": 7}, ["b"]]


def test_an_uninstalled_plugin_is_gone(mmap: Venv) -> None:
    mmap.uninstall("weight-readers-mmap")
    try:
        assert mmap.names() == []
    finally:
        mmap.install("weight-readers[mmap]")
    assert mmap.names() == ["safetensors"]


def test_the_extra_threaded_brings_its_reader_and_without_it_the_fallback_says_how_to_get_it(mmap: Venv) -> None:
    mmap.install("weight-readers[threaded]")
    try:
        assert mmap.names() == ["safetensors", "threaded"]
    finally:
        mmap.uninstall("weight-readers-threaded")
    done = mmap.run("say(weight_readers.select_weight_reader(requested='threaded').selection.to_json())")
    assert (done.json["chosen"], done.json["fallback"]) == ("safetensors", True)
    assert 'its plugin is not installed. Install it: pip install "weight-readers[threaded]"' in done.stderr


def test_the_extra_threaded_brings_the_fallback_along() -> None:
    brought = {line.partition("=")[0] for line in CORE["optional-dependencies"]["threaded"]}
    assert brought == {"weight-readers-mmap", "weight-readers-threaded"}
