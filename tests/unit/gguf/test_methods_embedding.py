# SPDX-License-Identifier: Apache-2.0
"""Embeddings that keep their table packed: gathered first, then dequantized; also as a language-model head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from unit.gguf.packed_layers import EngineEmbedding, blocks, config_of, create, dense, numbers

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods import GGUFConfig, GGUFEmbeddingMethod, compute

WIDTH = 256
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def packed() -> torch.Tensor:
    return blocks("Q6_K", 10, WIDTH)


@pytest.fixture
def config(tmp_path: Path, packed: torch.Tensor) -> GGUFConfig:
    return config_of(tmp_path, {"embed.weight": ("Q6_K", packed)})


def plain() -> nn.Embedding:
    return nn.Embedding(10, WIDTH, device="meta")


def made(config: GGUFConfig, layer: nn.Module, packed: torch.Tensor, dtype: torch.dtype) -> GGUFEmbeddingMethod:
    method = create(config, layer, "embed", dtype)
    assert isinstance(method, GGUFEmbeddingMethod)
    method.load_shard(layer, packed)
    return method


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_rows_are_those_of_the_dense_table(
    config: GGUFConfig, packed: torch.Tensor, dtype: torch.dtype, index: torch.dtype
) -> None:
    layer = plain()
    ids = torch.tensor([[0, 9, 3], [3, 3, 1]], dtype=index)
    out = made(config, layer, packed, dtype).embedding(layer, ids)
    assert out.dtype == dtype
    assert out.equal(dense("Q6_K", packed).to(dtype)[ids.long()])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 2, 2)])
def test_ids_of_any_shape_are_taken(config: GGUFConfig, packed: torch.Tensor, shape: tuple[int, ...]) -> None:
    layer = plain()
    out = made(config, layer, packed, torch.float32).embedding(layer, torch.ones(shape, dtype=torch.int64))
    assert out.shape == (*shape, WIDTH)
    assert out.equal(dense("Q6_K", packed)[1].expand(*shape, WIDTH))


def test_only_rows_that_are_asked_for_are_dequantized(
    config: GGUFConfig, packed: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = plain()
    method = made(config, layer, packed, torch.float32)
    asked = []
    original = compute.dequantize_operator

    def watched(rows: torch.Tensor, kind: int, dtype: torch.dtype) -> torch.Tensor:
        asked.append(tuple(rows.shape))
        return original(rows, kind, dtype)  # type: ignore[no-any-return]

    monkeypatch.setattr(compute, "dequantize_operator", watched)
    method.embedding(layer, torch.tensor([2, 5]))
    assert asked == [(2, packed.shape[1])]


@pytest.mark.parametrize("wrong", [10, -1])
def test_an_id_without_a_row_raises_as_torch_does(config: GGUFConfig, packed: torch.Tensor, wrong: int) -> None:
    layer = plain()
    method = made(config, layer, packed, torch.float32)
    with pytest.raises(IndexError) as theirs:
        nn.functional.embedding(torch.tensor([wrong]), torch.zeros(10, 2))
    with pytest.raises(IndexError) as ours:
        method.embedding(layer, torch.tensor([wrong]))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_that_shares_the_table_multiplies_with_it(
    config: GGUFConfig, packed: torch.Tensor, dtype: torch.dtype
) -> None:
    layer = plain()
    x = numbers(3, WIDTH, dtype=dtype)
    out = made(config, layer, packed, torch.bfloat16).apply(layer, x)
    assert out.equal(linear(x, dense("Q6_K", packed).to(dtype)))


def test_rows_behind_the_vocabulary_of_the_file_are_zeros(config: GGUFConfig, packed: torch.Tensor) -> None:
    layer = EngineEmbedding(10, WIDTH, padded=64)
    method = made(config, layer, packed, torch.float32)
    out = method.embedding(layer, torch.arange(64))
    assert out[:10].equal(dense("Q6_K", packed))
    assert not out[10:].any()


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_of_a_padded_vocabulary_together_hold_the_table(
    config: GGUFConfig, packed: torch.Tensor, world: int
) -> None:
    rows = []
    for rank in range(world):
        layer = EngineEmbedding(10, WIDTH, padded=16, tp_rank=rank, tp_size=world)
        method = made(config, layer, packed, torch.float32)
        rows.append(method.embedding(layer, torch.arange(16 // world)))
    table = torch.cat(rows)
    assert table[:10].equal(dense("Q6_K", packed))
    assert not table[10:].any()


def test_rows_that_were_there_before_are_zeroed_behind_the_vocabulary(config: GGUFConfig, packed: torch.Tensor) -> None:
    layer = EngineEmbedding(10, WIDTH, padded=12)
    method = create(config, layer, "embed")
    layer.get_parameter("qweight").data.fill_(255)
    method.load_shard(layer, packed)
    assert not method.embedding(layer, torch.tensor([10, 11])).any()


@pytest.mark.parametrize(("rows", "width"), [(11, WIDTH), (9, WIDTH), (10, 2 * WIDTH)])
def test_a_table_of_another_shape_is_refused(config: GGUFConfig, rows: int, width: int) -> None:
    with pytest.raises(TargetMismatchError, match=r"does not fit layer 'embed': it has embed.weight \[10, 256\]"):
        create(config, nn.Embedding(rows, width, device="meta"), "embed")


def test_a_table_larger_than_the_engines_vocabulary_is_refused(config: GGUFConfig) -> None:
    with pytest.raises(TargetMismatchError, match="does not fit layer 'embed'"):
        create(config, EngineEmbedding(8, WIDTH, padded=64), "embed")


def test_a_dtype_that_is_none_of_activations_is_refused(config: GGUFConfig) -> None:
    with pytest.raises(TypeError, match=r"'embed' gives float32, float16 or bfloat16, not torch.float64"):
        create(config, plain(), "embed", torch.float64)


def test_an_embedding_that_would_rewrite_its_rows_is_refused(config: GGUFConfig) -> None:
    with pytest.raises(TargetMismatchError, match="'embed' has max_norm"):
        create(config, nn.Embedding(10, WIDTH, max_norm=1.0, device="meta"), "embed")


def test_a_compiler_sees_one_graph(config: GGUFConfig, packed: torch.Tensor) -> None:
    torch._dynamo.reset()
    layer = plain()
    method = made(config, layer, packed, torch.float32)
    compiled = torch.compile(lambda ids: method.embedding(layer, ids), fullgraph=True, backend="aot_eager")
    ids = torch.tensor([[1, 9]])
    assert compiled(ids).equal(dense("Q6_K", packed)[ids])
