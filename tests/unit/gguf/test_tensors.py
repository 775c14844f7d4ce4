# SPDX-License-Identifier: Apache-2.0
"""How each tensor is delivered: packed, as its numbers, dequantized or not at all, with the reason."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from unit.gguf.gguf_bytes import array, front, info, padded, raw_pair, write_gguf

from weight_readers.errors import (
    CheckpointError,
    DuplicateTensorError,
    HeaderError,
    ShapeError,
    UnknownDtypeError,
    UnsupportedDtypeError,
)
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.tensors import Delivery, GGUFTensor
from weight_readers_gguf.types import BY_NAME, DEQUANTIZABLE

PLAIN = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
}
UNCOUNTED = {"Q1_0": (128, 18), "Q2_0": (64, 18)}
"""What gguf 0.19 does not have, as ggml's C code has it (test_types.py)."""


def sizes(name: str) -> tuple[int, int]:
    """Elements and bytes of a block, by the gguf package."""
    return UNCOUNTED.get(name) or gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def payload(name: str, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...], bytes]:
    block, nbytes = sizes(name)
    return BY_NAME[name].id, shape, bytes(math.prod(shape) // block * nbytes)


def delivered(folder: Path, tensors: dict[str, Any], metadata: dict[str, Any] | None = None) -> dict[str, GGUFTensor]:
    return dict(read_checkpoint([write_gguf(folder / "m.gguf", tensors, metadata)]).tensors)


def one(folder: Path, name: str, kind: str, shape: tuple[int, ...], orig_shape: Any = None) -> GGUFTensor:
    metadata = {} if orig_shape is None else {f"comfy.gguf.orig_shape.{name}": orig_shape}
    return delivered(folder, {name: payload(kind, shape)}, metadata)[name]


# Packed.


@pytest.mark.parametrize("kind", sorted(DEQUANTIZABLE))
def test_a_quantized_matrix_named_weight_is_packed(tmp_path: Path, kind: str) -> None:
    block, nbytes = sizes(kind)
    tensor = one(tmp_path, "blk.0.q.weight", kind, (3, 5 * block))
    assert (tensor.delivery, tensor.reason, tensor.parameter) == (Delivery.PACKED, None, "blk.0.q.qweight")
    assert ((3, 5 * nbytes), "uint8", 5 * nbytes, True) == (
        tensor.stored_shape,
        tensor.stored_dtype,
        tensor.row_bytes,
        tensor.is_packed,
    )
    assert ((3, 5 * block), kind, BY_NAME[kind].id) == (tensor.shape, tensor.type_name, tensor.type)


@pytest.mark.parametrize("kind", ["IQ4_NL", "IQ2_XXS"])
def test_no_type_needs_a_multiple_of_256_elements_beyond_its_block(tmp_path: Path, kind: str) -> None:
    tensor = one(tmp_path, "a.weight", kind, (1, sizes(kind)[0]))
    assert tensor.is_packed


def test_only_the_last_part_of_a_name_is_replaced(tmp_path: Path) -> None:
    assert one(tmp_path, "a.weight.b.weight", "Q8_0", (1, 32)).parameter == "a.weight.b.qweight"


def test_a_packed_matrix_without_rows_or_columns_is_packed(tmp_path: Path) -> None:
    shapes = {"a.weight": (0, 64), "b.weight": (4, 0)}
    tensors = delivered(tmp_path, {name: payload("Q8_0", shape) for name, shape in shapes.items()})
    assert [tensor.stored_shape for tensor in tensors.values()] == [(0, 68), (4, 0)]


# Plain.


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 5, 7, 1)])
def test_numbers_are_delivered_as_they_are_at_any_rank(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    tensor = one(tmp_path, "a.weight", kind, shape)
    assert (Delivery.PLAIN, PLAIN[kind], None) == (tensor.delivery, tensor.stored_dtype, tensor.reason)
    assert (shape, shape, "a.weight") == (tensor.shape, tensor.stored_shape, tensor.parameter)
    assert tensor.row_bytes is None


# Dequantized.


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("norm.weight", (64,), "1-D"),
        ("experts.weight", (2, 3, 64), "3-D"),
        ("conv.weight", (2, 3, 4, 32), "4-D"),
        ("a.bias", (1, 32), "not named *.weight"),
        ("scale_shift_table", (6, 64), "not named *.weight"),
        ("weight", (6, 64), "not named *.weight"),
    ],
)
def test_a_quantized_tensor_that_no_layer_takes_packed_is_dequantized(
    tmp_path: Path, name: str, shape: tuple[int, ...], said: str
) -> None:
    tensor = one(tmp_path, name, "Q8_0", shape)
    assert (tensor.delivery, str(tensor.reason).startswith(said)) == (Delivery.DEQUANTIZED, True)
    assert ("float32", shape, name) == (tensor.stored_dtype, tensor.stored_shape, tensor.parameter)


# Original shapes.

INTEGERS = ["UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64"]


@pytest.mark.parametrize("kind", INTEGERS)
def test_an_original_shape_of_whole_blocks_stays_packed_in_its_own_rows(tmp_path: Path, kind: str) -> None:
    tensor = one(tmp_path, "a.weight", "Q8_0", (3, 256), (kind, [8, 96]))
    assert (tensor.delivery, tensor.shape, tensor.stored_shape) == (Delivery.PACKED, (8, 96), (8, 102))
    assert tensor.nbytes == 8 * 102


def test_an_original_shape_of_rows_that_cut_blocks_is_dequantized(tmp_path: Path) -> None:
    tensor = one(tmp_path, "a.weight", "Q4_K", (6, 256), ("INT32", [16, 96]))
    assert (tensor.delivery, tensor.shape, tensor.stored_shape) == (Delivery.DEQUANTIZED, (16, 96), (16, 96))
    assert tensor.reason == "a row of 96 elements is no whole number of Q4_K blocks of 256"


@pytest.mark.parametrize("shape", [[1536], [16, 96], [4, 4, 96], [2, 2, 4, 96], [1, 2, 2, 4, 96]])
def test_an_original_shape_may_have_1_to_5_dimensions(tmp_path: Path, shape: list[int]) -> None:
    for kind in ("Q4_K", "BF16"):
        assert one(tmp_path, "a", kind, (6, 256), ("INT32", shape)).shape == tuple(shape)


def test_an_original_shape_without_elements_is_that_of_an_empty_tensor(tmp_path: Path) -> None:
    assert one(tmp_path, "a", "F32", (0,), ("INT32", [4, 0])).shape == (4, 0)


def fault(folder: Path, orig_shape: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        one(folder, "a.weight", "Q8_0", (3, 256), orig_shape)
    assert caught.value.tensor == "a.weight"
    return caught.value


@pytest.mark.parametrize("shape", [[8, 95], [768, 0], [-8, -96], [8, -96], [2**62, 2**62]])
def test_an_original_shape_that_is_none_of_the_tensor_is_refused(tmp_path: Path, shape: list[int]) -> None:
    error = fault(tmp_path, ("INT64", shape))
    assert (ShapeError, True, shape) == (type(error), "[3, 256]" in str(error.expected), error.found)


@pytest.mark.parametrize("shape", [[], [1, 1, 1, 1, 8, 96], [1] * 5000])
def test_an_original_shape_of_no_or_too_many_dimensions_is_refused_with_their_number(
    tmp_path: Path, shape: list[int]
) -> None:
    error = fault(tmp_path, ("INT64", shape))
    assert (ShapeError, f"{len(shape)} sizes") == (type(error), error.found)
    assert f"has {len(shape)} dimensions, not 1 to 5" in error.what


@pytest.mark.parametrize(
    "shape", [[2**63, 0], [2**64 - 1, 0], [0, 2**60], [2**62, 4, 0], [2**40, 2**40, 0], [2**30, 0, 2**30]]
)
def test_an_original_shape_without_elements_that_torch_cannot_make_is_refused(tmp_path: Path, shape: list[int]) -> None:
    with pytest.raises(ShapeError, match="no tensor can have") as caught:
        one(tmp_path, "a.weight", "F32", (2, 0), ("UINT64", shape))
    assert ("a.weight", shape) == (caught.value.tensor, caught.value.found)


@pytest.mark.parametrize("shape", [[2**59, 0], [0, 2**59], [2**30, 0, 2**29]])
def test_an_original_shape_without_elements_that_torch_can_make_is_read(tmp_path: Path, shape: list[int]) -> None:
    assert one(tmp_path, "a.weight", "F64", (2, 0), ("UINT64", shape)).shape == tuple(shape)
    assert torch.empty(shape, dtype=torch.float64).shape == tuple(shape)


def test_of_an_endless_original_shape_nothing_is_decoded(tmp_path: Path) -> None:
    count = 1 << 23
    content = front(1, 1) + raw_pair("comfy.gguf.orig_shape.a", 9, array(0, count, bytes(count)))
    (tmp_path / "m.gguf").write_bytes(padded(content + info("a", (32,), 0, 0)) + bytes(128))
    tracemalloc.start()
    with pytest.raises(ShapeError, match=f"has {count} dimensions"):
        read_checkpoint([tmp_path / "m.gguf"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < count // 2


@pytest.mark.parametrize("value", [768, "768", [8.0, 96.0], ["8", "96"], [[8, 96]], [True, True]])
def test_an_original_shape_that_is_no_array_of_integers_is_refused(tmp_path: Path, value: Any) -> None:
    error = fault(tmp_path, value)
    assert (HeaderError, "an array of integers") == (type(error), error.expected)


# Refused.


def refused(tensor: GGUFTensor) -> CheckpointError:
    error = tensor.refusal()
    assert (Delivery.REFUSED, tensor.name, tensor.parameter) == (tensor.delivery, tensor.parameter, tensor.name)
    assert error is not None
    assert (tensor.file, tensor.name, True) == (error.path, error.tensor, str(tensor.reason) in str(error))
    return error


@pytest.mark.parametrize("type_id", [43, 99, 200])
def test_an_unknown_type_is_refused_naming_its_id_and_the_known_ones(tmp_path: Path, type_id: int) -> None:
    tensors = delivered(tmp_path, {"a.weight": (type_id, (2, 32), bytes(99)), "b": payload("F32", (2,))})
    error = refused(tensors["a.weight"])
    assert (UnknownDtypeError, f"type {type_id}") == (type(error), tensors["a.weight"].type_name)
    assert f"type {type_id} is unknown" in str(error)
    assert "12 Q4_K" in str(error)
    assert "corrupt" not in str(error)
    assert tensors["b"].delivery is Delivery.PLAIN


@pytest.mark.parametrize(("type_id", "name"), [(4, "Q4_2"), (31, "Q4_0_4_4"), (33, "Q4_0_8_8"), (36, "IQ4_NL_4_4")])
def test_a_removed_type_is_refused_by_its_old_name(tmp_path: Path, type_id: int, name: str) -> None:
    error = refused(delivered(tmp_path, {"a.weight": (type_id, (2, 32), bytes(36))})["a.weight"])
    assert (UnknownDtypeError, True) == (type(error), f"{name} (type {type_id}) was removed" in str(error))
    assert "quantize the model anew" in str(error)


@pytest.mark.parametrize(("kind", "block", "nbytes"), [("Q8_1", 32, 36), ("Q8_K", 256, 292)])
def test_formats_of_activations_are_refused(tmp_path: Path, kind: str, block: int, nbytes: int) -> None:
    tensor = delivered(tmp_path, {"a.weight": (BY_NAME[kind].id, (2, block), bytes(2 * nbytes))})["a.weight"]
    error = refused(tensor)
    assert (UnsupportedDtypeError, True) == (type(error), "a format of activations" in str(error))


@pytest.mark.parametrize("sidecar", ["q.scale", "q.input_scale", "q.weight.scale"])
def test_nvfp4_with_a_factor_beside_it_is_refused_rather_than_delivered_without(tmp_path: Path, sidecar: str) -> None:
    tensors = {
        "q.weight": payload("NVFP4", (2, 64)),
        sidecar: payload("F32", (1,)),
        "k.weight": payload("NVFP4", (2, 64)),
    }
    found = delivered(tmp_path, tensors)
    assert repr(sidecar) in str(refused(found["q.weight"]))
    assert [found[sidecar].delivery, found["k.weight"].delivery] == [Delivery.PLAIN, Delivery.PACKED]


@pytest.mark.parametrize("first", [0, 1])
def test_so_it_is_with_its_factor_in_another_file_of_the_set(tmp_path: Path, first: int) -> None:
    held = [{"q.weight": payload("NVFP4", (2, 64))}, {"q.scale": payload("F32", (1,))}]
    files = [
        write_gguf(
            tmp_path / f"m-{number + 1:05d}-of-00002.gguf",
            held[number ^ first],
            {"split.no": ("UINT16", number), "split.count": ("UINT16", 2)},
        )
        for number in range(2)
    ]
    assert "'q.scale'" in str(refused(read_checkpoint(files).tensors["q.weight"]))


def test_a_factor_beside_another_type_refuses_nothing(tmp_path: Path) -> None:
    tensors = {"q.weight": payload("Q8_0", (2, 64)), "q.scale": payload("F32", (1,))}
    assert all(tensor.refusal() is None for tensor in delivered(tmp_path, tensors).values())


# Names.


def test_a_tensor_of_the_name_of_packed_blocks_is_a_duplicate(tmp_path: Path) -> None:
    tensors = {"a.weight": payload("Q8_0", (2, 64)), "a.qweight": payload("I8", (2, 68))}
    with pytest.raises(DuplicateTensorError, match=r"delivered as 'a\.qweight'") as caught:
        delivered(tmp_path, tensors)
    assert caught.value.tensor == "a.weight"


def test_a_tensor_of_that_name_in_another_file_is_one_too(tmp_path: Path) -> None:
    files = [
        write_gguf(tmp_path / "1.gguf", {"a.weight": payload("Q8_0", (2, 64))}),
        write_gguf(tmp_path / "2.gguf", {"a.qweight": payload("I8", (2, 68))}),
    ]
    with pytest.raises(DuplicateTensorError, match=r"2\.gguf has a tensor of that name"):
        read_checkpoint(files)


def test_a_flood_of_such_names_and_of_bad_original_shapes_is_cut_and_counted(tmp_path: Path) -> None:
    blocks = {f"{i}.weight": payload("Q8_0", (1, 32)) for i in range(250)}
    names = blocks | {f"{i}.qweight": payload("I8", (1,)) for i in range(250)}
    shapes = {f"comfy.gguf.orig_shape.{i}.weight": [5, 7] for i in range(250)}
    for tensors, metadata in ((names, {}), (blocks, shapes)):
        with pytest.raises(CheckpointError) as caught:
            delivered(tmp_path, tensors, metadata)
        *first, last = caught.value.problems
        assert ([f"{i}.weight" for i in range(100)], True) == (
            [each.tensor for each in first],
            str(last).startswith("150 more problems, which are not listed"),
        )


def test_that_name_beside_a_tensor_that_is_not_packed_is_its_own(tmp_path: Path) -> None:
    tensors = {"a.weight": payload("F32", (2, 64)), "a.qweight": payload("I8", (2, 68))}
    assert len(delivered(tmp_path, tensors)) == 2


# As the loader lists them.


def test_the_listing_of_a_tensor_says_what_is_delivered_and_where_its_bytes_lie(tmp_path: Path) -> None:
    meta = one(tmp_path, "a.weight", "Q4_0", (4, 64)).meta()
    assert (meta.name, meta.dtype, meta.source_dtype, meta.ggml_type) == ("a.weight", "uint8", "Q4_0", 2)
    assert (meta.shape, meta.stored_shape, meta.nbytes) == ((4, 64), (4, 36), 144)
    assert (tmp_path / "m.gguf").read_bytes()[meta.offset :] == bytes(160)
