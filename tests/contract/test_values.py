# SPDX-License-Identifier: Apache-2.0
"""The right bytes, in the right order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from support.files import entry, floats, write_safetensors, write_tensors
from support.tensors import BITS, contents, noise, tensor

from weight_readers import Order, UnsupportedDtypeError, WeightReader
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


def test_keys_in_another_order_than_their_offsets_come_by_offset(reader: WeightReader, tmp_path: Path) -> None:
    header = {"c": entry("U8", [1], 2, 3), "a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 1, 2)}
    path = write_safetensors(tmp_path / "m.safetensors", header, b"\1\2\3")
    expected = {Order.FILE_OFFSET: "abc", Order.HEADER: "cab"}
    got = {name: int(t) for name, t in reader.iter_weights([path])}
    assert got == {"a": 1, "b": 2, "c": 3}
    if reader.info.order in expected:
        assert expected[reader.info.order] == "".join(got)
