# SPDX-License-Identifier: Apache-2.0
"""Plugins of others beside ours: healthy ones appear and disappear, broken ones hurt only themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.plugins import PLUGIN
from support.venvs import Venv
from support.wheels import write_wheel

HEALTHY = PLUGIN.format(name="acme")


def wheel(folder: Path, distribution: str = "acme-reader", *, source: str = HEALTHY, reader: str = "acme") -> Path:
    """A third party's wheel with one reader in a module of its own."""
    module = f"{distribution.replace('-', '_')}_plugin"
    return write_wheel(folder, distribution, entry_points={reader: module}, modules={f"{module}.py": source})


def healthy_neighbour(folder: Path) -> Path:
    return wheel(folder, "neighbour-reader", source=PLUGIN.format(name="neighbour"), reader="neighbour")


def test_a_third_partys_reader_appears_is_used_and_disappears(core: Venv, tmp_path: Path) -> None:
    assert core.names() == []
    core.install(wheel(tmp_path))
    assert core.names() == ["acme"]
    listed = core.report()["readers"]["acme"]
    assert (listed["distribution"], listed["version"]) == ("acme-reader", "1.0")
    select = "say(weight_readers.select_weight_reader(format='safetensors').selection.reason)"
    assert core.run(select).json == "the only reader that fits"
    core.uninstall("acme-reader")
    assert core.names() == []


def test_an_install_into_a_running_process_is_seen_after_refresh(core: Venv, tmp_path: Path) -> None:
    path = wheel(tmp_path)
    source = f"""
        import sys, zipfile
        seen = [weight_readers.available_reader_names()]
        zipfile.ZipFile({str(path)!r}).extractall({str(core.site_packages)!r})
        seen.append(weight_readers.available_reader_names())
        weight_readers.refresh()
        seen.append(weight_readers.available_reader_names())
        say(seen)
    """
    assert core.run(source).json == [[], [], ["acme"]]


def test_two_distributions_of_one_name_are_an_error_on_use_and_the_neighbour_goes_on(
    core: Venv, tmp_path: Path
) -> None:
    core.install(wheel(tmp_path, "acme-one"), wheel(tmp_path, "acme-two"), healthy_neighbour(tmp_path))
    assert core.names() == ["neighbour"]
    kind, said, fix = core.run("refused(lambda: weight_readers.select_weight_reader(requested='acme'))").json
    assert kind == "DuplicateReaderError"
    assert "acme-one 1.0" in said
    assert "acme-two 1.0" in said
    assert fix == "Uninstall all but one of them: pip uninstall acme-two"
    core.uninstall("acme-two")
    assert core.names() == ["acme", "neighbour"]


BROKEN: Mapping[str, tuple[str, str, str]] = {
    "import_error": ("raise ImportError('libacme.so')", "PluginLoadError", "ImportError: libacme.so"),
    "value_error": ("raise ValueError('abi')", "PluginLoadError", "ValueError: abi"),
    "exit": ("raise SystemExit('no licence')", "PluginLoadError", "SystemExit: no licence"),
    "syntax_error": ("def oops(:", "PluginLoadError", "SyntaxError"),
    "missing_backend": ("import acme_backend", "PluginLoadError", "it imports 'acme_backend', which is not installed"),
    "misspelt_hook": (
        HEALTHY + "\n@hookimpl\ndef weight_readers_chek(request): ...\n",
        "PluginContractError",
        "unknown hook 'weight_readers_chek'",
    ),
    "newer_api": (
        HEALTHY.replace("lifetime=", "api_version=2, lifetime="),
        "PluginVersionError",
        "it was written for API version 2, and this core speaks 1",
    ),
}


def distribution(reader: str) -> str:
    return f"{reader.replace('_', '-')}-reader"


@pytest.fixture(scope="module")
def bad_neighbourhood(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """Core, one healthy third party, and every broken one beside it."""
    wheels = tmp_path_factory.mktemp("wheels")
    venv = Venv.create(tmp_path_factory.mktemp("bad") / "venv", wheelhouse)
    broken = [
        wheel(
            wheels, f"{reader.replace('_', '-')}-reader", source=source.replace("'acme'", repr(reader)), reader=reader
        )
        for reader, (source, _, _) in BROKEN.items()
    ]
    venv.install("weight-readers", healthy_neighbour(wheels), *broken)
    return venv


@pytest.mark.parametrize("reader", BROKEN)
def test_a_broken_plugin_is_listed_is_an_error_when_named_and_hurts_nobody_else(
    bad_neighbourhood: Venv, reader: str
) -> None:
    _, kind, cause = BROKEN[reader]
    names, chosen, broken, raised = bad_neighbourhood.run(
        f"""
        names = weight_readers.available_reader_names()
        chosen = weight_readers.select_weight_reader(format="safetensors").info.name
        broken = weight_readers.registry_report()["broken"]
        try:
            weight_readers.select_weight_reader(requested={reader!r}, strict=True)
        except ImportError as error:
            raised = [type(error).__name__, str(error)]
        say([names, chosen, broken, raised])
        """
    ).json
    assert names == ["neighbour"]
    assert chosen == "neighbour"
    assert sorted(broken) == sorted(BROKEN)
    assert broken[reader]["error"] == raised[0] == kind
    assert cause in broken[reader]["cause"]
    assert cause in raised[1]
    assert f"{distribution(reader)} 1.0" in raised[1]
    assert "Traceback" in broken[reader]["traceback"]


def bad_metadata(venv: Venv, entry_points: str, metadata: str | None) -> Path:
    """Write the metadata of a package that no installer would have written."""
    folder = venv.site_packages / "malformed-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "entry_points.txt").write_text(entry_points)
    (folder / "METADATA").write_text(metadata or "")
    if metadata is None:
        (folder / "METADATA").unlink()
    return folder


NAMED = "Metadata-Version: 2.1\nName: malformed\nVersion: 1.0\n"


@pytest.mark.parametrize(
    ("entry_points", "metadata"),
    [
        ("[console_scripts]\nx = y:z\n", None),
        ("[console_scripts]\nx = y:z\n", "Version: 1.0\n"),
        ("[console_scripts]\nno equals sign\n", NAMED),
        ("stray = before any group\n", NAMED),
        ("[weight_readers", NAMED),
    ],
    ids=["no metadata", "nameless", "no equals sign", "no group", "no bracket"],
)
def test_bad_metadata_of_an_unrelated_package_hurts_nobody(
    bad_neighbourhood: Venv, entry_points: str, metadata: str | None
) -> None:
    bad_metadata(bad_neighbourhood, entry_points, metadata)
    assert bad_neighbourhood.names() == ["neighbour"]


def test_the_stock_way_to_list_entry_points_fails_where_ours_does_not(bad_neighbourhood: Venv) -> None:
    """Why the registry walks the distributions itself; once this passes in importlib_metadata it need not."""
    bad_metadata(bad_neighbourhood, "[console_scripts]\nno equals sign\n", NAMED)
    stock = "import importlib_metadata; refused(lambda: list(importlib_metadata.entry_points(group='weight_readers')))"
    assert bad_neighbourhood.run(stock).json[0] in ("TypeError", "ValueError")
    assert bad_neighbourhood.names() == ["neighbour"]
