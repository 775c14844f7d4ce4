# SPDX-License-Identifier: Apache-2.0
"""What a reader says of itself, and how little saying it costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.files import write_tensors
from support.tensors import tensor

import weight_readers
from weight_readers import ReaderInfo, WeightReader


def test_an_option_that_no_reader_has_is_refused(info: ReaderInfo) -> None:
    with pytest.raises(weight_readers.ReaderUnavailableError, match="has no option turbo"):
        weight_readers.select_weight_reader(requested=info.name, strict=True, options={"turbo": True})


def test_the_meta_says_what_is_yielded(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(
        tmp_path / "m.safetensors", {"a": tensor("F4", 2, 6), "b": tensor("BF16", 3), "c": tensor("F32")}, step="7"
    )
    meta = reader.read_meta([path])
    yielded = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in reader.iter_weights([path])}
    assert {name: (each.dtype, each.stored_shape) for name, each in meta.items()} == yielded
    assert [(each.name, each.source_dtype, each.shape) for each in meta.values()] == [
        ("a", "F4", (2, 6)),
        ("b", "BF16", (3,)),
        ("c", "F32", ()),
    ]
    assert [(str(path), path.stat().st_size, {"step": "7"})] == [
        (file.path, file.nbytes, dict(file.metadata)) for file in meta.files
    ]
