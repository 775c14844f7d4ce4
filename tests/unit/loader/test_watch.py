# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.files import floats, write_sharded, write_tensors
from torch import nn
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import FileChangedError, ReadStats
from weight_readers_loader import open_checkpoint
from weight_readers_loader.streams import Totals
from weight_readers_loader.watch import Watch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"four")
    return path


def replace(path: Path, content: bytes) -> None:
    other = path.with_name("new")
    other.write_bytes(content)
    os.replace(other, path)


def later(path: Path) -> None:
    """Move the time of modification, as a write does, however coarse the clock is."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def test_a_file_that_stays_the_same_is_the_same(path: Path) -> None:
    watch = Watch([str(path)])
    watch.check(str(path))
    watch.check_contents([str(path)])


def test_a_file_written_in_place_is_refused_at_both_moments(path: Path) -> None:
    watch = Watch([str(path)])
    with path.open("r+b") as file:
        file.write(b"FOUR")
    later(path)
    for check in (watch.check, lambda name: watch.check_contents([name])):
        with pytest.raises(FileChangedError, match="4 bytes, modified") as refused:
            check(str(path))
        assert refused.value.path == str(path)


def test_a_file_that_grew_is_refused(path: Path) -> None:
    watch = Watch([str(path)])
    with path.open("ab") as file:
        file.write(b"!")
    with pytest.raises(FileChangedError, match="5 bytes"):
        watch.check_contents([str(path)])


@pytest.mark.parametrize("deleted", [False, True])
def test_a_file_that_was_replaced_or_deleted_is_refused_before_it_is_opened_only(path: Path, deleted: bool) -> None:
    watch = Watch([str(path)])
    path.unlink() if deleted else replace(path, b"other")
    with pytest.raises(FileChangedError, match="nothing there" if deleted else "another file"):
        watch.check(str(path))
    watch.check_contents([str(path)])


def test_a_shard_that_was_read_and_is_then_rewritten_is_found_at_the_end(tmp_path: Path) -> None:
    """Its views would show other values without a word."""
    first, *_ = write_sharded(tmp_path, 3)
    weights = open_checkpoint(tmp_path).iter_weights()
    next(weights)
    next(weights)
    write_tensors(first, {"t1": ("F32", [2], floats(9, 9))}, format="pt")
    later(first)
    with pytest.raises(FileChangedError) as refused:
        list(weights)
    assert refused.value.path == str(first)


def test_a_shard_that_is_replaced_before_its_turn_is_not_mixed_with_the_others(tmp_path: Path) -> None:
    *_, last = write_sharded(tmp_path, 3)
    weights = open_checkpoint(tmp_path).iter_weights()
    next(weights)
    replace(last, last.read_bytes())
    with pytest.raises(FileChangedError) as refused:
        list(weights)
    assert refused.value.path == str(last)


def test_a_shard_that_is_replaced_after_its_turn_disturbs_nobody(tmp_path: Path) -> None:
    first, *_ = write_sharded(tmp_path, 3)
    weights = open_checkpoint(tmp_path).iter_weights()
    _, tensor = next(weights)
    next(weights)
    replace(first, b"something else")
    assert [name for name, _ in weights] == ["t3"]
    assert torch.equal(tensor, torch.tensor([1, 1.5]))


def test_a_checkpoint_that_changed_after_it_was_opened_is_refused_before_a_tensor_is_read(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [2], floats(1, 2))})
    checkpoint = open_checkpoint(tmp_path)
    write_tensors(path, {"w": ("F32", [3], floats(1, 2, 3))})
    with pytest.raises(FileChangedError, match="changed after the checkpoint was opened"):
        checkpoint.state_dict()


def one_file(reader: str, folder: Path) -> Path:
    """A checkpoint of two tensors in the format of a reader."""
    tensors = {"a": torch.ones(4), "b": torch.zeros(4)}
    if reader == "gguf":
        numbers = {name: (0, (4,), t.numpy().tobytes()) for name, t in tensors.items()}
        return write_gguf(folder / "m.gguf", numbers, {"general.architecture": "tiny"})
    if reader == "pt":
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder / "pytorch_model.bin"
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize("reader", ["safetensors", "threaded", "runai_streamer", "gguf", "pt"])
class TestAFileThatIsWrittenInPlaceInTheMidstOfALoad:
    """Of the same size, after the last tensor was handed out: only the end of the load can see it."""

    def test_is_found_at_the_end_of_the_stream(self, reader: str, tmp_path: Path) -> None:
        path = one_file(reader, tmp_path)
        weights = open_checkpoint(path, reader=reader).iter_weights()
        taken = [next(weights), next(weights)]
        later(path)
        with pytest.raises(FileChangedError) as refused:
            next(weights)
        assert (refused.value.path, len(taken)) == (str(path), 2)

    @pytest.mark.parametrize("memory", ["cpu", "meta"])
    def test_is_found_before_a_load_into_targets_is_over(
        self, reader: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = one_file(reader, tmp_path)
        module = nn.ParameterDict({name: nn.Parameter(torch.ones(4, device=memory)) for name in "ab"})
        checkpoint = open_checkpoint(path, reader=reader)
        whole = Totals.update

        def update(totals: Totals, stats: ReadStats) -> None:
            whole(totals, stats)
            if stats.tensors == 2:
                later(path)

        monkeypatch.setattr(Totals, "update", update)
        with pytest.raises(FileChangedError) as refused:
            checkpoint.load_into(module)
        assert refused.value.path == str(path)
        assert all(value.device.type == memory for value in module.values())
