# SPDX-License-Identifier: Apache-2.0
"""The memory of dense weights: bounded, lent again, given back; what is computed does not depend on it."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear
from unit.gguf.packed_layers import EngineLinear, blocks, config_of, create, dense, numbers, whole_numbers

from weight_readers import TargetMismatchError
from weight_readers_gguf.methods import GGUFConfig, Workspace
from weight_readers_gguf.methods.workspace import DEFAULT_BYTES

CPU = torch.device("cpu")


def test_the_default_is_256_mib(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"w.weight": ("Q8_0", blocks("Q8_0", 1, 32))})
    assert config.workspace.limit == DEFAULT_BYTES == 256 << 20


@pytest.mark.parametrize("limit", [0, 4095, -1, 1 << 41])
def test_a_size_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"'workspace_bytes' .* must be from 4096 to {1 << 40}, not {limit}"):
        Workspace(limit)


@pytest.mark.parametrize("limit", [True, 1e9, "256M", None])
def test_what_is_no_number_of_bytes_is_refused(limit: Any) -> None:
    with pytest.raises(TypeError, match=r"'workspace_bytes' .* must be a whole number"):
        Workspace(limit)


def test_a_workspace_too_small_for_one_row_is_refused_when_the_layer_is_made(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"w.weight": ("Q8_0", blocks("Q8_0", 2, 2048))}, workspace_bytes=4096)
    with pytest.raises(TargetMismatchError, match="Set workspace_bytes to at least 8192"):
        create(config, EngineLinear(2048, [2]), "w")


def build(folder: Path, workspace_bytes: int, rows: int = 300, columns: int = 64) -> tuple[GGUFConfig, Any, Any, Any]:
    packed = blocks("Q8_0", rows, columns)
    config = config_of(folder, {"w.weight": ("Q8_0", packed)}, workspace_bytes=workspace_bytes)
    layer = EngineLinear(columns, [rows])
    method = create(config, layer, "w")
    method.load_shard(layer, packed)
    return config, layer, method, dense("Q8_0", packed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_of_rows_give_what_the_whole_gives(tmp_path: Path, dtype: torch.dtype) -> None:
    config, layer, method, weight = build(tmp_path, workspace_bytes=4096)
    step = config.workspace.rows(64, dtype)
    assert 300 % step != 0
    assert step < 300
    # Whole numbers under scales of 1/8 are summed exactly in float32, whichever kernel torch takes.
    x, bias = whole_numbers(2, 5, 64), whole_numbers(300, seed=1)
    out = method.apply(layer, x.to(dtype), bias)
    assert out.equal(linear(x, weight, bias).to(dtype))


def test_the_bound_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, layer, method, _ = build(tmp_path, workspace_bytes=20_000)
    lent = []
    lend = Workspace.lend

    def watched(self: Workspace, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Any:
        lent.append(rows * columns * dtype.itemsize)
        return lend(self, rows, columns, dtype, device)

    monkeypatch.setattr(Workspace, "lend", watched)
    method.apply(layer, numbers(3, 64))
    assert sum(lent) == 300 * 64 * 4
    assert max(lent) <= 20_000
    assert config.workspace.held <= 20_000


def test_memory_is_lent_again_to_whoever_needs_no_more() -> None:
    workspace = Workspace()
    with workspace.lend(8, 64, torch.float32, CPU) as first:
        address = first.data_ptr()
    with workspace.lend(16, 64, torch.bfloat16, CPU) as second:
        assert second.data_ptr() == address
        assert second.shape == (16, 64)
        assert second.dtype == torch.bfloat16
    assert workspace.held == 8 * 64 * 4


def test_memory_is_the_hosts_whatever_the_default_device(tmp_path: Path) -> None:
    _, layer, method, weight = build(tmp_path, workspace_bytes=1 << 20)
    x = whole_numbers(3, 64)
    with torch.device("meta"):
        assert method.apply(layer, x).equal(linear(x, weight))
    assert method.apply(layer, x).equal(linear(x, weight))


def test_two_at_a_time_get_memory_of_their_own() -> None:
    workspace = Workspace()
    with (
        workspace.lend(8, 64, torch.float32, CPU) as first,
        workspace.lend(8, 64, torch.float32, CPU) as second,
    ):
        assert first.data_ptr() != second.data_ptr()


def test_released_memory_is_not_kept() -> None:
    workspace = Workspace()
    with workspace.lend(8, 64, torch.float32, CPU):
        workspace.release()
    assert workspace.held == 0


def test_memory_comes_back_after_an_error() -> None:
    workspace = Workspace()
    with pytest.raises(RuntimeError, match="mine"), workspace.lend(8, 64, torch.float32, CPU):
        raise RuntimeError("mine")
    assert workspace.held == 8 * 64 * 4


def test_a_layer_computes_after_a_release_as_before(tmp_path: Path) -> None:
    config, layer, method, _ = build(tmp_path, workspace_bytes=1 << 20)
    x = numbers(3, 64)
    expected = method.apply(layer, x)
    assert config.workspace.held > 0
    method.release()
    assert config.workspace.held == 0
    assert method.apply(layer, x).equal(expected)


def test_a_copy_has_the_setting_and_not_the_memory() -> None:
    workspace = Workspace(1 << 20)
    with workspace.lend(8, 64, torch.float32, CPU):
        pass
    for other in (copy.deepcopy(workspace), pickle.loads(pickle.dumps(workspace))):
        assert other.limit == 1 << 20
        assert other.held == 0


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    _, layer, method, weight = build(tmp_path, workspace_bytes=8192)
    inputs = [whole_numbers(2, 64, seed=seed) for seed in range(32)]
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda x: method.apply(layer, x), inputs))
    for x, out in zip(inputs, outs, strict=True):
        assert out.equal(linear(x, weight))


def test_windows_are_compiled_too(tmp_path: Path) -> None:
    torch._dynamo.reset()
    _, layer, method, weight = build(tmp_path, workspace_bytes=20_000)
    x, bias = whole_numbers(3, 64), whole_numbers(300, seed=1)
    compiled = torch.compile(lambda x: method.apply(layer, x, bias), fullgraph=True, backend="aot_eager")
    assert compiled(x).equal(linear(x, weight, bias))
