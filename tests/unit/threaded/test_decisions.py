# SPDX-License-Identifier: Apache-2.0
"""Whether files were read past the page cache, and why, is told where ``direct_io="auto"`` left it to the reader."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import write_tensors
from support.measure import evict
from support.tensors import noise

from weight_readers import ReadStats
from weight_readers_files.residency import cached_fraction
from weight_readers_loader import open_checkpoint
from weight_readers_threaded import direct
from weight_readers_threaded.decisions import NO_DIRECT_READS, SHARE, UNKNOWN, Decided, said
from weight_readers_threaded.reader import ThreadedReader

SIZE = 8 << 20
"""Much more than the kernel reads ahead with a header."""


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Two files that are not in the page cache, on a disk that has direct reads."""
    paths = [tmp_path / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for number, path in enumerate(paths):
        write_tensors(path, {f"t{number}": ("U8", [SIZE], noise(SIZE, number))})
        evict(path)
    try:
        os.close(os.open(paths[0], os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct reads; set --basetemp to a disk")
    if cached_fraction(str(paths[0]), 0, SIZE) is None:
        pytest.skip("this kernel does not tell what is cached (Linux before 6.5)")
    return paths


def by_iterating(reader: ThreadedReader, paths: list[Path]) -> tuple[str, ...]:
    told: list[ReadStats] = []
    for _ in reader.iter_weights(paths, on_progress=told.append):
        pass
    return told[-1].decisions


def by_filling(reader: ThreadedReader, paths: list[Path]) -> tuple[str, ...]:
    told: list[ReadStats] = []
    targets = {f"t{number}": torch.empty(SIZE, dtype=torch.uint8) for number in range(len(paths))}
    stats = reader.read_into(paths, targets, on_progress=told.append)
    assert stats.decisions == told[-1].decisions
    return stats.decisions


WAYS = pytest.mark.parametrize("decisions", [by_iterating, by_filling])


def without_shares(decisions: tuple[str, ...]) -> list[str]:
    return [re.sub(r": \d+% of", ": of", each) for each in decisions]


def shares(decisions: tuple[str, ...]) -> list[int]:
    return [int(share) for each in decisions for share in re.findall(r"(\d+)%", each)]


@WAYS
def test_what_is_not_cached_is_said_to_be_read_past_the_cache(shards: list[Path], decisions: Any) -> None:
    found = decisions(ThreadedReader(direct_io="auto"), shards)
    assert without_shares(found) == ["read past the page cache: of the files was in it"]
    assert shares(found) <= [10]


@WAYS
def test_files_that_are_read_in_different_ways_are_told_apart(shards: list[Path], decisions: Any) -> None:
    shards[1].read_bytes()
    found = decisions(ThreadedReader(direct_io="auto"), shards)
    assert without_shares(found) == [
        "read past the page cache: of 1 of 2 files was in it",
        "read through the page cache: of 1 of 2 files was in it",
    ]
    assert shares(found)[0] <= 10
    assert shares(found)[1] >= 90


@WAYS
@pytest.mark.parametrize("mode", ["on", "off"])
def test_what_was_asked_for_is_no_decision(shards: list[Path], decisions: Any, mode: str) -> None:
    assert decisions(ThreadedReader(direct_io=mode), shards) == ()


def test_the_report_of_a_load_has_them(shards: list[Path]) -> None:
    checkpoint = open_checkpoint(shards[0], reader="threaded", reader_options={"direct_io": "auto"})
    checkpoint.state_dict()
    assert checkpoint.report is not None
    assert without_shares(checkpoint.report.decisions) == ["read past the page cache: of the files was in it"]


def test_a_kernel_that_does_not_tell_is_the_reason(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "cached_fraction", lambda *args: None)
    assert by_iterating(ThreadedReader(direct_io="auto"), shards) == (
        "read through the page cache: the kernel does not tell how much of the files is in it",
    )


@pytest.mark.parametrize(
    ("decided", "expected"),
    [
        ([], ()),
        (
            [Decided(direct=True, fact=SHARE, nbytes=100, cached=0.08), Decided(direct=True, fact=SHARE, nbytes=300)],
            ("read past the page cache: 2% of the files was in it",),
        ),
        (
            [
                Decided(direct=False, fact=NO_DIRECT_READS, nbytes=1),
                Decided(direct=False, fact=UNKNOWN, nbytes=1),
                Decided(direct=False, fact=NO_DIRECT_READS, nbytes=1),
            ],
            (
                "read through the page cache: the file system of 2 of 3 files has no direct reads",
                "read through the page cache: the kernel does not tell how much of 1 of 3 files is in it",
            ),
        ),
        (
            [Decided(direct=False, fact=SHARE, nbytes=0, cached=1.0)],
            ("read through the page cache: 100% of the files was in it",),
        ),
    ],
)
def test_a_sentence_for_each_way_and_fact_with_the_share_over_all_bytes(
    decided: list[Decided], expected: tuple[str, ...]
) -> None:
    assert said(decided) == expected
