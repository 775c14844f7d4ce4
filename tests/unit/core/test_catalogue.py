# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Iterable

import importlib_metadata
import pytest

from weight_readers import _catalogue
from weight_readers._catalogue import KNOWN_READERS, extras_of, install_command, install_hint, normalized, suggestion


@pytest.fixture
def extras(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """A core that offers every extra, as it will when all plugins are published."""
    offered = {known.extra: (f"weight-readers-{known.extra}",) for known in KNOWN_READERS.values()}
    monkeypatch.setattr(_catalogue, "core_extras", lambda: offered)
    return


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """A core without metadata, as in a frozen application."""
    monkeypatch.setattr(_catalogue, "DISTRIBUTION", "weight-readers-that-nobody-installed")
    return


@pytest.mark.parametrize("spelling", ["Weight_Readers.GGUF", "weight--readers-gguf", "weight-readers-gguf"])
def test_spellings_of_one_distribution_are_one(spelling: str) -> None:
    assert normalized(spelling) == "weight-readers-gguf"


def test_extras_come_from_the_requirement_lines() -> None:
    lines = [
        "pluggy>=1.7",
        "tomli; python_version < '3.11'",
        "weight-readers-gguf==0.1.0 ; extra == 'gguf'",
        'Weight_Readers_Pt==0.1.0; python_version >= "3.10" and extra == "pt"',
        "weight-readers-gguf==0.1.0; extra == 'all'",
        "weight-readers-pt==0.1.0; extra == 'all'",
    ]
    assert extras_of(lines) == {
        "all": ("weight-readers-gguf", "weight-readers-pt"),
        "gguf": ("weight-readers-gguf",),
        "pt": ("weight-readers-pt",),
    }


def test_the_extras_of_core_are_those_of_its_own_metadata() -> None:
    declared = importlib_metadata.metadata("weight-readers").get_all("Provides-Extra")
    assert set(declared or ()) == set(_catalogue.core_extras())


def test_a_command_is_named_only_where_core_has_the_extra() -> None:
    declared = set(importlib_metadata.metadata("weight-readers").get_all("Provides-Extra") or ())
    for reader, known in KNOWN_READERS.items():
        named = re.findall(r"\[(\w+)\]", install_hint(reader) or "")
        assert ([known.extra] if known.extra in declared else []) == named


@pytest.mark.usefixtures("extras")
@pytest.mark.parametrize(
    ("reader", "extra"), [("safetensors", "mmap"), ("runai_streamer", "runai"), ("gguf", "gguf"), ("pt", "pt")]
)
def test_the_hint_for_a_reader_of_ours_is_its_extra(reader: str, extra: str) -> None:
    assert f'Install it: pip install "weight-readers[{extra}]"' == install_hint(reader)


def test_there_is_no_hint_for_a_stranger() -> None:
    assert install_hint("acme") is None


@pytest.mark.usefixtures("frozen")
def test_a_frozen_application_is_told_what_it_can_do_instead() -> None:
    assert _catalogue.core_extras() == {}
    assert _catalogue.installed_version(_catalogue.DISTRIBUTION) is None
    assert "was built without it; pass it as Registry(plugins={'gguf': …})" in (install_hint("gguf") or "")


@pytest.mark.usefixtures("extras")
@pytest.mark.parametrize(
    ("wanted", "schemes", "installed", "extra"),
    [
        (None, (), (), "mmap"),
        ("safetensors", (), (), "mmap"),
        ("safetensors", ("file",), ("safetensors",), "threaded"),
        ("gguf", (), ("safetensors",), "gguf"),
    ],
)
def test_the_suggestion_reads_what_is_wanted_and_is_not_installed(
    wanted: str | None, schemes: tuple[str, ...], installed: tuple[str, ...], extra: str
) -> None:
    assert f"Install it: {install_command(extra)}" == suggestion(wanted, schemes, installed=installed)


@pytest.mark.usefixtures("extras")
@pytest.mark.parametrize(
    ("schemes", "command"),
    [
        (("s3",), 'pip install "weight-readers-runai[s3]"'),
        (("gs",), 'pip install "weight-readers-runai[gcs]"'),
        (("file", "s3"), 'pip install "weight-readers-runai[s3]"'),
        (("s3", "gs"), 'pip install "weight-readers-runai[gcs]" "weight-readers-runai[s3]"'),
    ],
)
@pytest.mark.parametrize("wanted", ["safetensors", None])
def test_for_a_store_what_brings_its_package_is_suggested(
    wanted: str | None, schemes: tuple[str, ...], command: str
) -> None:
    assert f"Install it: {command}" == suggestion(wanted, schemes) == install_hint("runai_streamer", schemes)


@pytest.mark.usefixtures("extras")
@pytest.mark.parametrize(("wanted", "schemes"), [("onnx", ()), ("gguf", ("s3",)), ("safetensors", ("ftp",))])
def test_there_is_no_suggestion_where_nothing_of_ours_helps(wanted: str, schemes: tuple[str, ...]) -> None:
    assert suggestion(wanted, schemes) is None


def test_what_the_installed_core_offers_is_suggested_before_what_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_catalogue, "core_extras", lambda: {"runai": ("weight-readers-runai",)})
    assert f"Install it: {install_command('runai')}" == suggestion("safetensors")


def test_an_extra_whose_distribution_is_absent_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_catalogue, "core_extras", lambda: {"x": ("no-such-dist", "pluggy"), "y": ("pluggy",)})
    assert {"x": {"distributions": ["no-such-dist"], "install": install_command("x")}} == _catalogue.missing_extras()
