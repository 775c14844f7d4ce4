# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `support.ranks` run. At the top of a module, so that they find it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from support.tensors import bits, contents
from weight_readers_loader.distributed import open_distributed


def own(value: Any, rank: int) -> Any:
    """What a list holds for this rank; any other value is for all."""
    return value[rank] if isinstance(value, list) else value


def group_of(only: tuple[int, ...] | None) -> Any:
    return None if only is None else dist.new_group(only)


def read(rank: int, path: Any, how: Any, *, only: tuple[int, ...] | None = None, **options: Any) -> Any:
    """The contents of a state dict as this rank has it, its report, and the bytes that the process read meanwhile."""
    group = group_of(only)
    if only is not None and rank not in only:
        return None
    options = {name: own(value, rank) for name, value in options.items()}
    load = {name: options.pop(name) for name in ("key_filter", "slices", "show_progress") if name in options}
    checkpoint = open_distributed(own(path, rank), how=own(how, rank), group=group, **options)
    before = _read()
    tensors = checkpoint.state_dict(**load)
    return contents(tensors.items()), checkpoint.report, _read() - before


def _read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def alone(rank: int, path: Any) -> Any:
    """The first rank loads without the others, who do nothing."""
    from weight_readers_loader import open_checkpoint

    return contents(open_checkpoint(path).state_dict().items()) if rank == 0 else None


def fill(rank: int, path: Any, how: str, *, meta: bool, **options: Any) -> Any:
    """Fill a module with tied parameters: the contents, whether they are tied still, and the report."""
    with torch.device("meta" if meta else "cpu"):
        model = Tied()
    report = open_distributed(own(path, rank), how=how, bucket_bytes=300).load_into(model, **options)
    return contents(model.state_dict().items()), model.head.weight is model.embed.weight, report


def fill_strided(rank: int, path: Any, how: str, name: str, shape: tuple[int, ...]) -> Any:
    target = torch.zeros(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
    open_distributed(path, how=how).load_into({name: target}, strict=False)
    return target.is_contiguous(), bits(target)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(0))


class Block(nn.Module):
    """A transformer in small, of sizes that four ranks cannot share evenly where FSDP cuts them."""

    def __init__(self, width: int = 8, hidden: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, width)
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        y = self.norm(x)
        scores = (self.q(y) @ self.k(y).transpose(-1, -2)).softmax(-1)
        x = x + self.o(scores @ self.v(y))
        return (x + self.down(torch.relu(self.up(x)))) * self.scale


TOKENS = torch.tensor([[1, 5, 12, 0], [3, 3, 7, 11]])
PLAN = {
    **{name: ColwiseParallel() for name in ("q", "k", "v")},
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class Mlp(nn.Module):
    """Linear layers only, which tensor parallelism splits by columns and by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 20), nn.Linear(20, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down(torch.relu(self.up(x))))


INPUT = torch.linspace(-1, 1, 24).reshape(3, 8)


def sharded(rank: int, path: Any, how: str, *, meta: bool, tensor_parallel: int, data_parallel: int) -> Any:
    """Load a model that FSDP, tensor parallelism or both have sharded: its output and its report."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(rank)
    mesh = init_device_mesh("cpu", (data_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))
    with torch.device("meta" if meta else "cpu"):
        model = Mlp() if tensor_parallel > 1 else Block()
    if tensor_parallel > 1:
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if data_parallel > 1:
        fully_shard(model, mesh=mesh["dp"])
    report = open_distributed(path, how=how).load_into(model)
    assert any(isinstance(parameter, DTensor) for parameter in model.parameters())
    with torch.no_grad():
        output = model(INPUT if tensor_parallel > 1 else TOKENS)
    return output, report


def packed(rank: int, path: Any, dim: int) -> Any:
    """This rank's part of a packed tensor, by a DTensor of bytes, and what it read."""
    from torch.distributed.tensor import Shard, zeros

    from weight_readers_loader import open_checkpoint

    meta = open_checkpoint(path).tensors["fc.weight"]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    target = zeros(*meta.stored_shape, dtype=torch.uint8, device_mesh=mesh, placements=[Shard(dim)])
    report = open_distributed(path, how="slices").load_into({meta.parameter or meta.name: target}, strict=False)
    return target.to_local(), report.bytes_read


def slow(rank: int, path: Any, how: str, *, mark: Path, **options: Any) -> Any:
    """Read with a reader that sleeps; a file beside ``mark`` says that this rank is about to."""
    Path(f"{mark}{rank}").touch()
    return read(rank, path, how, **options)


def late(rank: int, path: Any, how: str, *, pause: float, who: int, **options: Any) -> Any:
    """One rank comes later than the others."""
    if rank == who:
        time.sleep(pause)
    return read(rank, path, how, **options)


def in_turns(rank: int, jobs: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    """Several loads one after the other; what each ends with."""
    found: list[Any] = []
    for path, options in jobs:
        try:
            found.append(read(rank, path, **options))
        except Exception as error:
            found.append(error)
    return found


def stderr_of(rank: int, path: Any, how: str, folder: Any) -> str:
    """What this rank writes to standard error while it loads with progress."""
    file = Path(folder) / f"stderr-{rank}"
    before = os.dup(2)
    with file.open("w") as stream:
        os.dup2(stream.fileno(), 2)
        try:
            open_distributed(path, how=how).state_dict(show_progress=True)
            sys.stderr.flush()
        finally:
            os.dup2(before, 2)
            os.close(before)
    return file.read_text()
