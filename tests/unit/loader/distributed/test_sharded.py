# SPDX-License-Identifier: Apache-2.0
"""Models that FSDP and tensor parallelism have sharded: each rank reads its part, and the output is the model's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import rank_jobs
from support.ranks import Ranks, done
from unit.gguf.gguf_bytes import write_gguf

pytest.importorskip("weight_readers_threaded")


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


def saved(model: torch.nn.Module, folder: Path) -> Path:
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("meta", [False, True], ids=["existing", "meta"])
@pytest.mark.parametrize("how", ["broadcast", "slices"])
def test_fully_sharded_parameters_are_loaded_and_the_output_is_that_of_the_model(
    four: Ranks, tmp_path: Path, how: str, meta: bool
) -> None:
    torch.manual_seed(7)
    model = rank_jobs.Block()
    expected = model(rank_jobs.TOKENS).detach()
    layout = {"tensor_parallel": 1, "data_parallel": 4}
    results = done(four.run(rank_jobs.sharded, saved(model, tmp_path), how, meta=meta, **layout))
    for output, _ in results:
        torch.testing.assert_close(output, expected, rtol=0, atol=0)
    if how == "slices":
        # 13 rows and 20 are shared unevenly; each byte is read once, but for the buffer without dimensions.
        once = sum(parameter.nbytes for parameter in model.parameters())
        assert sum(report.bytes_read for _, report in results) == once + 4 * model.scale.nbytes


@pytest.mark.parametrize(("tensor_parallel", "data_parallel"), [(4, 1), (2, 2)], ids=["tp", "fsdp-tp"])
def test_tensor_parallel_parameters_are_loaded_and_the_output_is_that_of_the_model(
    four: Ranks, tmp_path: Path, tensor_parallel: int, data_parallel: int
) -> None:
    torch.manual_seed(7)
    model = rank_jobs.Mlp()
    expected = model(rank_jobs.INPUT).detach()
    layout = {"tensor_parallel": tensor_parallel, "data_parallel": data_parallel}
    for meta in (False, True):
        for output, _ in done(four.run(rank_jobs.sharded, saved(model, tmp_path), "slices", meta=meta, **layout)):
            torch.testing.assert_close(output, expected)


Q8_0, ROWS, COLUMNS = 8, 12, 128


@pytest.fixture(scope="module")
def blocks() -> np.ndarray:
    values = np.random.default_rng(3).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    return gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)


@pytest.fixture
def path(tmp_path: Path, blocks: np.ndarray) -> Path:
    tensors = {"fc.weight": (Q8_0, (ROWS, COLUMNS), blocks.tobytes())}
    return write_gguf(tmp_path / "tiny-Q8_0.gguf", tensors, {"general.architecture": "tiny"})


@pytest.mark.parametrize("dim", [0, 1], ids=["rows", "columns"])
def test_packed_blocks_are_read_by_parts(four: Ranks, path: Path, blocks: np.ndarray, dim: int) -> None:
    results = done(four.run(rank_jobs.packed, path, dim))
    whole = torch.cat([part for part, _ in results], dim=dim)
    assert torch.equal(whole, torch.from_numpy(blocks))
    assert [read for _, read in results] == [blocks.nbytes // 4] * 4


@pytest.mark.parametrize("how", ["broadcast", "partition", "slices"])
def test_packed_blocks_reach_every_rank(four: Ranks, path: Path, blocks: np.ndarray, how: str) -> None:
    parts = [held["fc.weight"][2] for held, _, _ in done(four.run(rank_jobs.read, path, how))]
    assert parts == [blocks.tobytes()] * 4 if how != "slices" else b"".join(parts) == blocks.tobytes()


def test_a_cut_inside_a_block_is_refused_by_name_on_every_rank(four: Ranks, tmp_path: Path) -> None:
    odd = write_gguf(tmp_path / "odd-Q8_0.gguf", {"fc.weight": (Q8_0, (4, 96), bytes(4 * 3 * 34))}, {})
    results = four.run(rank_jobs.packed, odd, 1)
    assert all(isinstance(result, Exception) for result in results)
    assert all("fc.weight" in str(result) for result in results)
