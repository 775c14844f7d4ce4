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
    "import error": ("raise ImportError('libacme.so')", "PluginLoadError", "ImportError: libacme.so"),
    "value error": ("raise ValueError('abi')", "PluginLoadError", "ValueError: abi"),
    "exit": ("raise SystemExit('no licence')", "PluginLoadError", "SystemExit: no licence"),
    "syntax error": ("def oops(:", "PluginLoadError", "SyntaxError"),
    "missing backend": ("import acme_backend", "PluginLoadError", "it imports 'acme_backend', which is not installed"),
    "misspelt hook": (
        HEALTHY + "\n@hookimpl\ndef weight_readers_chek(request): ...\n",
        "PluginContractError",
        "unknown hook 'weight_readers_chek'",
    ),
    "newer api": (
        HEALTHY.replace("lifetime=", "api_version=2, lifetime="),
        "PluginVersionError",
        "it was written for API version 2, and this core speaks 1",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_listed_is_an_error_when_named_and_hurts_nobody_else(
    core: Venv, tmp_path: Path, fault: str
) -> None:
    source, kind, cause = BROKEN[fault]
    core.install(wheel(tmp_path, source=source), healthy_neighbour(tmp_path))
    seen = core.run(
        """
        names = weight_readers.available_reader_names()
        chosen = weight_readers.select_weight_reader(format="safetensors").info.name
        broken = weight_readers.registry_report()["broken"]
        try:
            weight_readers.select_weight_reader(requested="acme", strict=True)
        except ImportError as error:
            raised = [type(error).__name__, str(error)]
        say([names, chosen, broken, raised])
        """
    ).json
    names, chosen, broken, raised = seen
    assert names == ["neighbour"]
    assert chosen == "neighbour"
    assert list(broken) == ["acme"]
    assert broken["acme"]["error"] == raised[0] == kind
    assert cause in broken["acme"]["cause"]
    assert cause in raised[1]
    assert "acme-reader 1.0" in raised[1]
    assert "Traceback" in broken["acme"]["traceback"]


def test_a_nameless_dist_info_hurts_nobody(core: Venv, tmp_path: Path) -> None:
    core.install(healthy_neighbour(tmp_path))
    nameless = core.site_packages / "nameless-1.0.dist-info"
    nameless.mkdir()
    (nameless / "entry_points.txt").write_text("[console_scripts]\nx = y:z\n")
    assert core.names() == ["neighbour"]


@pytest.mark.parametrize(
    "text", ["[console_scripts]\nno equals sign\n", "stray = before any group\n", "[weight_readers"]
)
def test_malformed_entry_points_hurt_nobody(core: Venv, tmp_path: Path, text: str) -> None:
    core.install(healthy_neighbour(tmp_path))
    malformed = core.site_packages / "malformed-1.0.dist-info"
    malformed.mkdir()
    (malformed / "METADATA").write_text("Metadata-Version: 2.1\nName: malformed\nVersion: 1.0\n")
    (malformed / "entry_points.txt").write_text(text)
    assert core.names() == ["neighbour"]


def test_the_stock_way_to_list_entry_points_fails_where_ours_does_not(core: Venv, tmp_path: Path) -> None:
    """Why the registry walks the distributions itself; once this passes in importlib_metadata it need not."""
    core.install(healthy_neighbour(tmp_path))
    malformed = core.site_packages / "malformed-1.0.dist-info"
    malformed.mkdir()
    (malformed / "METADATA").write_text("Metadata-Version: 2.1\nName: malformed\nVersion: 1.0\n")
    (malformed / "entry_points.txt").write_text("[console_scripts]\nno equals sign\n")
    stock = "import importlib_metadata; refused(lambda: list(importlib_metadata.entry_points(group='weight_readers')))"
    assert core.run(stock).json[0] in ("TypeError", "ValueError")
    assert core.names() == ["neighbour"]
