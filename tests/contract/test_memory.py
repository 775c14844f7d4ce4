# SPDX-License-Identifier: Apache-2.0
"""Alignment, lifetime, and what a write does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.files import entry, write_safetensors, write_tensors
from support.tensors import bits, tensor

from weight_readers import Alignment, Feature, WeightReader, Writes
from weight_readers.reader import ReadStats

if TYPE_CHECKING:
    from conftest import Choice

UNALIGNED = {
    "F32 after three bytes": ({"odd": tensor("U8", 3), "x": tensor("F32", 4)}, True),
    "BF16 at an odd address": ({"odd": tensor("U8", 1), "x": tensor("BF16", 5)}, True),
    "F64 at 4 modulo 8": ({"odd": tensor("F32", 1), "x": tensor("F64", 3)}, True),
    "a header without padding": ({"x": tensor("F32", 4), "odd": tensor("U8", 3)}, False),
}


@pytest.fixture(params=UNALIGNED.values(), ids=UNALIGNED)
def unaligned(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A file whose tensor ``x`` does not begin at a multiple of its element size."""
    tensors, pad = request.param
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = entry(dtype, shape, len(body), len(body) + len(data))
        body += data
    if not pad:
        header["__metadata__"] = {"": " " * next(n for n in range(8) if _header_bytes(header, n) % 4 == 1)}
    path = write_safetensors(tmp_path / "m.safetensors", header, body, pad=pad)
    return path, {name: data for name, (_, _, data) in tensors.items()}


def _header_bytes(header: dict[str, object], blanks: int) -> int:
    return len(json.dumps({**header, "__metadata__": {"": " " * blanks}}, separators=(",", ":")))


def test_unaligned_tensors_have_the_right_values_and_an_aligned_address(
    reader: WeightReader, unaligned: tuple[Path, dict[str, bytes]]
) -> None:
    path, written = unaligned
    meta = reader.read_meta([path])["x"]
    kept = dict(reader.iter_weights([path]))
    assert meta.offset % kept["x"].dtype.itemsize, "the test's own file is aligned"
    assert written == {name: bits(values) for name, values in kept.items()}
    if reader.info.alignment is Alignment.NATURAL:
        assert [name for name, values in kept.items() if values.data_ptr() % values.dtype.itemsize] == []


def test_unaligned_tensors_are_counted_as_copied_where_views_were_promised(
    reader: WeightReader, unaligned: tuple[Path, dict[str, bytes]]
) -> None:
    path, _ = unaligned
    calls: list[ReadStats] = []
    list(reader.iter_weights([path], on_progress=calls.append))
    copies = Feature.FILE_MAPPING in reader.info.features and reader.info.alignment is Alignment.NATURAL
    assert int(copies) == calls[-1].copied


def test_two_passes_do_not_share_what_is_written(reader: WeightReader, tmp_path: Path) -> None:
    if reader.info.writes is Writes.READ_ONLY:
        pytest.skip("read-only tensors")
    path = write_tensors(tmp_path / "m.safetensors", {"x": ("F32", [4], bytes(16))})
    first, second = (dict(reader.iter_weights([path]))["x"] for _ in range(2))
    first.add_(1)
    assert (first.tolist(), second.tolist()) == ([1.0] * 4, [0.0] * 4)


def test_the_declared_writes_match_the_mode(choice: Choice, reader: WeightReader) -> None:
    assert bool(choice.options.get("readonly")) == (reader.info.writes is Writes.READ_ONLY)
