# SPDX-License-Identifier: Apache-2.0
"""What the reader yields, beside what torch.load(weights_only=True) makes of the same file."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.measure import check_cached, evict, mapped_bytes, nothing_left_open, pages_spanned
from support.tensors import bits, contents, digest
from unit.pt.torch_files import Bomb, newer, save, tensors

from weight_readers import (
    Feature,
    FileChangedError,
    Lifetime,
    MissingTensorError,
    ReadStats,
    TensorSlice,
    UnsafePickleError,
    Writes,
)
from weight_readers_pt.reader import PtReader

MODES: tuple[dict[str, Any], ...] = (
    {},
    {"readonly": True},
    {"copy": True},
    {"prefetch": 2},
    {"copy": True, "prefetch": 2},
)
modes = pytest.mark.parametrize("options", MODES, ids=str)


@pytest.fixture(params=[False, True], ids=["zip", "legacy"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(tmp_path / "x.bin", tensors(), legacy=request.param)


def by_torch(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in torch.load(path, weights_only=True).items()}


@modes
def test_every_tensor_is_that_of_torch_with_its_strides(path: Path, options: dict[str, Any]) -> None:
    with nothing_left_open():
        found = dict(PtReader(**options).iter_weights([path]))
        expected = by_torch(path)
        assert set(expected) == set(found)
        for name, tensor in expected.items():
            assert contents([(name, tensor)]) == contents([(name, found[name])])
            assert tensor.stride() == found[name].stride() or tensor.is_contiguous(), name
            assert not found[name].requires_grad
        del found


@modes
def test_dtypes_of_untyped_storages_are_read_too(tmp_path: Path, options: dict[str, Any]) -> None:
    path = save(tmp_path / "x.pt", newer())
    assert contents(by_torch(path).items()) == contents(PtReader(**options).iter_weights([path]))


@modes
def test_tensors_come_by_offset_and_files_in_natural_order(tmp_path: Path, options: dict[str, Any]) -> None:
    paths = [save(tmp_path / f"m-{i}.bin", {f"{i}.{j}": torch.ones(3) for j in range(3)}) for i in (10, 2, 1)]
    reader = PtReader(**options)
    meta = reader.read_meta(paths)
    names = [name for name, _ in reader.iter_weights(paths)]
    assert [name.split(".")[0] for name in names] == ["1"] * 3 + ["2"] * 3 + ["10"] * 3
    for file in meta.files:
        offsets = [meta[name].offset for name in names if meta[name].file == file.path]
        assert offsets == sorted(offsets)


@modes
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_slice_of_any_tensor_is_that_of_torch(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "slices.bin"
    if not path.exists():
        save(path, tensors())
    whole = by_torch(path)
    name = data.draw(st.sampled_from([name for name, tensor in whole.items() if tensor.dim()]))
    bound = st.none() | st.integers(-6, 6)
    dims = st.integers(0, whole[name].dim() - 1)
    cuts = data.draw(st.dictionaries(dims, st.tuples(bound, bound), min_size=1, max_size=3))
    slices = tuple(TensorSlice(dim=dim, start=start, stop=stop) for dim, (start, stop) in cuts.items())
    part = slices[0] if len(slices) == 1 else slices
    expected = whole[name][tuple(slice(*cuts.get(dim, (None, None))) for dim in range(whole[name].dim()))]
    found = dict(PtReader(**options).iter_weights([path], key_filter=name.__eq__, slices={name: part}))
    assert (expected.dtype, expected.shape) == (found[name].dtype, found[name].shape)
    assert torch.equal(expected, found[name])


def test_a_slice_of_one_name_leaves_the_other_names_of_the_tensor_whole(tmp_path: Path) -> None:
    tied = torch.arange(10.0)
    path = save(tmp_path / "x.bin", {"a": tied, "b": tied})
    found = dict(PtReader().iter_weights([path], slices={"a": TensorSlice(dim=0, start=4)}))
    assert (found["a"].tolist(), found["b"].tolist()) == (tied[4:].tolist(), tied.tolist())


def test_tied_tensors_share_memory_as_views_and_not_as_copies(tmp_path: Path) -> None:
    # Larger than one mapping of many small tensors: the names of one tensor stay in one mapping all the same.
    tied = torch.zeros((64 << 20) // 4 + 7)
    path = save(tmp_path / "x.bin", {"embed": tied, "head": tied})
    views, copies = (dict(PtReader(copy=copy).iter_weights([path])) for copy in (False, True))
    views["embed"][0] = 7
    assert views["head"][0] == 7
    copies["embed"][0] = 7
    assert copies["head"][0] == 0


def test_views_are_copied_on_write_and_the_file_stays(path: Path) -> None:
    before = digest(path)
    for _, tensor in PtReader().iter_weights([path]):
        if tensor.is_contiguous() and tensor.numel():
            tensor.zero_()
    assert digest(path) == before


def test_only_the_pages_of_a_view_are_mapped_of_a_large_storage(tmp_path: Path) -> None:
    path = save(tmp_path / "x.bin", {"view": torch.zeros(1_000_000)[:10]})
    found = dict(PtReader().iter_weights([path]))
    assert mapped_bytes(path) <= 8192
    assert found["view"].tolist() == [0.0] * 10


@modes
def test_a_filter_reads_the_pages_of_what_it_takes_and_no_others(tmp_path: Path, options: dict[str, Any]) -> None:
    path = save(tmp_path / "x.bin", {f"w{i}": torch.full((1 << 16,), float(i)) for i in range(16)})
    reader = PtReader(**options)
    meta = reader.read_meta([path])
    evict(path)
    (pair,) = reader.iter_weights([path], key_filter="w7".__eq__)
    assert pair[1].sum() == 7 * (1 << 16)
    check_cached(path, pages_spanned(meta["w7"].offset, meta["w7"].offset + meta["w7"].nbytes))


def test_progress_ends_at_what_was_wanted(path: Path) -> None:
    seen: list[ReadStats] = []
    count = len(list(PtReader().iter_weights([path], on_progress=seen.append)))
    assert [stats.tensors for stats in seen] == list(range(1, count + 1))
    assert seen[-1].bytes_read == seen[-1].bytes_wanted > 0


def test_unaligned_tensors_of_the_old_format_are_copied_and_counted(tmp_path: Path) -> None:
    odd = {f"w{i}": torch.ones(3, dtype=torch.uint8) for i in range(3)}
    path = save(tmp_path / "x.bin", odd | {"f": torch.ones(8)}, legacy=True)
    reader = PtReader()
    offset = reader.read_meta([path])["f"].offset
    seen: list[ReadStats] = []
    found = dict(reader.iter_weights([path], on_progress=seen.append))
    assert seen[-1].copied == int(offset % 4 != 0)
    assert found["f"].data_ptr() % 4 == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_are_on_the_device_with_their_strides(path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # meta, which callers are refused, stands for a device that this machine lacks.
    for module in ("weight_readers_files.passes", "weight_readers_pt.reader"):
        monkeypatch.setattr(f"{module}.placement", torch.device)
    expected = by_torch(path)
    for name, tensor in PtReader().iter_weights([path], device=device):
        assert (tensor.device.type, tuple(tensor.shape)) == (device, tuple(expected[name].shape))


def test_what_is_declared_follows_the_options() -> None:
    assert PtReader().info.lifetime is Lifetime.MAPPED
    assert PtReader(readonly=True).info.writes is Writes.READ_ONLY
    copying = PtReader(copy=True).info
    assert (copying.lifetime, copying.writes) == (Lifetime.OWNED, Writes.OWN)
    assert Feature.FILE_MAPPING not in copying.features


def test_a_file_that_changes_is_refused(path: Path) -> None:
    reader = PtReader()
    stream = reader.iter_weights([path])
    next(stream)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileChangedError, match=r"x\.bin"):
        list(stream)


def test_a_tensor_outlives_its_file_and_its_reader(path: Path) -> None:
    found = dict(PtReader().iter_weights([path]))
    path.unlink()
    assert found["whole"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()


def test_bad_arguments_name_themselves(path: Path) -> None:
    with pytest.raises(ValueError, match="option 'prefetch' of reader 'pt'"):
        PtReader(prefetch=65)
    with pytest.raises(MissingTensorError):
        list(PtReader().iter_weights([path], slices={"nobody": TensorSlice(dim=0)}))
    with pytest.raises(IndexError, match=r"x\.bin, tensor 'whole'"):
        list(PtReader().iter_weights([path], slices={"whole": TensorSlice(dim=2)}))
    with pytest.raises(TypeError, match="not the single path"):
        PtReader().read_meta(str(path))


def test_a_file_that_becomes_hostile_between_two_reads_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "x.bin", {"w": torch.ones(1)})
    reader = PtReader()
    assert list(reader.read_meta([path])) == ["w"]
    save(tmp_path / "y.bin", {"w": torch.ones(1), "x": Bomb(tmp_path / "marker")}).replace(path)
    with pytest.raises(UnsafePickleError):
        list(reader.iter_weights([path]))
    assert not (tmp_path / "marker").exists()


def test_reading_warns_of_nothing(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(bits(tensor) is not None for _, tensor in PtReader().iter_weights([path]))
