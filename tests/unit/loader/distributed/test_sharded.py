# SPDX-License-Identifier: Apache-2.0
"""Models that FSDP and tensor parallelism have sharded: each rank reads its part, and the output is the model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file
from support import rank_jobs
from support.files import write_tensors
from support.ranks import Ranks, done
from support.tensors import BITS, bits, noise, tensor
from torch.distributed.tensor import Replicate, Shard
from unit.gguf.gguf_bytes import write_gguf

pytest.importorskip("weight_readers_threaded")


@pytest.fixture(scope="module")
def models(
    groups: Callable[[int], Ranks], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, torch.Tensor]]:
    """Kind of transformer -> where it was saved, by the safetensors library, and the logits of the whole model."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("llama", "gemma3")}
    results = [done(groups(4).run(rank_jobs.saved_whole, kind, folder))[0] for kind, folder in folders.items()]
    return {kind: (folder, logits) for (kind, folder), logits in zip(folders.items(), results, strict=True)}


@pytest.mark.parametrize(
    ("kind", "tensor_parallel", "how", "meta"),
    [
        ("llama", 1, "slices", False),
        ("llama", 1, "broadcast", True),
        ("llama", 1, "partition", False),
        ("llama", 2, "slices", True),
        ("llama", 2, "broadcast", False),
        ("llama", 4, "slices", False),
        ("gemma3", 1, "slices", True),
        ("gemma3", 2, "slices", False),
        ("gemma3", 4, "slices", True),
    ],
)
def test_the_logits_of_a_sharded_transformer_are_those_of_the_whole(
    four: Ranks,
    models: dict[str, tuple[Path, torch.Tensor]],
    kind: str,
    tensor_parallel: int,
    how: str,
    meta: bool,
) -> None:
    """FSDP gathers what the whole model computes with, bit for bit; with tensor parallelism sums have another order."""
    path, expected = models[kind]
    job = {"meta": meta, "tensor_parallel": tensor_parallel}
    tolerance = {"rtol": 0, "atol": 0} if tensor_parallel == 1 else {"rtol": 1e-5, "atol": 1e-6}
    for logits, report in done(four.run(rank_jobs.transformer, path, kind, how, **job)):
        torch.testing.assert_close(logits, expected, **tolerance)
        assert report.tied == (("model.embed_tokens.weight", "lm_head.weight"),)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_a_rank_reads_its_part_of_a_transformer(
    four: Ranks, models: dict[str, tuple[Path, torch.Tensor]], kind: str, tensor_parallel: int
) -> None:
    """On the mesh of two dimensions some weights are cut along both."""
    path, _ = models[kind]
    job = {"meta": True, "tensor_parallel": tensor_parallel}
    reports = [report for _, report in done(four.run(rank_jobs.transformer, path, kind, "slices", **job))]
    total = sum(tensor.nbytes for tensor in load_file(path / "model.safetensors").values())
    assert all(report.bytes_read <= 0.27 * total for report in reports)
    if tensor_parallel == 1:
        assert sum(report.bytes_read for report in reports) == total


PACKED = {kind.name: (kind.value, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
PACKED = {name: sizes for name, sizes in PACKED.items() if sizes[1] > 1 and name not in ("Q8_1", "Q8_K")}
"""Name -> number, elements of a block and its bytes, by the gguf package. Two are of activations: no weights."""
ROWS, BLOCKS = 5, 7


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A tensor of each packed type, of rows and columns of blocks that no two or four ranks share evenly."""
    data = {name: noise(ROWS * BLOCKS * nbytes, seed=name) for name, (_, _, nbytes) in PACKED.items()}
    tensors = {f"{n}.weight": (PACKED[n][0], (ROWS, BLOCKS * PACKED[n][1]), raw) for n, raw in data.items()}
    path = write_gguf(tmp_path_factory.mktemp("packed") / "m.gguf", tensors, {"general.architecture": "tiny"})
    return path, {n: torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(ROWS, -1) for n, raw in data.items()}


@pytest.mark.parametrize("only", [(0, 1), None], ids=["two", "four"])
@pytest.mark.parametrize("how", ["broadcast", "partition", "slices"])
def test_packed_blocks_of_every_type_reach_every_rank(
    four: Ranks, packed: tuple[Path, dict[str, torch.Tensor]], how: str, only: tuple[int, ...] | None
) -> None:
    path, expected = packed
    results = [r for r in done(four.run(rank_jobs.read, path, how, only=only, bucket_bytes=3000)) if r is not None]
    for name, data in expected.items():
        parts = [held[f"{name}.weight"][2] for held, _, _ in results]
        whole = data.numpy().tobytes()
        assert b"".join(parts) == whole if how == "slices" else parts == [whole] * len(parts), name


@pytest.mark.parametrize("dim", [0, 1], ids=["rows", "columns"])
def test_packed_blocks_of_every_type_are_read_by_parts(four: Ranks, tmp_path: Path, dim: int) -> None:
    """Five rows or eight columns of blocks among four ranks."""
    columns = 7 if dim == 0 else 8
    data = {name: noise(ROWS * columns * nbytes, seed=name) for name, (_, _, nbytes) in PACKED.items()}
    tensors = {f"{n}.weight": (PACKED[n][0], (ROWS, columns * PACKED[n][1]), raw) for n, raw in data.items()}
    path = write_gguf(tmp_path / "m.gguf", tensors, {"general.architecture": "tiny"})
    results = done(four.run(rank_jobs.fill_placed, path, "slices", dim))
    for name, raw in data.items():
        whole = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(ROWS, -1)
        parts = [held[f"{name}.qweight"][2] for held, _ in results]
        assert parts == [part.contiguous().numpy().tobytes() for part in chunked(whole, dim)], name
    assert sum(read for _, read in results) == sum(map(len, data.values()))


GRID = {
    "both": (Shard(0), Shard(1)),
    "turned": (Shard(1), Shard(0)),
    "three": (Shard(2), Shard(0)),
    "twice": (Shard(0), Shard(0)),
    "columns": (Replicate(), Shard(1)),
    "few": (Shard(0), Shard(1)),
    "same": (Replicate(), Replicate()),
    "scalar": (Replicate(), Replicate()),
}


@pytest.mark.parametrize("dtype", ["U8", "BF16", "F32"])
def test_each_rank_of_a_mesh_of_two_dimensions_reads_its_own_elements(four: Ranks, tmp_path: Path, dtype: str) -> None:
    """No size is a multiple of the ranks; one tensor has fewer rows than there are. torch says who holds what."""
    sizes = {"both": (7, 5), "turned": (7, 5), "three": (3, 2, 5), "twice": (7, 3), "columns": (3, 7), "few": (1, 5)}
    sizes |= {"same": (3,), "scalar": ()}
    path = write_tensors(tmp_path / "m.safetensors", {name: tensor(dtype, *sizes[name]) for name in GRID})
    read = 0
    for held, places, report in done(four.run(rank_jobs.fill_grid, path, GRID)):
        for name, whole in load_file(path).items():
            assert bits(whole.flatten()[places[name]]) == held[name][2], name
        assert report.bytes_read == sum(map(len, places.values())) * BITS[dtype] // 8
        assert report.decisions == ()
        read += sum(len(places[name]) for name in ("both", "turned", "three", "twice", "few"))
    assert read == 35 + 35 + 30 + 21 + 5


def test_packed_blocks_are_read_by_rows_and_columns_at_once(four: Ranks, tmp_path: Path) -> None:
    rows, columns = 5, 8
    data = {name: noise(rows * columns * nbytes, seed=name) for name, (_, _, nbytes) in PACKED.items()}
    tensors = {f"{n}.weight": (PACKED[n][0], (rows, columns * PACKED[n][1]), raw) for n, raw in data.items()}
    path = write_gguf(tmp_path / "m.gguf", tensors, {"general.architecture": "tiny"})
    grid = {name: (Shard(0), Shard(1)) for name in tensors}
    results = done(four.run(rank_jobs.fill_grid, path, grid))
    for name, raw in data.items():
        for held, places, _ in results:
            assert bytes(raw[place] for place in places[f"{name}.weight"]) == held[f"{name}.weight"][2], name
    assert sum(report.bytes_read for _, _, report in results) == sum(map(len, data.values()))


def chunked(whole: torch.Tensor, dim: int) -> list[torch.Tensor]:
    """What four ranks hold; `torch.chunk` leaves out what would be empty."""
    parts = list(whole.chunk(4, dim))
    return parts + [whole.narrow(dim, 0, 0)] * (4 - len(parts))


def test_a_cut_inside_a_block_is_refused_by_name_on_every_rank(four: Ranks, tmp_path: Path) -> None:
    odd = write_gguf(tmp_path / "odd-Q8_0.gguf", {"fc.weight": (8, (4, 96), bytes(4 * 3 * 34))}, {})
    results = four.run(rank_jobs.fill_placed, odd, "slices", 1)
    assert {type(result).__name__ for result in results} == {"TargetMismatchError"}
    assert all("fc.weight" in str(result) for result in results)


@pytest.mark.parametrize("how", ["broadcast", "partition", "slices"])
def test_a_type_that_cannot_be_read_is_refused_by_name_on_every_rank(four: Ranks, tmp_path: Path, how: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"fc.weight": (9, (4, 96), bytes(4 * 3 * 36))}, {})
    results = four.run(rank_jobs.read, path, how)
    assert {type(result).__name__ for result in results} == {"UnsupportedDtypeError"}
    assert all("fc.weight" in str(result) and "Q8_1" in str(result) for result in results)
