# SPDX-License-Identifier: Apache-2.0
"""What is refused before any byte is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Recorded
from support.files import write_tensors
from support.tensors import tensor

from weight_readers import TargetMismatchError, TensorSlice
from weight_readers_threaded import direct
from weight_readers_threaded.reader import ThreadedReader


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    names = {"a": ("F32", 4, 6), "b": ("BF16", 8), "c": ("F32", 4, 6)}
    return write_tensors(tmp_path / "m.safetensors", {n: tensor(d, *s, seed=n) for n, (d, *s) in names.items()})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_reads(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(direct, "read", recorded)
    return recorded


def refused(shard: Path, kind: type[Exception], targets: dict[str, Any], **options: Any) -> Exception:
    """The error, raised before a byte was read or written."""
    before = {name: t.clone() for name, t in targets.items() if isinstance(t, torch.Tensor) and t.is_contiguous()}
    with pytest.raises(kind) as caught:
        ThreadedReader().read_into([shard], targets, **options)
    assert all(targets[name].equal(value) or targets[name].is_meta for name, value in before.items())
    return caught.value


def test_names_that_are_not_in_the_files_are_refused(shard: Path, no_reads: Recorded) -> None:
    error = refused(shard, TargetMismatchError, {"a": torch.zeros(4, 6), "x": torch.zeros(1), "y": torch.zeros(1)})
    assert isinstance(error, TargetMismatchError)
    assert error.unexpected == ("x", "y")
    assert no_reads.reads == []


def test_all_shapes_and_dtypes_that_differ_are_named_at_once(shard: Path, no_reads: Recorded) -> None:
    targets = {"a": torch.zeros(6, 4), "b": torch.zeros(8), "c": torch.zeros(4, 6)}
    error = refused(shard, TargetMismatchError, targets)
    assert isinstance(error, TargetMismatchError)
    assert error.shapes == (("a", "[4, 6]", "[6, 4]"),)
    assert error.dtypes == (("b", "bfloat16", "float32"),)
    assert no_reads.reads == []


def test_the_shape_is_that_of_the_slice(shard: Path) -> None:
    slices = {"a": TensorSlice(dim=0, start=1, stop=3)}
    error = refused(shard, TargetMismatchError, {"a": torch.zeros(4, 6)}, slices=slices)
    assert isinstance(error, TargetMismatchError)
    assert error.shapes == (("a", "[2, 6]", "[4, 6]"),)


@pytest.mark.parametrize("target", [None, [0.0] * 24, "a", 3])
def test_what_is_no_tensor_is_refused(shard: Path, target: Any) -> None:
    assert "not a tensor" in str(refused(shard, TypeError, {"a": target}))


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, as distributed ones are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **keywords: Any) -> Any:
        raise NotImplementedError


def released() -> torch.Tensor:
    tensor = torch.zeros(4, 6)
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_tensor_without_memory_of_its_own_is_refused(shard: Path) -> None:
    for target, why in [
        (torch.empty(4, 6, device="meta"), "a meta tensor"),
        (torch.zeros(4, 6).to_sparse(), "layout torch.sparse_coo"),
        (Wrapped(torch.zeros(4, 6)), "not a plain tensor"),
        (released(), "has no memory"),
    ]:
        with pytest.raises(TypeError, match=why):
            ThreadedReader().read_into([shard], {"a": target})


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(1, 6).expand(4, 6),
        torch.zeros(4, 1).expand(4, 6),
        torch.zeros(1).expand(4, 6),
        torch.zeros(9).as_strided((4, 6), (1, 1)),
        torch.zeros(30).as_strided((4, 6), (5, 1)),
    ],
    ids=["rows", "columns", "scalar", "sliding", "overlapping rows"],
)
def test_a_target_whose_elements_share_memory_is_refused(shard: Path, target: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="elements that share memory"):
        ThreadedReader().read_into([shard], {"a": target})
    assert int(target.count_nonzero()) == 0


def test_two_targets_in_one_memory_are_refused(shard: Path, no_reads: Recorded) -> None:
    tied, strided = torch.zeros(4, 6), torch.zeros(6, 4).t()
    base = torch.zeros(40)
    for one, other in [
        (tied, tied),
        (tied, tied.detach()),
        (strided, strided),
        (base[:24].view(4, 6), base[10:34].view(4, 6)),
    ]:
        error = refused(shard, TargetMismatchError, {"a": one, "c": other})
        assert "'a' and 'c' are the same memory" in str(error) or "'c' and 'a' are the same memory" in str(error)
    assert no_reads.reads == []


def test_neighbours_within_one_memory_are_not_the_same_memory(shard: Path) -> None:
    stacked = torch.zeros(8, 6)
    ThreadedReader().read_into([shard], {"a": stacked[:4], "c": stacked[4:]})
    side_by_side = torch.zeros(4, 12)
    ThreadedReader().read_into([shard], {"a": side_by_side[:, :6], "c": side_by_side[:, 6:]})
    alternating = torch.zeros(4, 12)
    ThreadedReader().read_into([shard], {"a": alternating[:, ::2], "c": alternating[:, 1::2]})
    got = dict(ThreadedReader().iter_weights([shard]))
    a, c = got["a"].view(torch.int32), got["c"].view(torch.int32)
    assert torch.cat([a, c]).equal(stacked.view(torch.int32))
    assert torch.cat([a, c], dim=1).equal(side_by_side.view(torch.int32))
    assert torch.stack([a, c], dim=2).view(4, 12).equal(alternating.view(torch.int32))


def test_targets_without_elements_share_nothing(tmp_path: Path) -> None:
    shard = write_tensors(tmp_path / "m.safetensors", {"e": ("F32", [0], b""), "f": tensor("F32", 4)})
    base = torch.zeros(4)
    assert ThreadedReader().read_into([shard], {"e": base[2:2], "f": base}).tensors == 2
