# SPDX-License-Identifier: Apache-2.0
"""When a file is said to have its turn: before its first tensor is there, as it may never come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import write_sharded

from weight_readers import ReadStats
from weight_readers_loader import open_checkpoint
from weight_readers_loader.turns import Turns

COUNTS = [("f", 2), ("g", 1), ("h", 1)]


def test_a_file_has_its_turn_before_the_reader_is_asked_for_its_first_tensor() -> None:
    said: list[str] = []
    seen: list[tuple[str, list[str]]] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abcd":
            seen.append((name, list(said)))
            yield name, torch.ones(1)

    assert [name for name, _ in Turns(said.append, COUNTS).following(weights())] == list("abcd")
    assert seen == [("a", ["f"]), ("b", ["f"]), ("c", ["f", "g"]), ("d", ["f", "g", "h"])]
    assert said == ["f", "g", "h"]


def test_a_file_has_its_turn_once_all_before_it_are_told_of() -> None:
    said: list[str] = []
    turns = Turns(said.append, COUNTS)
    for tensors, expected in ((0, "f"), (1, "f"), (2, "fg"), (2, "fg"), (4, "fgh")):
        turns.reached(ReadStats(tensors=tensors))
        assert "".join(said) == expected


def test_closing_the_stream_closes_the_reader() -> None:
    closed = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        try:
            yield "a", torch.ones(1)
        finally:
            closed.append(True)

    stream = Turns(lambda path: None, COUNTS).following(weights())
    next(stream)
    stream.close()
    assert closed


@pytest.mark.parametrize(("reader", "module"), [("safetensors", "mmap"), ("threaded", "threaded")])
def test_files_that_are_read_into_tensors_have_their_turns_one_by_one(tmp_path: Path, reader: str, module: str) -> None:
    """All of them were said to be read before the first byte was, so that a death was put on the last."""
    pytest.importorskip(f"weight_readers_{module}")
    shards = [str(path) for path in write_sharded(tmp_path, 3)]
    targets: dict[str, Any] = {}
    filled: dict[str, list[str]] = {}

    def on_file(path: str) -> None:
        filled[path] = sorted(name for name, tensor in targets.items() if not tensor.isnan().any())

    checkpoint = open_checkpoint(tmp_path, reader=reader, on_file=on_file)
    metas = checkpoint.tensors
    targets |= {
        name: torch.full(meta.shape, float("nan"), dtype=getattr(torch, meta.dtype)) for name, meta in metas.items()
    }
    checkpoint.load_into(targets)
    assert list(filled) == shards
    assert not filled[shards[0]]
    for number, path in enumerate(shards):
        before = {name for name, meta in metas.items() if meta.file in shards[:number]}
        assert before <= set(filled[path])
