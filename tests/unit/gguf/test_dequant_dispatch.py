# SPDX-License-Identifier: Apache-2.0
"""`dequantize`: what it takes and refuses, what it writes, and rows that are gathered first."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from unit.gguf.oracles import ggml
from unit.gguf.random_blocks import random_blocks

from weight_readers_gguf.dequant import backends, dequantize, dequantize_rows, dispatch, torch_ops
from weight_readers_gguf.dequant.torch_ops import constants
from weight_readers_gguf.types import BY_NAME, GGMLType


def packed_rows(name: str, *shape: int) -> torch.Tensor:
    """Random blocks in rows: the last of ``shape`` counts blocks."""
    count = int(torch.tensor(shape).prod())
    return torch.from_numpy(random_blocks(name, count)).view(*shape[:-1], -1)


def expected(name: str, packed: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(ggml(name, packed.contiguous().numpy()))


def by_torch(packed: torch.Tensor, name: str, **options: Any) -> torch.Tensor:
    return dequantize(packed, name, backend="torch", **options)


# Arguments


@pytest.mark.parametrize("asked", [12, "Q4_K", gguf.GGMLQuantizationType.Q4_K])
def test_a_type_is_named_or_numbered(asked: int | str) -> None:
    packed = packed_rows("Q4_K", 2, 3)
    assert dequantize(packed, asked, backend="torch").equal(expected("Q4_K", packed))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3), (1, 2, 1, 2, 3)])
def test_the_last_dimension_grows_and_the_others_stay(shape: tuple[int, ...]) -> None:
    packed = packed_rows("Q5_1", *shape)
    found = by_torch(packed, "Q5_1")
    assert found.shape == (*shape[:-1], shape[-1] * 32)
    assert found.dtype == torch.float32
    assert found.equal(expected("Q5_1", packed))


@pytest.mark.parametrize(("asked", "said"), [(200, "unknown ggml type 200"), ("q4_k", "unknown ggml type 'q4_k'")])
def test_an_unknown_type_is_refused_with_those_that_are_known(asked: int | str, said: str) -> None:
    with pytest.raises(ValueError, match=rf"{said}; types that can be dequantized: Q4_0 \(2\), .*Q2_0 \(42\)"):
        dequantize(packed_rows("Q4_K", 1, 1), asked)


def test_a_type_that_ggml_gave_up_is_named() -> None:
    with pytest.raises(ValueError, match=r"given up type Q4_0_4_4 \(id 31\): quantize the weights anew"):
        dequantize(packed_rows("Q4_0", 1, 1), 31)


@pytest.mark.parametrize("name", ["Q8_1", "Q8_K"])
def test_intermediate_results_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"type {name} .* holds intermediate results"):
        dequantize(torch.zeros(1, 36, dtype=torch.uint8), name)


@pytest.mark.parametrize(("name", "dtype"), [("F32", "float32"), ("BF16", "bfloat16"), ("I64", "int64")])
def test_plain_numbers_are_refused_with_the_way_to_read_them(name: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=rf"type {name} .* is not packed.*packed.view\(torch.{dtype}\)"):
        dequantize(torch.zeros(1, 8, dtype=torch.uint8), name)


def test_what_is_no_tensor_of_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="packed is a bytes, not a tensor"):
        dequantize(bytes(18), "Q4_0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype torch.int8; packed blocks are torch.uint8"):
        dequantize(torch.zeros(1, 18, dtype=torch.int8), "Q4_0")
    with pytest.raises(ValueError, match="no dimension"):
        dequantize(torch.tensor(1, dtype=torch.uint8), "Q4_0")


def test_a_row_of_part_blocks_is_refused_with_its_sizes() -> None:
    with pytest.raises(ValueError, match=r"row of 100 bytes .* Q6_K: 210 bytes each, for 256 elements; 100 bytes"):
        dequantize(torch.zeros(4, 100, dtype=torch.uint8), "Q6_K")


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [("out", 5), ("out", []), ("dtype", "float32"), ("backend", 5), ("backend", []), ("ggml_type", 2.0)],
)
def test_an_argument_of_another_kind_is_refused_by_its_name(argument: str, wrong: Any) -> None:
    arguments = {"ggml_type": "Q4_0", argument: wrong}
    with pytest.raises(TypeError, match=argument):
        dequantize(packed_rows("Q4_0", 1, 1), **arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.uint8], ids=str)
def test_a_result_of_another_dtype_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"possible: torch.float32, torch.bfloat16, torch.float16"):
        dequantize(packed_rows("Q4_0", 1, 1), "Q4_0", dtype=dtype)


@pytest.mark.parametrize("shape", [(0, 18), (3, 0), (0,), (2, 0, 36)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    found = dequantize(torch.zeros(shape, dtype=torch.uint8), "Q4_0", dtype=torch.bfloat16)
    assert found.shape == (*shape[:-1], shape[-1] // 18 * 32)
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("backend", [None, "compiled", "triton", "torch"])
def test_on_meta_only_the_shape_is_worked_out(monkeypatch: pytest.MonkeyPatch, backend: str | None) -> None:
    monkeypatch.setattr(backends, "_absent", lambda name: None)
    packed = torch.empty((262144, 8192 // 256 * 144), dtype=torch.uint8, device="meta")
    found = dequantize(packed, "Q4_K", dtype=torch.float16, backend=backend)
    assert (found.shape, found.dtype, found.device.type) == ((262144, 8192), torch.float16, "meta")


# Where the result goes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_out_is_filled_and_returned(dtype: torch.dtype) -> None:
    packed, out = packed_rows("Q8_0", 3, 2), torch.full((3, 64), 7.0, dtype=dtype)
    assert by_torch(packed, "Q8_0", out=out) is out
    assert out.equal(expected("Q8_0", packed).to(dtype))


def test_out_may_be_a_parameter_and_needs_no_gradient_of_this() -> None:
    packed, out = packed_rows("Q4_0", 2, 1), torch.nn.Parameter(torch.zeros(2, 32))
    by_torch(packed, "Q4_0", out=out)
    assert out.detach().equal(expected("Q4_0", packed))
    assert out.grad_fn is None


def test_an_out_that_does_not_fit_is_refused() -> None:
    packed = packed_rows("Q4_0", 3, 2)
    with pytest.raises(TypeError, match=r"out is of dtype torch.float32, and torch.float16 is asked for"):
        dequantize(packed, "Q4_0", dtype=torch.float16, out=torch.zeros(3, 64))
    with pytest.raises(TypeError, match=r"cannot dequantize to torch.float64"):
        dequantize(packed, "Q4_0", out=torch.zeros(3, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"out has shape \[64, 3\], and the result \[3, 64\]"):
        dequantize(packed, "Q4_0", out=torch.zeros(64, 3))
    with pytest.raises(ValueError, match="out is on meta, and packed on cpu"):
        dequantize(packed, "Q4_0", out=torch.zeros(3, 64, device="meta"))
    with pytest.raises(ValueError, match=r"out is not contiguous: its strides are \[1, 3\]"):
        dequantize(packed, "Q4_0", out=torch.zeros(64, 3).t())


@pytest.mark.parametrize("backend", ["torch", "compiled"])
def test_a_gradient_that_needs_what_out_held_before_is_refused(backend: str) -> None:
    x, out = torch.ones(1, 32, requires_grad=True), torch.full((1, 32), 3.0)
    summed = (x * out).sum()
    dequantize(packed_rows("Q4_0", 1, 1), "Q4_0", out=out, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        summed.backward()


@pytest.mark.parametrize("backend", ["torch", "compiled"])
def test_an_out_of_inference_mode_is_written_in_it_only(backend: str) -> None:
    packed = packed_rows("Q4_0", 1, 1)
    with torch.inference_mode():
        out = torch.zeros(1, 32)
        assert dequantize(packed, "Q4_0", out=out, backend=backend).equal(expected("Q4_0", packed))
    with pytest.raises(RuntimeError, match=r"made in inference mode .* pass out.clone\(\)"):
        dequantize(packed, "Q4_0", out=out, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Q4_K", "IQ3_S", "MXFP4", "TQ1_0"])
def test_the_default_device_has_no_part_in_it(name: str, dtype: torch.dtype, backend: str) -> None:
    packed = packed_rows(name, 2, 1)
    constants.shifts.cache_clear()
    with torch.device("meta"):
        found = dequantize(packed, name, dtype=dtype, backend=backend)
    assert found.equal(expected(name, packed).to(dtype))
    assert dequantize(packed, name, dtype=dtype, backend=backend).equal(found)


# Pieces


def scattered() -> list[Any]:
    """Packed tensors of Q4_0 (18 bytes) that do not lie in one piece."""
    wide = packed_rows("Q4_0", 6, 5)
    return [
        pytest.param(wide[:, 18:54], id="columns"),
        pytest.param(wide[::2], id="every other row"),
        pytest.param(wide[:1].expand(6, -1), id="one row many times"),
        pytest.param(wide.view(2, 3, 90).transpose(0, 1), id="transposed"),
        pytest.param(wide.view(2, 3, 90)[:, :, :36], id="three dimensions"),
        pytest.param(wide.view(-1)[::2][:252], id="every other byte"),
    ]


@pytest.mark.parametrize("piece", [1, 18, 40, 1 << 20])
@pytest.mark.parametrize("packed", scattered())
def test_scattered_bytes_are_gathered_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, packed: torch.Tensor, piece: int
) -> None:
    monkeypatch.setattr(dispatch, "_PIECE", piece)
    assert not packed.is_contiguous()
    assert by_torch(packed, "Q4_0").equal(expected("Q4_0", packed))


def test_no_piece_is_larger_than_the_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_PIECE", 100)
    packed = packed_rows("Q4_0", 64, 5)[:, 18:54]
    pieces = list(dispatch._pieces(packed, torch.empty(64, 64), BY_NAME["Q4_0"]))
    assert max(piece.numel() for piece, _ in pieces) <= 100
    assert sum(piece.numel() for piece, _ in pieces) == packed.numel()


def test_bytes_in_one_piece_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_PIECE", 100)
    packed = packed_rows("Q4_0", 64, 5)
    [(piece, _)] = dispatch._pieces(packed, torch.empty(64, 160), BY_NAME["Q4_0"])
    assert piece.data_ptr() == packed.data_ptr()


# Rows


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("indices", [[0], [4, 4, 1], [[1, 2], [0, 3]], []])
def test_rows_are_those_of_the_whole(indices: Any, dtype: torch.dtype) -> None:
    packed, wanted = packed_rows("Q6_K", 5, 2), torch.tensor(indices, dtype=dtype)
    found = dequantize_rows(packed, wanted, "Q6_K", dtype=torch.bfloat16, backend="torch")
    assert found.shape == (*wanted.shape, 512)
    assert found.equal(expected("Q6_K", packed).to(torch.bfloat16)[wanted.long()])


def test_only_the_rows_asked_for_are_dequantized(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []

    def dequantize_into(packed: torch.Tensor, kind: GGMLType, out: torch.Tensor) -> None:
        seen.append(packed.shape)

    monkeypatch.setattr(torch_ops, "dequantize_into", dequantize_into)
    dequantize_rows(packed_rows("Q4_0", 50, 2), torch.tensor([3, 9]), "Q4_0", backend="torch")
    assert seen == [(2, 36)]


def test_rows_that_are_not_there_are_refused() -> None:
    packed = packed_rows("Q4_0", 5, 1)
    for wanted, row in ([2, 5], 5), ([-1, 2], -1):
        with pytest.raises(IndexError, match=f"row {row} is asked for, and packed has rows 0 to 4"):
            dequantize_rows(packed, torch.tensor(wanted), "Q4_0")


def test_rows_of_what_has_none_and_odd_indices_are_refused() -> None:
    packed = packed_rows("Q4_0", 5, 1)
    with pytest.raises(ValueError, match=r"shape \[90\]; rows are taken of \[rows, row_bytes\]"):
        dequantize_rows(packed.view(-1), torch.tensor([0]), "Q4_0")
    with pytest.raises(TypeError, match=r"indices are of dtype torch.float32"):
        dequantize_rows(packed, torch.tensor([0.0]), "Q4_0")
    with pytest.raises(TypeError, match="indices must be a tensor of rows, not list"):
        dequantize_rows(packed, [0], "Q4_0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="indices are on meta, and packed on cpu"):
        dequantize_rows(packed, torch.tensor([0], device="meta"), "Q4_0")


def test_few_numbers_do_not_wait_for_a_compiler_and_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    compiling = dispatch._Compiling(elements=100)
    assert [compiling.defer(count) for count in (60, 30, 60, 1)] == [True, True, False, False]
    assert not dispatch._Compiling(elements=100).defer(1000)


def test_a_compiler_that_is_there_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace())
    assert not dispatch._Compiling().defer(1)
