# SPDX-License-Identifier: Apache-2.0
"""The right bytes, in the right order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from support.files import entry, floats, write_safetensors, write_tensors
from support.tensors import BITS, bits, contents, noise, tensor, write_shards

from weight_readers import Order, UnsupportedDtypeError, WeightReader
from weight_readers.reader import ReadStats
from weight_readers_safetensors import DTYPES

NAMES = [
    "",
    " ",
    "ß.weight",
    "重み",
    "a\tb",
    'quote"d',
    "back\\slash",
    "../up",
    "x" * 5000,
    "\N{PILE OF POO}",
    "__metadata",
]


def library(path: Path) -> dict[str, Any]:
    """What the safetensors library reads: the second oracle beside the bytes that were written."""
    with safe_open(path, framework="pt") as file:
        return contents((name, file.get_tensor(name)) for name in file.offset_keys())


def test_the_table_of_these_tests_is_complete() -> None:
    assert set(BITS) | {"F6_E2M3", "F6_E3M2"} == set(DTYPES)


def test_every_dtype_comes_out_bit_for_bit_as_the_library_gives_it(reader: WeightReader, tmp_path: Path) -> None:
    written = {
        f"{dtype}.{i}": tensor(dtype, *shape, seed=dtype)
        for dtype in BITS
        for i, shape in enumerate([[2, 4], [3, 8, 2]])
    }
    path = write_tensors(tmp_path / "m.safetensors", written)
    got = contents(reader.iter_weights([path]))
    assert {name: data for name, (_, _, data) in written.items()} == {name: data for name, (_, _, data) in got.items()}
    assert library(path) == got


@pytest.mark.parametrize("dtype", ["F6_E2M3", "F6_E3M2"])
def test_a_dtype_that_torch_lacks_is_refused_before_the_first_tensor(
    reader: WeightReader, tmp_path: Path, dtype: str
) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("F32", 2), "six": (dtype, [4], noise(3))})
    with pytest.raises(UnsupportedDtypeError) as caught:
        next(iter(reader.iter_weights([path])))
    assert (str(path), "six") == (caught.value.path, caught.value.tensor)
    assert [name for name, _ in reader.iter_weights([path], key_filter=lambda name: name != "six")] == ["a"]


def test_scalars_keep_their_shape(reader: WeightReader, tmp_path: Path) -> None:
    dtypes = sorted(set(BITS) - {"F4"})
    path = write_tensors(tmp_path / "m.safetensors", {dtype: tensor(dtype) for dtype in dtypes})
    got = contents(reader.iter_weights([path]))
    assert library(path) == got
    assert {()} == {shape for _, shape, _ in got.values()}


@pytest.mark.parametrize("shape", [[0], [0, 3], [3, 0], [2, 0, 4]])
def test_tensors_without_elements_stand_anywhere(reader: WeightReader, tmp_path: Path, shape: list[int]) -> None:
    nothing = ("F32", shape, b"")
    full = tensor("F32", 2)
    path = write_tensors(
        tmp_path / "m.safetensors", {"first": nothing, "a": full, "between": nothing, "b": full, "last": nothing}
    )
    got = contents(reader.iter_weights([path]))
    assert library(path) == got
    only = write_tensors(tmp_path / "only.safetensors", {"a": nothing, "b": ("I64", [0], b"")})
    assert library(only) == contents(reader.iter_weights([only]))


def test_a_tensor_without_elements_may_be_named_after_the_one_that_shares_its_offset(
    reader: WeightReader, tmp_path: Path
) -> None:
    header = {"b": entry("F32", [2], 8, 16), "a": entry("F32", [2], 0, 8), "z": entry("F32", [0], 8, 8)}
    path = write_safetensors(tmp_path / "m.safetensors", header, floats(1, 2, 3, 4))
    assert {name: t.tolist() for name, t in reader.iter_weights([path])} == {"a": [1, 2], "z": [], "b": [3, 4]}


def test_a_file_without_tensors_yields_nothing(reader: WeightReader, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {})
    assert list(reader.iter_weights([path])) == []


def test_names_are_any_text(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {name: tensor("U8", 3, seed=name) for name in NAMES})
    got = contents(reader.iter_weights([path]))
    assert list(got) == NAMES
    assert library(path) == got


def test_three_thousand_tensors(reader: WeightReader, tmp_path: Path) -> None:
    written = {f"layer.{i}": tensor("U8", i % 7, seed=i) for i in range(3000)}
    path = write_tensors(tmp_path / "m.safetensors", written)
    assert {name: data for name, (_, _, data) in written.items()} == {
        n: bits(t) for n, t in reader.iter_weights([path])
    }


def test_keys_in_another_order_than_their_offsets_come_by_offset(reader: WeightReader, tmp_path: Path) -> None:
    header = {"c": entry("U8", [1], 2, 3), "a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 1, 2)}
    path = write_safetensors(tmp_path / "m.safetensors", header, b"\1\2\3")
    expected = {Order.FILE_OFFSET: "abc", Order.HEADER: "cab"}
    got = {name: int(t) for name, t in reader.iter_weights([path])}
    assert got == {"a": 1, "b": 2, "c": 3}
    if reader.info.order in expected:
        assert expected[reader.info.order] == "".join(got)


@pytest.mark.parametrize("seed", range(3))
def test_shards_come_in_natural_order_whatever_order_they_are_given_in(
    reader: WeightReader, tmp_path: Path, seed: int
) -> None:
    shards = write_shards(tmp_path, 11)
    random.Random(seed).shuffle(shards)
    expected = [f"s{shard}.t{number}" for shard in range(1, 12) for number in range(2)]
    got = [name for name, _ in reader.iter_weights(shards)]
    assert expected == list(reader.read_meta(shards))
    assert expected == (sorted(got, key=expected.index) if reader.info.order is Order.COMPLETION else got)


def test_another_device_is_reached(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("BF16", 2, 3), "e": ("F32", [0], b"")})
    got = {name: (t.device.type, t.dtype, tuple(t.shape)) for name, t in reader.iter_weights([path], device="meta")}
    assert {"a": ("meta", torch.bfloat16, (2, 3)), "e": ("meta", torch.float32, (0,))} == got


def test_a_device_that_does_not_exist_is_refused(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1)})
    with pytest.raises(RuntimeError, match="warp"):
        next(iter(reader.iter_weights([path], device="warp")))


def test_progress_adds_up_and_ends_at_the_bytes_wanted(reader: WeightReader, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    calls: list[ReadStats] = []
    names = [name for name, _ in reader.iter_weights(shards, on_progress=calls.append)]
    assert {6 * 60} == {each.bytes_wanted for each in calls}
    assert sorted(each.bytes_read for each in calls) == [each.bytes_read for each in calls]
    assert (len(names), 6 * 60) == (calls[-1].tensors, calls[-1].bytes_read)


def test_progress_of_a_filter_counts_what_is_wanted(reader: WeightReader, tmp_path: Path) -> None:
    calls: list[ReadStats] = []
    list(reader.iter_weights(write_shards(tmp_path, 3), key_filter=lambda n: n == "s2.t1", on_progress=calls.append))
    assert [(each.tensors, each.bytes_wanted, each.bytes_read) for each in calls][-1:] == [(1, 60, 60)]
