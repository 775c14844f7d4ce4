# SPDX-License-Identifier: Apache-2.0
"""Opening a checkpoint of many tensors, beside what safetensors needs to open its shards and list their keys.

``python -m benchmarks.many_tensors``: sparse files, so it needs little disk. CPU time of the process, all threads
included: the rounds of the arms take turns, and another load on the machine does not decide.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open

from benchmarks.summary import Spread
from weight_readers_loader import open_checkpoint

PEER, OPENED, PLANNED = "safetensors: open and list keys", "open_checkpoint", "open_checkpoint, first tensor"
CEILING = 3.0
"""How many times the peer's time resolving, checking and planning may take."""

ROWS, COLUMNS = 512, 1024


def write(folder: Path, tensors: int, shards: int) -> Path:
    """``tensors`` of BF16 [512, 1024] in sparse ``shards`` with an index, named as those of a model with experts."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.up_proj.weight" for i in range(tensors)]
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        held = names[number * tensors // shards : (number + 1) * tensors // shards]
        _write_shard(folder / file, held)
        weight_map |= dict.fromkeys(held, file)
    nbytes = 2 * ROWS * COLUMNS * tensors
    index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _write_shard(path: Path, names: list[str]) -> None:
    nbytes = 2 * ROWS * COLUMNS
    header = {
        name: {"dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [i * nbytes, (i + 1) * nbytes]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + nbytes * len(names))


def peer(folder: Path) -> int:
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            count += len(file.keys())
    return count


def opened(folder: Path) -> int:
    return len(open_checkpoint(folder).tensors)


def planned(folder: Path) -> int:
    """Up to the first tensor: the reader plans before it. It reads no further ahead: reading is not the question."""
    checkpoint = open_checkpoint(folder, reader="threaded", reader_options={"max_in_flight_bytes": 2 << 20})
    weights = checkpoint.iter_weights()
    next(weights)
    weights.close()
    return len(checkpoint.tensors)


ARMS: dict[str, Callable[[Path], int]] = {PEER: peer, OPENED: opened, PLANNED: planned}


def measure(folder: Path, tensors: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each arm in each round; the first round, which imports and fills caches, does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    for number in range(rounds + 1):
        for name, arm in ARMS.items():
            gc.collect()
            begun = time.process_time()
            found = arm(folder)
            took = time.process_time() - begun
            if found != tensors:
                raise RuntimeError(f"{name} found {found} of {tensors} tensors")
            if number:
                seconds[name].append(took)
    return seconds


def lines(seconds: dict[str, list[float]]) -> list[str]:
    """The median of each arm with its spread, and how many times the peer's it is, round by round."""
    said = []
    for name, figures in seconds.items():
        found = Spread.of(figures)
        ratio = Spread.of([one / other for one, other in zip(figures, seconds[PEER], strict=True)])
        if found is not None and ratio is not None:
            met = "" if name == PEER else f", under {CEILING:g}: {'met' if ratio.median < CEILING else 'NOT MET'}"
            times = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) times the peer{met}"
            said.append(f"{name}: {found.median:.3f} s ({found.low:.3f} to {found.high:.3f}) of CPU, {times}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/many"))
    given = parser.parse_args()
    folder = write(given.folder / f"{given.tensors}-{given.shards}", given.tensors, given.shards)
    held = sum(os.stat(path).st_blocks * 512 for path in folder.iterdir())
    head = f"{given.tensors} tensors in {given.shards} shards, {held / 2**20:.0f} MiB on disk, {given.rounds} rounds"
    print("\n".join([head, *lines(measure(folder, given.tensors, given.rounds))]))  # noqa: T201


if __name__ == "__main__":
    main()
