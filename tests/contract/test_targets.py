# SPDX-License-Identifier: Apache-2.0
"""Reading into the caller's tensors: what is refused before any byte is written, and what is written."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest
import torch
from safetensors.torch import load_file
from support.files import write_tensors
from support.tensors import BITS, bits, noise, tensor

from weight_readers import (
    Feature,
    Order,
    ReadsInto,
    ReadStats,
    TargetMismatchError,
    TensorSlice,
    WeightReader,
)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    names = {"a": ("F32", 4, 6), "b": ("BF16", 8), "c": ("F32", 4, 6)}
    return write_tensors(tmp_path / "m.safetensors", {n: tensor(d, *s, seed=n) for n, (d, *s) in names.items()})  # type: ignore[arg-type]


if TYPE_CHECKING:
    from conftest import Choice


class _Reads(WeightReader, ReadsInto, Protocol):
    """A reader that reads into targets."""


@pytest.fixture
def reader(choice: Choice) -> _Reads:
    made = choice.make()
    if Feature.READ_INTO not in made.info.features:
        pytest.skip("not declared")
    assert isinstance(made, ReadsInto)
    return cast(_Reads, made)


def refused(reader: _Reads, shard: Path, kind: type[Exception], targets: dict[str, Any], **options: Any) -> Exception:
    """The error, raised before a byte was written."""
    before = {name: t.clone() for name, t in targets.items() if isinstance(t, torch.Tensor) and t.is_contiguous()}
    with pytest.raises(kind) as caught:
        reader.read_into([shard], targets, **options)
    assert all(targets[name].equal(value) or targets[name].is_meta for name, value in before.items())
    return caught.value


def test_names_that_are_not_in_the_files_are_refused(reader: _Reads, shard: Path) -> None:
    error = refused(
        reader, shard, TargetMismatchError, {"a": torch.zeros(4, 6), "x": torch.zeros(1), "y": torch.zeros(1)}
    )
    assert isinstance(error, TargetMismatchError)
    assert error.unexpected == ("x", "y")
    odd: Any = {1: torch.zeros(1)}
    assert "1 targets are not in the files: 1" in str(refused(reader, shard, TargetMismatchError, odd))


def test_all_shapes_and_dtypes_that_differ_are_named_at_once(reader: _Reads, shard: Path) -> None:
    targets = {"a": torch.zeros(6, 4), "b": torch.zeros(8), "c": torch.zeros(4, 6)}
    error = refused(reader, shard, TargetMismatchError, targets)
    assert isinstance(error, TargetMismatchError)
    assert error.shapes == (("a", "[4, 6]", "[6, 4]"),)
    assert error.dtypes == (("b", "bfloat16", "float32"),)


def test_the_shape_is_that_of_the_slice(reader: _Reads, shard: Path) -> None:
    slices = {"a": TensorSlice(dim=0, start=1, stop=3)}
    error = refused(reader, shard, TargetMismatchError, {"a": torch.zeros(4, 6)}, slices=slices)
    assert isinstance(error, TargetMismatchError)
    assert error.shapes == (("a", "[2, 6]", "[4, 6]"),)


@pytest.mark.parametrize("strided", [False, True])
def test_a_target_takes_what_slices_of_two_dimensions_have_in_common(
    reader: _Reads, shard: Path, strided: bool
) -> None:
    slices = {"a": (TensorSlice(dim=0, start=1, stop=3), TensorSlice(dim=1, start=2, stop=5))}
    target = torch.zeros(3, 2).T if strided else torch.zeros(2, 3)
    stats = reader.read_into([shard], {"a": target}, slices=slices)
    assert torch.equal(load_file(shard)["a"][1:3, 2:5], target)
    assert (stats.bytes_wanted, stats.bytes_read) == (24, 24)


def test_one_element_is_filled_whatever_the_strides_of_its_target(reader: _Reads, tmp_path: Path) -> None:
    """It counts as contiguous, and torch refuses a view of it in another dtype."""
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("F32", 1)})
    memory = torch.zeros(1, 2)
    reader.read_into([path], {"a": memory[:, 0]})
    assert torch.equal(load_file(path)["a"], memory[0, :1])
    assert memory[0, 1] == 0


def test_what_is_no_mapping_is_refused(reader: _Reads, shard: Path) -> None:
    wrong: Any = [("a", torch.zeros(4, 6))]
    with pytest.raises(TypeError, match="targets must be a mapping of tensor names to tensors, not list"):
        reader.read_into([shard], wrong)
    with pytest.raises(TypeError, match="slices must be a mapping of tensor names to TensorSlice, not list"):
        reader.read_into([shard], {"a": torch.zeros(4, 6)}, slices=wrong)


@pytest.mark.parametrize("target", [None, [0.0] * 24, "a", 3])
def test_what_is_no_tensor_is_refused(reader: _Reads, shard: Path, target: Any) -> None:
    assert "not a tensor" in str(refused(reader, shard, TypeError, {"a": target}))


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


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that they are a prototype
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


def test_a_tensor_without_memory_of_its_own_is_refused(reader: _Reads, shard: Path) -> None:
    for target, why in [
        (torch.empty(4, 6, device="meta"), "a meta tensor"),
        (torch.zeros(4, 6).to_sparse(), "layout torch.sparse_coo"),
        (Wrapped(torch.zeros(4, 6)), "not a plain tensor"),
        (nested(), "a nested tensor"),
        (released(), "has no memory"),
    ]:
        with pytest.raises(TypeError, match=why):
            reader.read_into([shard], {"a": target})


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
def test_a_target_whose_elements_share_memory_is_refused(reader: _Reads, shard: Path, target: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="elements that share memory"):
        reader.read_into([shard], {"a": target})
    assert int(target.count_nonzero()) == 0


def test_two_targets_in_one_memory_are_refused(reader: _Reads, shard: Path) -> None:
    tied, strided = torch.zeros(4, 6), torch.zeros(6, 4).t()
    base = torch.zeros(40)
    for one, other in [
        (tied, tied),
        (tied, tied.detach()),
        (strided, strided),
        (base[:24].view(4, 6), base[10:34].view(4, 6)),
        (base[:24].view(4, 6), base.view(4, 10)[:, 4:]),
        (base.view(4, 10)[:, :6], base.view(4, 10)[:, 4:]),
        (tied, tied.view(6, 4).t()),
    ]:
        error = refused(reader, shard, TargetMismatchError, {"a": one, "c": other})
        assert "'a' and 'c' share memory" in str(error) or "'c' and 'a' share memory" in str(error)


def test_a_target_in_memory_that_is_mapped_readonly_is_refused(reader: _Reads, shard: Path, tmp_path: Path) -> None:
    """To copy into it would end the process, and a read into it fail with an error that blames the file."""
    path = tmp_path / "memory"
    path.write_bytes(bytes(96))
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that it is not writable
        mapped = torch.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=torch.float32)
    for target in (mapped.view(4, 6), mapped.view(6, 4).t()):
        with pytest.raises(TypeError, match="target 'a' is in memory that is mapped read-only: give a copy"):
            reader.read_into([shard], {"a": target, "c": torch.zeros(4, 6)})


def test_neighbours_within_one_memory_are_not_the_same_memory(reader: _Reads, shard: Path) -> None:
    stacked = torch.zeros(8, 6)
    reader.read_into([shard], {"a": stacked[:4], "c": stacked[4:]})
    side_by_side = torch.zeros(4, 12)
    reader.read_into([shard], {"a": side_by_side[:, :6], "c": side_by_side[:, 6:]})
    alternating = torch.zeros(4, 12)
    reader.read_into([shard], {"a": alternating[:, ::2], "c": alternating[:, 1::2]})
    got = dict(reader.iter_weights([shard]))
    a, c = got["a"].view(torch.int32), got["c"].view(torch.int32)
    assert torch.cat([a, c]).equal(stacked.view(torch.int32))
    assert torch.cat([a, c], dim=1).equal(side_by_side.view(torch.int32))
    assert torch.stack([a, c], dim=2).view(4, 12).equal(alternating.view(torch.int32))


def test_targets_without_elements_share_nothing(reader: _Reads, tmp_path: Path) -> None:
    shard = write_tensors(tmp_path / "m.safetensors", {"e": ("F32", [0], b""), "f": tensor("F32", 4)})
    base = torch.zeros(4)
    assert reader.read_into([shard], {"e": base[2:2], "f": base}).tensors == 2


def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Of any dtype: torch cannot fill those of four bits."""
    return torch.zeros((*shape, dtype.itemsize), dtype=torch.uint8).view(dtype).view(shape)


def test_every_dtype_scalars_and_empty_tensors_are_read_into_targets(reader: _Reads, tmp_path: Path) -> None:
    written = {dtype: tensor(dtype, 4, 6, seed=dtype) for dtype in BITS}
    written |= {"scalar": tensor("F32"), "empty": ("F16", [3, 0], b"")}
    path = write_tensors(tmp_path / "m.safetensors", written)
    meta = reader.read_meta([path])
    targets = {n: zeros(getattr(torch, m.dtype), *m.stored_shape) for n, m in meta.items()}
    calls: list[ReadStats] = []
    stats = reader.read_into([path], targets, on_progress=calls.append)
    nbytes = sum(len(data) for _, _, data in written.values())
    assert {name: data for name, (_, _, data) in written.items()} == {name: bits(t) for name, t in targets.items()}
    assert ReadStats(tensors=len(written), bytes_wanted=nbytes, bytes_read=nbytes) == stats == calls[-1]
    assert sorted(each.bytes_read for each in calls) == [each.bytes_read for each in calls]


def test_in_file_order_as_many_targets_as_are_told_of_are_whole(reader: _Reads, tmp_path: Path) -> None:
    assert reader.info.order is Order.FILE_OFFSET
    sizes = {"first.safetensors": [3, 9 << 20, 70, 4096], "second.safetensors": [5, 1 << 20, *[33] * 100]}
    written = {f"{f[:-12]}.{n}": noise(size, n) for f, some in sizes.items() for n, size in enumerate(some)}
    paths = [
        write_tensors(tmp_path / f, {n: ("U8", [len(d)], d) for n, d in written.items() if n.startswith(f[:-11])})
        for f in sizes
    ]
    targets = {name: torch.zeros(len(data), dtype=torch.uint8) for name, data in written.items()}
    strided = {n: torch.zeros(len(d), 2, dtype=torch.uint8)[:, 0] for n, d in written.items() if len(d) == 1 << 20}
    targets |= strided
    checked = 0

    def check(stats: ReadStats) -> None:
        nonlocal checked
        for name in list(written)[checked : stats.tensors]:
            assert bits(targets[name].contiguous()) == written[name]
        checked = stats.tensors

    reader.read_into(paths, targets, on_progress=check)
    assert checked == len(written)


def test_large_unaligned_and_many_small_targets_hold_every_byte(reader: _Reads, tmp_path: Path) -> None:
    sizes = [3, 9 << 20, 70, (300 << 10) + 1, *[n % 7 for n in range(500)], 2 << 20]
    written = {f"t{n}": noise(size, n) for n, size in enumerate(sizes)}
    path = write_tensors(tmp_path / "m.safetensors", {n: ("U8", [len(data)], data) for n, data in written.items()})
    targets = {name: torch.full((len(data),), 7, dtype=torch.uint8) for name, data in written.items()}
    assert reader.read_into([path], targets).tensors == len(sizes)
    assert written == {name: bits(target) for name, target in targets.items()}


def test_strided_targets_are_filled_and_nothing_beside_them(reader: _Reads, tmp_path: Path) -> None:
    data = noise(3000 * 4096)
    path = write_tensors(tmp_path / "m.safetensors", {n: ("U8", [3000, 4096], data) for n in "ab"})
    memory = torch.zeros(3000, 4100, dtype=torch.uint8)
    turned = torch.zeros(4096, 3000, dtype=torch.uint8)
    reader.read_into([path], {"a": memory[:, 2:4098], "b": turned.t()})
    assert data == bits(memory[:, 2:4098]) == bits(turned.t())
    assert not memory[:, :2].any()
    assert not memory[:, 4098:].any()


@pytest.mark.parametrize("dim", [0, 1])
def test_slices_fill_their_targets(reader: _Reads, tmp_path: Path, dim: int) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("I32", 300, 500), "b": tensor("I32", 3)})
    part = TensorSlice(dim=dim, start=70, stop=200)
    whole = dict(reader.iter_weights([path]))["a"]
    expected = whole[70:200] if dim == 0 else whole[:, 70:200]
    target = torch.zeros(expected.shape, dtype=torch.int32)
    reader.read_into([path], {"a": target}, slices={"a": part})
    assert expected.equal(target)


def test_a_target_that_a_graph_holds_is_known_to_have_changed(reader: _Reads, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("F32", [4], noise(16)), "b": ("F32", [2, 2], noise(16))})
    for name, target in (("a", torch.full((4,), 3.0)), ("b", torch.full((2, 2), 3.0).t())):
        product = (torch.ones(target.shape, requires_grad=True) * target).sum()
        reader.read_into([path], {name: target})
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()  # type: ignore[no-untyped-call]


def test_parameters_and_inference_tensors_are_filled(reader: _Reads, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {n: tensor("F32", 2, 3, seed=n) for n in "abc"})
    expected = {name: bits(t) for name, t in reader.iter_weights([path])}
    with torch.inference_mode():
        inference = torch.zeros(3, 2).t()
    targets = {"a": torch.nn.Parameter(torch.zeros(2, 3)), "b": torch.nn.Parameter(torch.zeros(3, 2).t())}
    reader.read_into([path], {**targets, "c": inference})
    assert expected == {name: bits(t.detach()) for name, t in {**targets, "c": inference}.items()}


def test_a_lazily_conjugated_view_gets_the_values_rather_than_the_bytes(reader: _Reads, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("C64", [1], torch.tensor([1 + 2j]).numpy().tobytes())})
    target = torch.zeros(1, dtype=torch.complex64)
    reader.read_into([path], {"a": target.conj()})
    assert target.tolist() == [1 - 2j]


def test_an_error_of_the_progress_callback_is_the_callers(reader: _Reads, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1000)})
    with pytest.raises(ZeroDivisionError):
        reader.read_into([path], {"a": torch.zeros(1000, dtype=torch.uint8)}, on_progress=lambda stats: 1 // 0)
