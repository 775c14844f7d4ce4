# SPDX-License-Identifier: Apache-2.0
"""What a reader says of itself, and how little saying it costs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from support.files import write_tensors
from support.measure import output_of
from support.tensors import tensor

import weight_readers
from weight_readers import Feature, Lifetime, ReaderInfo, WeightReader

LIGHT = """
import importlib_metadata, sys, weight_readers
points = importlib_metadata.entry_points(group="weight_readers", name=sys.argv[1])
before = set(sys.modules)
points[sys.argv[1]].load()
added = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(sorted(added))
"""


def test_importing_the_hook_module_adds_only_the_plugin_itself(info: ReaderInfo) -> None:
    added = output_of(LIGHT, info.name)
    package = output_of(
        "import importlib_metadata, sys\n"
        "print(importlib_metadata.entry_points(group='weight_readers')[sys.argv[1]].value.partition('.')[0])",
        info.name,
    )
    assert str([package]) == added


def test_describing_a_reader_imports_no_torch(info: ReaderInfo) -> None:
    source = "import sys, weight_readers\nweight_readers.describe_reader(sys.argv[1])\nprint('torch' in sys.modules)"
    assert output_of(source, info.name) == "False"


def test_the_declaration_goes_through_json_and_pickle(info: ReaderInfo, reader: WeightReader) -> None:
    for declared in (info, reader.info):
        assert declared == ReaderInfo.from_json(json.loads(json.dumps(declared.to_json())))
        assert declared == pickle.loads(pickle.dumps(declared))


def test_a_made_reader_keeps_the_protocol_and_its_name(reader: WeightReader) -> None:
    assert isinstance(reader, WeightReader)
    assert reader.selection is not None
    assert reader.selection.chosen == reader.info.name


def test_mapped_and_owned_are_declared_in_one_sense(reader: WeightReader) -> None:
    assert (reader.info.lifetime is Lifetime.MAPPED) == (Feature.FILE_MAPPING in reader.info.features)


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


def test_the_meta_belongs_to_the_caller(reader: WeightReader, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"a": tensor("U8", 1), "b": tensor("U8", 1)})
    reader.read_meta([path]).clear()
    assert ["a", "b"] == list(reader.read_meta([path])) == [name for name, _ in reader.iter_weights([path])]
