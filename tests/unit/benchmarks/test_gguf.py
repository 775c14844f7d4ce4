# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the GGUF plugin: what it measures with, and how it judges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.gguf import arms, dequantization, opening
from benchmarks.gguf.blocks import random_weight
from benchmarks.gguf.report import Run
from benchmarks.gguf.verdicts import verdicts
from unit.gguf.oracles import ggml

from weight_readers_gguf.types import DEQUANTIZABLE


@pytest.mark.parametrize("name", sorted(DEQUANTIZABLE))
def test_weights_to_measure_with_are_ordinary_numbers(name: str) -> None:
    found = np.abs(ggml(name, random_weight(name, 4, 512)))
    assert np.isfinite(found).all()
    assert 1e-4 < found.max() < 100


@pytest.mark.parametrize("work", ["fresh", "into"])
def test_every_arm_is_measured_once_a_round(work: str) -> None:
    found = dequantization.measure(work, "Q4_0", list(arms.ARMS), rows=4, columns=256, rounds=2, verify=True)
    assert all([each["round"] for each in results] == [0, 1] for results in found.values())
    assert (arms.GGUF in found) == (work == "fresh")


def test_an_arm_with_another_result_than_ggml_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms.GGUFPackage, "fresh", lambda self, name, packed: np.zeros((4, 256), np.float32))
    found = dequantization.measure("fresh", "Q4_0", [arms.GGUF], rows=4, columns=256, rounds=1, verify=True)
    assert found == {arms.GGUF: [{"error": "its result differs from that of ggml's C code"}]}


def test_ratios_are_of_the_same_round_and_held_against_the_thresholds() -> None:
    def rounds(*seconds: float) -> list[dict[str, float]]:
        return [{"round": number, "seconds": each} for number, each in enumerate(seconds)]

    results = {
        "fresh": {"Q4_0": {arms.OURS: rounds(1, 2, 4), arms.GGUF: rounds(3, 6, 12), arms.LIBGGUF: rounds(0.5, 1, 2)}},
        "opening": {"vocabulary": {opening.OURS: rounds(0.1, 0.1), opening.READER: rounds(50)}},
    }
    found = {each.what: each for each in verdicts(results)}
    assert found["every type, times gguf-py as it is"].met is True
    assert found["Q4_0 fresh, times libgguf"].met is False
    assert found["Q4_0 fresh, times libgguf"].value.startswith("0.50")
    assert found["Q4_K fresh, times libgguf"].met is None
    assert found["opening the vocabulary file, times gguf.GGUFReader"].value.startswith("500 ")


def test_a_run_is_written_with_every_round(tmp_path: Path) -> None:
    machine = {"versions": {"gguf": "1"}, "kernel": "6", "machine": "x", "cpus": 2, "python": "3"}
    machine |= {"transparent_hugepage": "madvise", "load_average": [0.0]}
    run = Run(settings={"rows": 1, "columns": 1, "threads": 2, "rounds": 1}, machine=machine)
    run.results["fresh"] = {"Q4_0": {arms.OURS: [{"round": 0, "seconds": 1.0, "bytes": 1 << 30}]}}
    run.write_json(tmp_path / "results.json")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["works"]["fresh"]["rounds"]["Q4_0"] == run.results["fresh"]["Q4_0"]
    assert "| Q4_0 | 1.00" in run.text()


def test_files_to_open_have_the_vocabulary_that_was_asked_for(tmp_path: Path) -> None:
    path = opening.vocabulary_file(tmp_path, 3, tensors=2)
    from weight_readers_gguf.header import read_header

    header = read_header(str(path))
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 3
    assert len(header.tensors) == 2
