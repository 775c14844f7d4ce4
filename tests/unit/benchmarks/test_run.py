# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ARMS = ["weight-readers safetensors", "limit: bare preadv", "safetensors mmap + copy", "torch.load(mmap=True)"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small run in a process of its own: where its results are, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    options = {
        "--work": ["warm-into", "cold-into", "keys", "rows", "memory", "ticker"],
        "--arms": ARMS,
        "--rounds": ["2"],
        "--size": ["1MiB"],
        "--shards": ["2"],
        "--data": [folder / "data"],
        "--out": [folder / "results"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *(part for name, of in options.items() for part in (name, *of))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return folder / "results", done.stdout


@pytest.fixture(scope="module")
def document(ran: tuple[Path, str]) -> dict[str, Any]:
    return json.loads((ran[0] / "results.json").read_text())


def test_each_work_has_a_table_with_a_row_for_each_arm(ran: tuple[Path, str]) -> None:
    text = (ran[0] / "tables.md").read_text()
    assert ran[1].strip() == text.strip()
    sections = text.split("### ")[1:]
    assert [section.split(":")[0] for section in sections] == [
        "warm-into",
        "cold-into",
        "keys-warm",
        "keys-cold",
        "rows-warm",
        "rows-cold",
        "memory-slow",
        "ticker-into",
        "Thresholds\n\n- 1. warm into parameters, of the limit",
    ]
    assert all(f"| {arm} " in sections[0] for arm in ARMS)


def test_each_measurement_states_its_conditions_and_what_it_verified(document: dict[str, Any]) -> None:
    rounds = document["works"]["warm-into"]["rounds"]
    assert set(ARMS) == set(rounds)
    for results in rounds.values():
        assert [result["round"] for result in results] == [0, 1]
        assert [result["verified"] for result in results] == [True, False]
        for field in ("seconds", "rchar", "read_bytes", "major_faults", "anon_beyond", "file_beyond", "load"):
            assert all(result[field] >= 0 for result in results), field
        assert all(result["cached_before"] == 1 for result in results)


def test_the_limit_reads_exactly_the_wanted_bytes(document: dict[str, Any]) -> None:
    for work in ("warm-into", "keys-warm", "rows-warm"):
        for result in document["works"][work]["rounds"]["limit: bare preadv"]:
            beyond = result["rchar"] - result["bytes"]
            assert 0 <= beyond < 4096, work  # what the counters themselves read


def test_every_condition_has_its_threshold_and_a_verdict(document: dict[str, Any]) -> None:
    assert {1, 2, 3, 4, 5, 6} == {verdict["line"] for verdict in document["verdicts"]}
    assert all(verdict["threshold"] and verdict["value"] for verdict in document["verdicts"])


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_chart_is_a_picture(ran: tuple[Path, str]) -> None:
    picture = (ran[0] / "chart.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 10_000
