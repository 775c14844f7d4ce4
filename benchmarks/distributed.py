# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.distributed``: bytes that each rank reads, and wall time, of the ways to load on many ranks.

Ranks are processes over gloo on this machine, forked from a server that has imported torch. The arms take turns in
every round, after one that is not counted (what is imported late is by then), each after a rest (`conditions.rest`):
every rank reads all, broadcast, partition, slices, and `torch.distributed.checkpoint` with its reader for Hugging Face
checkpoints. Slices, ours and the peer's, go into new DTensors: of rows, of columns, and of rows by columns on a mesh
of two dimensions. Bytes are those of the kernel's count (``rchar``), which does not see a mapping: the peer maps its
files, and so do we for columns, so that share is shown as 0.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.conditions import rest

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=256, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        total = make(Path(folder), given.mib)
        show(measure(Path(folder), given.ranks, given.rounds), total, given.ranks)


def make(folder: Path, mib: int) -> int:
    """8 tensors of bf16, 4096 columns wide, in one file; the bytes of them."""
    from safetensors.torch import save_file

    rows = max(8, mib * MIB // 8 // 2 // 4096)
    tensors = {f"w{number}": torch.randn(rows, 4096).bfloat16() for number in range(8)}
    save_file(tensors, folder / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())


def measure(folder: Path, ranks: int, rounds: int) -> dict[str, list[Any]]:
    """Arm -> for each round what each rank says: ``(seconds, bytes read)``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "weight_readers_loader.distributed"])
    queue: Any = context.Queue()
    processes = [context.Process(target=_rank, args=(r, ranks, port, folder, rounds, queue)) for r in range(ranks)]
    for process in processes:
        process.start()
    told = dict(queue.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    arms = told[0]
    return {arm: [[told[rank][arm][turn] for rank in range(ranks)] for turn in range(rounds)] for arm in arms}


def _rank(rank: int, ranks: int, port: int, folder: Path, rounds: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    arms = {arm: load for arm, load in ARMS.items() if "both" not in arm or (ranks > 2 and ranks % 2 == 0)}
    found: dict[str, list[Any]] = {arm: [] for arm in arms}
    for turn in range(rounds + 1):
        for arm, load in arms.items():
            gc.collect()
            if turn:
                rest()
            dist.barrier()
            begun, before = time.perf_counter(), _rchar()
            load(folder)
            dist.barrier()
            if turn:
                found[arm].append((time.perf_counter() - begun, _rchar() - before))
    queue.put((rank, found))
    dist.destroy_process_group()


def _rchar() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def everyone(folder: Path) -> None:
    from weight_readers_loader import open_checkpoint

    open_checkpoint(folder).state_dict(owned=True)


def ours(how: str) -> Callable[[Path], None]:
    def load(folder: Path) -> None:
        from weight_readers_loader.distributed import open_distributed

        open_distributed(folder, how=how).state_dict()

    return load


def placed(how: str, load: Callable[[Path, dict[str, Any]], None]) -> Callable[[Path], None]:
    """``load`` into new DTensors of this rank's ``rows``, ``columns`` or ``both``."""

    def into(folder: Path) -> None:
        from torch.distributed.tensor import Shard

        ranks = dist.get_world_size()
        where = {"rows": ((ranks,), [Shard(0)]), "columns": ((ranks,), [Shard(1)])}
        load(folder, _empty(folder, *where.get(how, ((ranks // 2, 2), [Shard(0), Shard(1)]))))

    return into


def sliced(folder: Path, targets: dict[str, Any]) -> None:
    from weight_readers_loader.distributed import open_distributed

    open_distributed(folder, how="slices").load_into(targets)


def peer(folder: Path, targets: dict[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    dcp.load(targets, storage_reader=HuggingFaceStorageReader(str(folder)))


def _empty(folder: Path, ranks: tuple[int, ...], placements: Sequence[Placement]) -> dict[str, Any]:
    """DTensors for every tensor of the checkpoint, placed so on a mesh of ``ranks``."""
    from safetensors import safe_open
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import empty

    (path,) = folder.iterdir()
    on = init_device_mesh("cpu", ranks)
    with safe_open(path, framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
    return {n: empty(*s, dtype=torch.bfloat16, device_mesh=on, placements=placements) for n, s in shapes.items()}


ARMS: dict[str, Callable[[Path], None]] = {
    "every rank reads all": everyone,
    "broadcast": ours("broadcast"),
    "partition": ours("partition"),
    "slices": ours("slices"),
    **{f"slices into {how}": placed(how, sliced) for how in ("rows", "columns", "both")},
    **{f"torch.distributed.checkpoint, {how}": placed(how, peer) for how in ("rows", "columns", "both")},
}


def show(found: dict[str, list[Any]], total: int, ranks: int) -> None:
    print(f"{total / MIB:.0f} MiB, {ranks} ranks over gloo, warm; a rank's bytes as a share of the checkpoint")  # noqa: T201
    base = median(max(seconds for seconds, _ in turn) for turn in found["every rank reads all"])
    for arm, turns in found.items():
        walls = sorted(max(seconds for seconds, _ in turn) for turn in turns)
        shares = " ".join(f"{median(turn[rank][1] for turn in turns) / total:6.3f}" for rank in range(ranks))
        spread = f"{walls[0]:.3f}-{walls[-1]:.3f}"
        print(f"{arm:<37} {median(walls):.3f} s ({spread})  x{median(walls) / base:.2f}  read {shares}")  # noqa: T201


if __name__ == "__main__":
    main()
