# SPDX-License-Identifier: Apache-2.0
"""A consumer that rests keeps no other from reading: the library's variables are set for one session at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.faults import SECONDS
from support.files import write_tensors
from support.object_server import ObjectServer
from support.tensors import tensor

from weight_readers_runai.reader import StreamerReader

URI = "s3://models/model.safetensors"
Weights = Iterator[tuple[str, torch.Tensor]]


@pytest.fixture
def path(server: ObjectServer, tmp_path: Path) -> Path:
    """The first tensors have no bytes: they are handed out before anything has arrived."""
    tensors = {"a": ("F32", [0], b""), "b": ("F32", [2, 0], b""), "c": tensor("F32", 5)}
    path = write_tensors(tmp_path / "model.safetensors", tensors)
    server.objects["models/model.safetensors"] = path.read_bytes()
    return path


def read_by_another_thread(where: str | Path) -> list[str]:
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.extend(n for n, _ in StreamerReader().iter_weights([where])))
    thread.daemon = True
    thread.start()
    thread.join(SECONDS)
    return names


def resting(only: str = "abc") -> Weights:
    weights = StreamerReader().iter_weights([URI], key_filter=only.__contains__)
    next(weights)
    return weights


@pytest.mark.parametrize("only", ["abc", "ab"], ids=["before-the-first-answer", "with-nothing-to-ask"])
def test_others_read_while_a_consumer_rests(path: Path, only: str) -> None:
    rests = resting(only)
    assert read_by_another_thread(path) == ["a", "b", "c"]
    assert read_by_another_thread(URI) == ["a", "b", "c"]
    assert [name for name, _ in rests] == [*only[1:]]


def test_others_read_after_a_consumer_was_dropped_by_another_thread(path: Path) -> None:
    held = [resting()]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(SECONDS)
    assert read_by_another_thread(path) == ["a", "b", "c"]
    assert [name for name, _ in StreamerReader().iter_weights([URI])] == ["a", "b", "c"]
