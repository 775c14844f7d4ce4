# SPDX-License-Identifier: Apache-2.0
"""What reader `gguf` yields: bytes as they lie in the file, numbers on request, and only what was asked for."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.measure import output_of
from unit.gguf.gguf_bytes import write_gguf

import weight_readers
from weight_readers import FileChangedError, ReadStats, SliceError, TensorSlice, UnknownDtypeError, WeightReader
from weight_readers_gguf.types import BY_NAME

F32, F16, BF16, I64 = 0, 1, 30, 27


def packed(kind: str, rows: int, columns: int, seed: int = 0) -> tuple[int, tuple[int, int], bytes]:
    """Random numbers, quantized by the gguf package, or random bytes where it cannot quantize."""
    each = BY_NAME[kind]
    rng = np.random.default_rng(seed)
    try:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        data = gguf.quantize(values, gguf.GGMLQuantizationType(each.id))
    except NotImplementedError:
        data = rng.integers(0, 60, (rows, columns // each.block * each.nbytes), dtype=np.uint8)
    return each.id, (rows, columns), data.tobytes()


def by_gguf(kind: str, tensor: tuple[int, tuple[int, int], bytes]) -> torch.Tensor:
    _, (rows, _), data = tensor
    blocks = np.frombuffer(data, np.uint8).reshape(rows, -1)
    return torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType(BY_NAME[kind].id)).copy())


def reader(**options: Any) -> WeightReader:
    return weight_readers.select_weight_reader(requested="gguf", strict=True, options=options)


def read(path: Path, *, options: dict[str, Any] | None = None, **keywords: Any) -> dict[str, torch.Tensor]:
    return dict(reader(**(options or {})).iter_weights([path], **keywords))


@pytest.fixture
def q4k() -> tuple[int, tuple[int, int], bytes]:
    return packed("Q4_K", 6, 512)


def test_packed_weights_are_the_bytes_of_the_file_a_row_to_a_row(tmp_path: Path, q4k: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    (name, tensor), *rest = read(path).items()
    assert rest == []
    assert (name, tensor.dtype, tuple(tensor.shape)) == ("a.weight", torch.uint8, (6, 2 * 144))
    assert tensor.numpy().tobytes() == q4k[2]


def test_meta_says_logical_and_stored_shape_and_the_parameter_that_holds_the_bytes(tmp_path: Path, q4k: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k, "a.bias": (F32, (6,), bytes(24))})
    meta = reader().read_meta([path])
    weight, bias = meta["a.weight"], meta["a.bias"]
    assert (weight.shape, weight.stored_shape, weight.dtype) == ((6, 512), (6, 288), "uint8")
    assert (weight.source_dtype, weight.ggml_type, weight.target) == ("Q4_K", 12, "a.qweight")
    assert (bias.dtype, bias.ggml_type, bias.target, bias.converted) == ("float32", None, "a.bias", None)


def test_numbers_keep_their_dtype_and_bits(tmp_path: Path) -> None:
    bits = np.array([0x7FC1, 0x8000, 0x0001, 0xFF80, 0x3F80], np.uint16)
    whole = np.array([[-(2**63), 2**63 - 1]], np.int64)
    path = write_gguf(
        tmp_path / "m.gguf", {"b": (BF16, (5,), bits.tobytes()), "i.weight": (I64, (1, 2), whole.tobytes())}
    )
    tensors = read(path)
    assert tensors["b"].dtype is torch.bfloat16
    assert tensors["b"].view(torch.int16).numpy().tobytes() == bits.tobytes()
    assert tensors["i.weight"].dtype is torch.int64
    assert tensors["i.weight"].tolist() == whole.tolist()


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (3, 1, 1), (1, 1, 1, 3)], ids=str)
@pytest.mark.parametrize(("type_id", "dtype"), [(BF16, "bfloat16"), (1, "float16"), (25, "int16"), (28, "float64")])
def test_numbers_of_any_rank_keep_their_bits_wherever_they_begin(
    tmp_path: Path, type_id: int, dtype: str, shape: tuple[int, ...]
) -> None:
    bits = bytes(range(0x7B, 0x7B + 24))[: np.prod(shape, dtype=int) * getattr(torch, dtype).itemsize]
    odd = (24, (1,), b"\x01")
    path = write_gguf(tmp_path / "m.gguf", {"odd": odd, "n.weight": (type_id, shape, bits)}, alignment=1)
    found = read(path)["n.weight"]
    assert (found.dtype, tuple(found.shape)) == (getattr(torch, dtype), shape)
    assert found.reshape(-1).view(torch.uint8).numpy().tobytes() == bits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dequantize_yields_numbers_rounded_once(tmp_path: Path, q4k: Any, dtype: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    tensors = read(path, options={"dequantize": dtype})
    expected = by_gguf("Q4_K", q4k).to(getattr(torch, dtype))
    assert torch.equal(expected, tensors["a.weight"])
    meta = reader(dequantize=dtype).read_meta([path])["a.weight"]
    assert (meta.dtype, meta.stored_shape, meta.target) == (dtype, (6, 512), "a.weight")
    assert meta.converted == f"dequantize={dtype}"


def test_what_no_layer_takes_packed_is_dequantized_and_says_why(tmp_path: Path) -> None:
    norm = packed("Q8_0", 1, 64)
    path = write_gguf(tmp_path / "m.gguf", {"norm.weight": (norm[0], (64,), norm[2])})
    tensor = read(path)["norm.weight"]
    assert torch.equal(by_gguf("Q8_0", norm)[0], tensor)
    assert "1-D" in (reader().read_meta([path])["norm.weight"].converted or "")


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "IQ4_XS"])
@pytest.mark.parametrize(
    ("dim", "start", "stop"), [(0, 1, 4), (0, -1, None), (1, 256, 512), (1, 0, 256), (-1, 512, None)]
)
def test_a_slice_of_packed_rows_or_whole_blocks_is_that_part(
    tmp_path: Path, kind: str, dim: int, start: int, stop: int
) -> None:
    whole = packed(kind, 6, 768)
    path = write_gguf(tmp_path / "m.gguf", {"before.weight": packed(kind, 2, 256), "a.weight": whole})
    part = {"a.weight": TensorSlice(dim=dim, start=start, stop=stop)}
    tensor = read(path, slices=part, key_filter=part.__contains__)["a.weight"]
    index = [slice(None), slice(None)]
    index[dim] = slice(start, stop)
    cut = by_gguf(kind, whole)[tuple(index)]
    blocks = np.ascontiguousarray(tensor.numpy())
    assert np.array_equal(cut.numpy(), gguf.dequantize(blocks, gguf.GGMLQuantizationType(BY_NAME[kind].id)))


@pytest.mark.parametrize(("dim", "shape"), [(0, (0, 288)), (1, (6, 0))])
def test_an_empty_slice_of_packed_rows_or_columns_is_none_of_them(
    tmp_path: Path, q4k: Any, dim: int, shape: tuple[int, int]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    tensor = read(path, slices={"a.weight": TensorSlice(dim=dim, start=2, stop=2)})["a.weight"]
    assert (tuple(tensor.shape), tensor.dtype) == (shape, torch.uint8)


def test_a_slice_within_a_block_of_packed_weights_is_refused_with_the_block(tmp_path: Path, q4k: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    with pytest.raises(SliceError, match=r"inside a block of 256 elements.*'a\.weight'.*multiples of 256") as caught:
        reader().iter_weights([path], slices={"a.weight": TensorSlice(dim=1, start=0, stop=100)})
    assert "0:256 holds it, found 0:100 of 512" in str(caught.value)


@pytest.mark.parametrize(("dim", "start", "stop"), [(1, 3, 300), (1, 250, 260), (0, 1, 3), (1, 255, 257), (1, 5, 5)])
def test_a_slice_of_numbers_may_begin_anywhere(tmp_path: Path, q4k: Any, dim: int, start: int, stop: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    part = {"a.weight": TensorSlice(dim=dim, start=start, stop=stop)}
    tensor = read(path, options={"dequantize": "float32"}, slices=part)["a.weight"]
    assert torch.equal(by_gguf("Q4_K", q4k).narrow(dim, start, stop - start), tensor)


@pytest.mark.parametrize(("dim", "start", "stop"), [(0, 1, 3), (1, 1, 2), (2, 3, 40), (2, 32, 64)])
def test_a_slice_of_a_tensor_of_more_dimensions_is_that_part(tmp_path: Path, dim: int, start: int, stop: int) -> None:
    rows = packed("Q8_0", 4 * 3, 64)
    plain = np.arange(4 * 3 * 64, dtype=np.float32).reshape(4, 3, 64)
    path = write_gguf(
        tmp_path / "m.gguf", {"e.weight": (rows[0], (4, 3, 64), rows[2]), "p": (F32, (4, 3, 64), plain.tobytes())}
    )
    part = TensorSlice(dim=dim, start=start, stop=stop)
    tensors = read(path, slices={"e.weight": part, "p": part})
    experts = by_gguf("Q8_0", rows).reshape(4, 3, 64)
    assert torch.equal(experts.narrow(dim, start, stop - start), tensors["e.weight"])
    assert torch.equal(torch.from_numpy(plain).narrow(dim, start, stop - start), tensors["p"])


def test_rows_of_no_whole_number_of_blocks_are_cut_after_they_are_numbers(tmp_path: Path) -> None:
    folded = packed("Q8_0", 3, 32)
    path = write_gguf(
        tmp_path / "m.gguf",
        {"a.weight": (folded[0], (3, 32), folded[2])},
        {"comfy.gguf.orig_shape.a.weight": ("INT32", [8, 12])},
    )
    expected = by_gguf("Q8_0", folded).reshape(8, 12)
    assert torch.equal(expected, read(path)["a.weight"])
    part = {"a.weight": TensorSlice(dim=1, start=5, stop=9)}
    assert torch.equal(expected[:, 5:9], read(path, slices=part)["a.weight"])


def test_a_filter_is_asked_once_for_each_checkpoint_name_and_the_order_is_that_of_the_file(
    tmp_path: Path, q4k: Any
) -> None:
    path = write_gguf(tmp_path / "m.gguf", dict.fromkeys(("z.weight", "a.weight", "m.weight"), q4k))
    asked: list[str] = []

    def wanted(name: str) -> bool:
        asked.append(name)
        return name != "a.weight"

    assert list(read(path, key_filter=wanted)) == ["z.weight", "m.weight"]
    assert sorted(asked) == ["a.weight", "m.weight", "z.weight"]


def test_a_tensor_of_an_unknown_type_stops_only_those_who_want_it(tmp_path: Path, q4k: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k, "new.weight": (99, (1, 32), bytes(64))})
    assert list(read(path, key_filter="a.weight".__eq__)) == ["a.weight"]
    assert reader().read_meta([path])["new.weight"].dtype == "unknown"
    with pytest.raises(UnknownDtypeError, match=r"99.*new\.weight|new\.weight.*99"):
        read(path)


def test_tensors_outlive_the_reader_and_the_name_of_the_file(tmp_path: Path, q4k: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    tensor = read(path)["a.weight"]
    os.unlink(path)
    assert tensor.numpy().tobytes() == q4k[2]


def test_a_write_into_a_packed_tensor_never_reaches_the_file(tmp_path: Path, q4k: Any) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k})
    before = path.read_bytes()
    read(path)["a.weight"].fill_(7)
    assert path.read_bytes() == before


def test_the_metadata_of_the_checkpoint_pickles(tmp_path: Path, q4k: Any) -> None:
    meta = reader().read_meta([write_gguf(tmp_path / "m.gguf", {"a.weight": q4k}, {"general.name": "tiny"})])
    again = pickle.loads(pickle.dumps(meta))
    assert again == meta
    assert again.files[0].metadata["general.name"] == "tiny"


@pytest.mark.parametrize("value", ["int8", "bf61", "", 3])
def test_a_dtype_that_is_none_is_refused_naming_the_option(value: object) -> None:
    with pytest.raises(ValueError, match=r"option 'dequantize' of reader 'gguf'.*float32"):
        reader(dequantize=value)


def test_the_hook_module_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, weight_readers_gguf.plugin as plugin\n"
        "plugin.weight_readers_quant_methods(); plugin.weight_readers_describe()\n"
        "print(sorted({'torch', 'numpy', 'gguf', 'numba', 'triton'} & set(sys.modules)))"
    )
    assert output_of(code).strip() == "[]"


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"prefetch": 1}], ids=str)
def test_rows_and_columns_of_blocks_are_those_of_the_packed_tensor(tmp_path: Path, options: dict[str, Any]) -> None:
    stored = packed("Q4_K", 6, 1024)
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": stored})
    part = (TensorSlice(dim=1, start=256, stop=768), TensorSlice(dim=0, start=1, stop=4))
    calls: list[ReadStats] = []
    got = dict(reader(**options).iter_weights([path], slices={"a.weight": part}, on_progress=calls.append))["a.weight"]
    assert torch.frombuffer(bytearray(stored[2]), dtype=torch.uint8).view(6, 576)[1:4, 144:432].tolist() == got.tolist()
    assert (calls[-1].bytes_wanted, calls[-1].bytes_read) == (3 * 288, 3 * 288)


@pytest.mark.parametrize(("start", "stop"), [(32, 96), (5, 61), (0, 128)])
def test_rows_and_columns_of_numbers_may_begin_within_a_block(tmp_path: Path, start: int, stop: int) -> None:
    stored = packed("Q8_0", 6, 128)
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": stored})
    part = {"a.weight": (TensorSlice(dim=0, start=2, stop=5), TensorSlice(dim=1, start=start, stop=stop))}
    got = read(path, options={"dequantize": "float32"}, slices=part)["a.weight"]
    assert torch.equal(by_gguf("Q8_0", stored)[2:5, start:stop], got)


def test_parts_of_three_dimensions_are_cut_of_numbers_and_of_blocks_that_become_numbers(tmp_path: Path) -> None:
    numbers = np.arange(5 * 6 * 64, dtype=np.float32).reshape(5, 6, 64)
    blocks = packed("Q8_0", 30, 64)
    tensors = {"n": (F32, (5, 6, 64), numbers.tobytes()), "e.weight": (blocks[0], (5, 6, 64), blocks[2])}
    path = write_gguf(tmp_path / "m.gguf", tensors)
    part = tuple(TensorSlice(dim=dim, start=1, stop=stop) for dim, stop in ((0, 4), (1, 5), (2, 40)))
    got = read(path, slices={"n": part, "e.weight": part})
    assert numbers[1:4, 1:5, 1:40].tolist() == got["n"].tolist()
    assert torch.equal(by_gguf("Q8_0", blocks).view(5, 6, 64)[1:4, 1:5, 1:40], got["e.weight"])


def test_columns_within_a_block_are_refused_beside_rows(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": packed("Q8_0", 6, 64)})
    part = (TensorSlice(dim=0, start=2, stop=4), TensorSlice(dim=1, start=8, stop=40))
    with pytest.raises(ValueError, match="slice 2:4 of dimension 0 and 8:40 of dimension 1 cuts Q8_0 inside a block"):
        reader().iter_weights([path], slices={"a.weight": part})


@pytest.mark.parametrize("rows", [0, 6])
def test_an_empty_slice_within_a_block_is_refused_whether_there_are_rows_or_not(tmp_path: Path, rows: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": (BY_NAME["Q4_0"].id, (rows, 64), bytes(rows * 36))})
    with pytest.raises(ValueError, match="inside a block"):
        reader().iter_weights([path], slices={"a.weight": TensorSlice(dim=1, start=1, stop=64)})


@pytest.mark.parametrize("options", [{}, {"dequantize": "float32"}, {"copy": True}, {"prefetch": 1}], ids=str)
def test_an_empty_tensor_within_another_one_disturbs_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    numbers = np.arange(256, dtype=np.float32)
    tensors = {"a.weight": (F32, (8, 32), numbers.tobytes()), "e": (F32, (0,), b"")}
    path = write_gguf(tmp_path / "m.gguf", tensors, offsets={"a.weight": 0, "e": 512})
    found = read(path, options=options)
    assert found["a.weight"].flatten().tolist() == numbers.tolist()
    assert tuple(found["e"].shape) == (0,)


def test_a_file_that_is_cut_before_its_blocks_become_numbers_ends_in_an_error_or_in_the_right_numbers(
    tmp_path: Path,
) -> None:
    whole = packed("Q8_0", 512, 512)
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": whole})
    expected = by_gguf("Q8_0", whole)

    def cut(stats: object) -> None:
        os.truncate(path, 4096)

    weights = reader(dequantize="float32").iter_weights([path], on_progress=cut)
    _, tensor = next(weights)
    assert torch.equal(expected, tensor)
    with pytest.raises(FileChangedError):
        next(weights)


@pytest.mark.parametrize("options", [{}, {"dequantize": "bfloat16"}, {"copy": True}], ids=str)
def test_the_default_device_of_the_caller_is_not_where_host_memory_is_made(
    tmp_path: Path, q4k: Any, options: dict[str, Any]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"a.weight": q4k, "e": (F32, (0,), b"")})
    with torch.device("meta"):
        assert {tensor.device.type for tensor in read(path, options=options).values()} == {"cpu"}
