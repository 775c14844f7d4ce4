# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `support.ranks` run. At the top of a module, so that they find it."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from support.hub_server import only_loopback
from support.tensors import contents
from weight_readers_loader.distributed import open_distributed


def own(value: Any, rank: int) -> Any:
    """What a list for each rank holds for this one; any other value is for all."""
    return value[rank] if isinstance(value, Each) else value


class Each(list[Any]):
    """One value for each rank."""


def configuration(given: Any) -> Any:
    from weight_readers_loader.config import layered

    return None if given is None else layered(engine=given, environ={})


def group_of(only: tuple[int, ...] | None) -> Any:
    return None if only is None else dist.new_group(only)


def warm(rank: int) -> None:
    """Find the installed readers, which each process does once."""
    import weight_readers

    weight_readers.available_reader_names()


def read(rank: int, path: Any, how: Any, *, only: tuple[int, ...] | None = None, **options: Any) -> Any:
    """The contents of a state dict as this rank has it, its report, and the bytes that the process read meanwhile."""
    group = group_of(only)
    if only is not None and rank not in only:
        return None
    options = {name: own(value, rank) for name, value in options.items()}
    load = {name: options.pop(name) for name in ("key_filter", "slices", "show_progress") if name in options}
    options["config"] = configuration(options.get("config"))
    checkpoint = open_distributed(own(path, rank), how=own(how, rank), group=group, **options)
    before = _read()
    tensors = checkpoint.state_dict(**load)
    return contents(tensors.items()), checkpoint.report, _read() - before


class _Backwards:
    """What `os.scandir` gives, from its end on."""

    def __init__(self, path: Any = ".") -> None:
        with _scandir(path) as entries:
            self._entries = iter(sorted(entries, key=lambda entry: str(entry.name), reverse=True))

    def __enter__(self) -> _Backwards:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __iter__(self) -> Any:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)


_scandir, _listdir = os.scandir, os.listdir


def read_listed_backwards(rank: int, path: Any, how: Any) -> Any:
    """`read`; what a folder holds comes to rank 0 by name, and to the others from the end on."""
    os.scandir = _Backwards if rank else _scandir  # type: ignore[assignment, misc]
    os.listdir = lambda path=".": sorted(_listdir(path), reverse=bool(rank))  # type: ignore[assignment]
    try:
        names = [os.listdir(own(path, rank)), [entry.name for entry in os.scandir(own(path, rank))]]
        assert all(each == sorted(each, reverse=bool(rank)) for each in names)
        return read(rank, path, how)
    finally:
        os.scandir, os.listdir = _scandir, _listdir


def read_from_hub(rank: int, name: str, how: str, *, endpoint: str, cache: Each) -> Any:
    """As `read`, of a Hub at ``endpoint``, with a cache for each rank."""
    with pytest.MonkeyPatch.context() as patch:
        only_loopback(patch, endpoint, str(cache[rank]))
        return read(rank, name, how)


def refused_by_gloo(rank: int, path: Any) -> list[str]:
    """The names of tensors that torch's own broadcast refuses, before any byte of them is sent."""
    refused = []
    for name, values in load_file(path).items():
        try:
            dist.broadcast(values, src=0)
        except (RuntimeError, ValueError, TypeError):
            refused.append(name)
    return refused


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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(0))


def fill_strided(rank: int, path: Any, how: str, *, only: tuple[int, ...] | None, **options: Any) -> Any:
    """Fill tensors whose elements do not lie in their order: columns first, and every other one of a wider one."""
    group = group_of(only)
    if only is not None and rank not in only:
        return None
    checkpoint = open_distributed(path, how=how, group=group, bucket_bytes=1000, **options)
    targets = {name: _strided(meta, place) for place, (name, meta) in enumerate(checkpoint.tensors.items())}
    assert not any(target.is_contiguous() for target in targets.values() if target.dim() and target.numel())
    checkpoint.load_into(targets)
    return contents(targets.items())


def _strided(meta: Any, place: int) -> torch.Tensor:
    dtype, shape = getattr(torch, meta.dtype), meta.stored_shape
    if len(shape) < 2:
        return _zeros(shape, dtype)
    if place % 2:
        return _zeros(tuple(reversed(shape)), dtype).permute(*reversed(range(len(shape))))
    return _zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]


def fill_adapted(rank: int, path: Any, how: str, shapes: dict[str, tuple[list[int], str]], **options: Any) -> Any:
    """Fill a mapping of tensors by name; its contents and the report."""
    dtypes = {name: getattr(torch, dtype.removeprefix("torch.")) for name, (_, dtype) in shapes.items()}
    target = {name: _zeros(tuple(shape), dtypes[name]) for name, (shape, _) in shapes.items()}
    report = open_distributed(path, how=how, bucket_bytes=100, **options).load_into(target)
    return contents(target.items()), report


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Of any dtype: torch fills not all of them."""
    return torch.zeros(math.prod(shape) * dtype.itemsize, dtype=torch.uint8).view(dtype).view(shape)


def fill_placed(rank: int, path: Any, how: str, dim: int, *, only: tuple[int, ...] | None = None) -> Any:
    """Fill DTensors, sharded along ``dim`` where they have it: what this rank holds of each, and what it read."""
    group = group_of(only)
    if only is not None and rank not in only:
        return None
    checkpoint = open_distributed(path, how=how, group=group, bucket_bytes=1000)
    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")  # makes no group, in which all ranks would be
    metas = checkpoint.tensors.values()
    targets = {meta.parameter or meta.name: _placed(meta, dim, mesh) for meta in metas}
    report = checkpoint.load_into(targets)
    return contents((name, target.to_local()) for name, target in targets.items()), report.bytes_read


def fill_grid(rank: int, path: Any, placements: dict[str, tuple[Any, ...]]) -> Any:
    """Fill DTensors on a mesh of two dimensions; by name the part, and its places in the whole as torch has them."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    checkpoint = open_distributed(path, how="slices")
    shapes = {n: checkpoint.tensors[n].stored_shape for n in placements}
    numbered = {n: torch.arange(math.prod(shape)).view(shape) for n, shape in shapes.items()}
    placed = {n: distribute_tensor(numbered[n], mesh, where) for n, where in placements.items()}
    targets = {checkpoint.tensors[n].target: _like(placed[n], checkpoint.tensors[n].dtype) for n in placements}
    report = checkpoint.load_into(targets)
    held = {n: targets[checkpoint.tensors[n].target].to_local() for n in placements}
    return contents(held.items()), {n: each.to_local().flatten().tolist() for n, each in placed.items()}, report


def _like(placed: DTensor, dtype: str) -> DTensor:
    local = _zeros(placed.to_local().shape, getattr(torch, dtype))
    return DTensor.from_local(
        local, placed.device_mesh, placed.placements, run_check=False, shape=placed.shape, stride=placed.stride()
    )


def _placed(meta: Any, dim: int, mesh: DeviceMesh) -> DTensor:
    shape = torch.Size(meta.stored_shape)
    placements = [Shard(dim) if dim < len(shape) else Replicate()]
    whole = _zeros(shape, getattr(torch, meta.dtype))
    held = DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    local, rank, ranks = whole, mesh.get_local_rank(), mesh.size()
    if dim < len(shape):
        chunk = -(-shape[dim] // ranks)
        start = min(shape[dim], rank * chunk)
        local = _zeros((*shape[:dim], min(chunk, shape[dim] - start), *shape[dim + 1 :]), whole.dtype)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=held.stride())


def paced(rank: int, path: Any, how: str, *, mark: Path, pause: Any, **options: Any) -> Any:
    """Read, with ``pause`` seconds at each file; ``mark-RANK`` holds the files that this rank came to."""

    def at(file: str) -> None:
        with Path(f"{mark}-{rank}").open("a") as stream:
            stream.write(f"{file}\n")
        time.sleep(own(pause, rank))

    return read(rank, path, how, on_file=at, **options)


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


def tiny(kind: str) -> Any:
    """A transformer of the transformers library with random weights, whose head is tied to its embedding."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 62, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True}
    common = {**sizes, **heads, "attn_implementation": "eager"}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**common))
    return Gemma3ForCausalLM(Gemma3TextConfig(**common, sliding_window=4))


WORDS = torch.tensor([[1, 5, 61, 0, 17, 33], [3, 3, 7, 11, 40, 2]])
_BY_COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_BY_ROWS = ("self_attn.o_proj", "mlp.down_proj")


def saved_whole(rank: int, kind: str, folder: Path) -> Any:
    """One rank saves a transformer by the safetensors library; its logits."""
    if rank:
        return None
    torch.manual_seed(3)
    model = tiny(kind)
    held = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(held, folder / "model.safetensors")
    return model(WORDS).logits.detach()


def transformer(rank: int, path: Any, kind: str, how: str, *, meta: bool, tensor_parallel: int) -> Any:
    """Load a transformer that tensor parallelism, FSDP or both have sharded; its output, and what this rank read."""
    from torch.distributed.fsdp import fully_shard

    data_parallel = dist.get_world_size() // tensor_parallel
    mesh = init_device_mesh("cpu", (data_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))
    with torch.device("meta" if meta else "cpu"):
        model = tiny(kind)
    if meta:
        _compute_buffers(model, tiny(kind))
    if tensor_parallel > 1:
        _parallelize(model, mesh["tp"])
    if data_parallel > 1:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    report = open_distributed(path, how=how).load_into(model, strict=False)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not report.missing
    with torch.no_grad():
        return model(WORDS).logits, report


def _parallelize(model: Any, mesh: Any) -> None:
    plan: dict[str, Any] = {f"model.layers.*.{name}": ColwiseParallel() for name in _BY_COLUMNS}
    plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in _BY_ROWS}
    plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
    plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    model.lm_head.weight = model.model.embed_tokens.weight


def _compute_buffers(model: Any, computed: Any) -> None:
    """What no checkpoint holds, as the model's own code computes it."""
    for name, module in model.named_modules():
        for buffer in module._non_persistent_buffers_set:
            module._buffers[buffer] = computed.get_submodule(name)._buffers[buffer]
