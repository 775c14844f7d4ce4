# SPDX-License-Identifier: Apache-2.0
"""A header that somebody holds is parsed once, and the file that takes the place of another is never taken for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.gguf.gguf_bytes import write_gguf
from unit.gguf.small_model import on_meta, write

from weight_readers import CheckpointNotFoundError, FileChangedError
from weight_readers_gguf import GGUFConfig, load_packed, prepare_module
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.header import _held, held_header
from weight_readers_loader import open_checkpoint

LONG_AGO = 10**18
Q4_0, IQ4_NL = 2, 20
"""Two types of as many bytes: nothing but the header tells their files apart."""


def file_of(path: Path, type_id: int = Q4_0) -> Path:
    write_gguf(path, {"a.weight": (type_id, (2, 32), bytes(36))})
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose headers were parsed, in order."""
    found: list[str] = []
    original = _held.scan_header
    monkeypatch.setattr(_held, "scan_header", lambda path: (found.append(path), original(path))[1])
    return found


def test_a_plan_and_the_reader_of_one_load_parse_each_header_once(tmp_path: Path, parsed: list[str]) -> None:
    path = write(tmp_path / "m.gguf")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    load_packed(on_meta(), path)
    assert parsed == [str(path)]


def test_so_do_the_loader_a_config_and_a_plan(tmp_path: Path, parsed: list[str]) -> None:
    path = write(tmp_path / "m.gguf")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    checkpoint, model = open_checkpoint(path), on_meta()
    config = GGUFConfig.from_file(path)
    prepare_module(model, checkpoint.layout.paths)
    checkpoint.load_into(model)
    assert (parsed, len(config.tensors)) == ([str(path)], len(checkpoint.tensors))


def test_a_file_that_took_the_place_of_another_of_its_size_and_time_is_read_anew(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf")
    held, _ = held_header(str(path))
    os.replace(file_of(tmp_path / "new.gguf", IQ4_NL), path)
    assert [held.tensors[0].type, held_header(str(path))[0].tensors[0].type] == [Q4_0, IQ4_NL]


def test_a_file_that_was_written_just_now_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for type_id in (Q4_0, IQ4_NL) * 20:
        write_gguf(path, {"a.weight": (type_id, (2, 32), bytes(36))})
        header, _ = held_header(str(path))
        assert header.tensors[0].type == type_id


def test_a_header_that_nobody_holds_is_let_go(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf")
    held_header(str(path))
    assert not any(key.path == str(path) for key in _held._held)


def test_problems_of_a_header_are_found_again_each_time(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-40])
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    held = [held_header(str(path)) for _ in range(2)]
    assert [len(problems) for _, problems in held] == [1, 1]


def test_a_checkpoint_and_a_config_tell_a_file_that_is_another_by_now(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf")
    checkpoint, config = read_checkpoint([path]), GGUFConfig.from_file(path)
    for each in (checkpoint, config):
        each.require_unchanged()
    write_gguf(path, {"a.weight": (IQ4_NL, (2, 32), bytes(36))})
    for each in (checkpoint, config):
        with pytest.raises(FileChangedError, match=r"m\.gguf"):
            each.require_unchanged()
    path.unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"m\.gguf"):
        config.require_unchanged()
