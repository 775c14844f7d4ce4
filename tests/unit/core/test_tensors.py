# SPDX-License-Identifier: Apache-2.0
"""Many tensors as columns: the mapping that it is, and the questions that are answered without an object each."""

from __future__ import annotations

import copy
import pickle

import pytest

from weight_readers import CheckpointMeta, FileMeta, TensorMeta
from weight_readers.tensors import TensorKind, TensorTable

ROW = TensorKind("bfloat16", "BF16", (2, 3), (2, 3), 12)
PAIRS = TensorKind("float4_e2m1fn_x2", "F4", (4,), (2,), 2)
TABLE = TensorTable.of_columns(["b", "a", "c"], [ROW, PAIRS, ROW], ["2", "1", "2"], [8, 80, 20])


def meta(name: str, kind: TensorKind, file: str, offset: int) -> TensorMeta:
    return TensorMeta(name=name, file=file, offset=offset, **kind._asdict())


METAS = {"b": meta("b", ROW, "2", 8), "a": meta("a", PAIRS, "1", 80), "c": meta("c", ROW, "2", 20)}
PACKED = TensorMeta(
    name="q", dtype="uint8", source_dtype="Q4_K", shape=(1, 256), stored_shape=(1, 144), nbytes=144, file="1", offset=0,
    ggml_type=12, parameter="q.qweight",
)  # fmt: skip


def test_a_table_is_equal_to_the_dict_of_its_items_and_in_its_order() -> None:
    assert METAS == TABLE
    assert TABLE == METAS
    assert TensorTable(METAS) == TABLE
    assert [*METAS] == [*TABLE]
    assert [*METAS.items()] == [*TABLE.items()]
    assert [*METAS.values()] == [*TABLE.values()]
    assert {**METAS, "b": METAS["a"]} != TABLE


def test_a_tensor_is_made_as_its_constructor_makes_it() -> None:
    assert METAS["a"] == TABLE["a"]
    assert hash(METAS["a"]) == hash(TABLE["a"])
    assert METAS["a"].to_json() == TABLE["a"].to_json()
    assert (TABLE["a"].ggml_type, TABLE["a"].target) == (None, "a")


def test_a_name_that_is_not_there_is_missing() -> None:
    assert ("a" in TABLE, "x" in TABLE, TABLE.get("x"), len(TABLE)) == (True, False, None, 3)
    with pytest.raises(KeyError, match="x"):
        TABLE["x"]


def test_tensors_given_whole_are_kept_whole() -> None:
    table = TensorTable({"q": PACKED, **METAS})
    assert table["q"] is PACKED
    assert [*table.values()] == [PACKED, *METAS.values()]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))])
def test_copies_and_pickles_are_equal(again: object) -> None:
    files = [FileMeta(path=path, format="safetensors", nbytes=99, header_bytes=8) for path in "12"]
    assert callable(again)
    assert again(TABLE) == METAS
    found = again(CheckpointMeta(TABLE, files))
    assert (CheckpointMeta, METAS, tuple(files)) == (type(found), dict(found), found.files)


def test_parts_keep_the_order_that_is_asked_for() -> None:
    assert [("c", METAS["c"]), ("b", METAS["b"])] == [*TABLE.only(["c", "b"]).items()]
    asked: list[str] = []
    assert {"a": METAS["a"]} == TABLE.where(lambda name: asked.append(name) or name == "a")
    assert [*METAS] == asked
    assert [*METAS] == [*TensorTable.joined([TABLE.only("b"), TABLE.only("ac")])]


def test_tensors_are_told_apart_by_file_also_where_files_alternate() -> None:
    expected = {"2": {"b": METAS["b"], "c": METAS["c"]}, "1": {"a": METAS["a"]}}
    assert expected == TABLE.by_file()
    assert [*TABLE.by_file()] == ["2", "1"]


def test_sums_and_kinds_are_those_of_the_tensors() -> None:
    table = TensorTable.joined([TABLE, TensorTable({"q": PACKED})])
    assert table.nbytes == 12 + 2 + 12 + 144
    assert {(ROW, 2), (PAIRS, 1), (PACKED, 1)} == set(table.kind_counts)
    assert (table.path_of("a"), table.kind_of("a")) == ("1", PAIRS)
    assert (TensorTable({}).nbytes, [*TensorTable({}).kind_counts]) == (0, [])
