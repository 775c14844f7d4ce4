# SPDX-License-Identifier: Apache-2.0
"""The extra ``runai`` in a real environment: its schemes follow the vendor's packages, its absence is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import write_tensors
from support.object_server import ObjectServer, only_loopback
from support.venvs import Venv

from weight_readers._catalogue import KNOWN_READERS


@pytest.fixture
def runai(mmap: Venv) -> Iterator[Venv]:
    mmap.install("weight-readers[runai]")
    yield mmap
    mmap.uninstall("weight-readers-runai", "runai-model-streamer")


def test_the_extra_brings_the_reader_without_importing_a_backend(runai: Venv) -> None:
    assert runai.names() == ["runai_streamer", "safetensors"]
    imported = runai.run("""
        import sys
        weight_readers.describe_reader("runai_streamer")
        say(sorted({"torch", "numpy", "runai_model_streamer"} & set(sys.modules)))
    """).json
    assert imported == []


def test_without_the_vendors_package_its_scheme_is_not_offered_and_the_command_is_named(runai: Venv) -> None:
    assert runai.run("say(sorted(weight_readers.describe_reader('runai_streamer').schemes))").json == ["file"]
    _, said, _ = runai.run("refused(lambda: weight_readers.select_weight_reader(schemes={'s3'}))").json
    assert 'pip install "weight-readers-runai[s3]"' in said


@pytest.fixture
def with_s3(runai: Venv) -> Iterator[Venv]:
    runai.install("weight-readers-runai[s3]")
    yield runai
    runai.uninstall("runai-model-streamer-s3", "boto3", "botocore", "s3transfer", "awscrt")


def test_with_the_vendors_package_its_scheme_is_offered_and_read(
    with_s3: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_tensors(tmp_path / "m.safetensors", {"w": ("U8", [3], b"abc")}).read_bytes()
    with ObjectServer({"models/m.safetensors": data}).running() as server:
        only_loopback(monkeypatch, server.endpoint)
        found = with_s3.run("""
            schemes = weight_readers.describe_reader("runai_streamer").schemes
            reader = weight_readers.select_weight_reader(schemes={"s3"})
            say([sorted(schemes), {n: t.tolist() for n, t in reader.iter_weights(["s3://models/m.safetensors"])}])
        """).json
    assert found == [["file", "s3"], {"w": list(b"abc")}]


def test_the_table_of_core_names_for_each_store_what_the_plugin_itself_names(runai: Venv) -> None:
    found = runai.run("say(dict(weight_readers.describe_reader('runai_streamer').more_schemes))").json
    stores = KNOWN_READERS["runai_streamer"].stores
    assert {scheme: f'pip install "{requirement}"' for scheme, requirement in stores.items()} == found


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ("requested='runai_streamer', strict=True", 'pip install "weight-readers[runai]"'),
        ("schemes={'s3'}", 'pip install "weight-readers-runai[s3]"'),
        ("schemes={'gs'}", 'pip install "weight-readers-runai[gcs]"'),
        ("requested='runai_streamer', schemes={'s3'}", 'pip install "weight-readers-runai[s3]"'),
    ],
)
def test_without_the_plugin_its_name_is_absent_and_the_command_that_brings_all_is_named(
    mmap: Venv, asked: str, command: str
) -> None:
    assert mmap.names() == ["safetensors"]
    _, said, fix = mmap.run(f"refused(lambda: weight_readers.select_weight_reader({asked}))").json
    assert fix == f"Install it: {command}"
    assert command in said


def test_a_version_without_the_native_calls_is_declined(runai: Venv) -> None:
    module = runai.site_packages / "runai_model_streamer" / "libstreamer" / "libstreamer.py"
    source = module.read_text()
    try:
        # As before 0.17: no time limit.
        module.write_text(source.replace("timeout_ms", "patience"))
        _, said, fix = runai.run(
            "refused(lambda: weight_readers.select_weight_reader(requested='runai_streamer', strict=True))"
        ).json
        assert "runai_response(timeout_ms=)" in said
        assert "pip install --upgrade" in f"{said} {fix}"
    finally:
        module.write_text(source)
