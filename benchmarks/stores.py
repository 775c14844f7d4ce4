# SPDX-License-Identifier: Apache-2.0
"""Reader ``runai_streamer`` beside the backend's own streamer as engines use it, into parameters that exist.

``python -m benchmarks.stores``: files in the page cache, files that are not in it, and an S3 on loopback (rclone). The
peer streams, clones each tensor and copies it to its parameter, as vLLM and SGLang do. Each measurement is a process
of its own that has read a small checkpoint from the same place before; the arms take turns. Time, and anonymous memory
at its peak beyond what the process held before it began, its parameters included.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import data
from benchmarks.conditions import MemorySampler, evict, resident, warm
from benchmarks.delivered import check, existing
from benchmarks.entries import Entry, read_entries
from benchmarks.settings import MIB, parse_size
from benchmarks.summary import Spread

OURS, PEER = "weight-readers runai_streamer", "SafetensorsStreamer, clone and copy"
PLACES = ("warm", "cold", "s3")
MORE_TIME, LESS_MEMORY = 1.1, 0.6
"""How many times the peer's time and anonymous memory are allowed."""
TIMEOUT_SECONDS = 300
_KEY, _SECRET = "key", "secret"

Targets = Mapping[str, torch.Tensor]
Figures = dict[str, list[tuple[float, float]]]
"""Of each arm ``(seconds, bytes)``, round by round."""


def ours(files: Sequence[str], targets: Targets) -> None:
    from weight_readers import select_weight_reader

    reader = select_weight_reader(requested="runai_streamer", format="safetensors", strict=True)
    reader.read_into(files, targets)  # type: ignore[attr-defined]


def peer(files: Sequence[str], targets: Targets) -> None:
    from runai_model_streamer import SafetensorsStreamer  # type: ignore[import-untyped]

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(list(files))
        for name, values in streamer.get_tensors():
            targets[name].copy_(values.clone())


ARMS: dict[str, Callable[[Sequence[str], Targets], None]] = {OURS: ours, PEER: peer}


class Job(NamedTuple):
    """``files`` are the same bytes as ``local``, by paths or URIs; ``small`` is read before, from the same place."""

    arm: str
    small: Sequence[str]
    files: Sequence[str]
    small_wanted: Sequence[Entry]
    wanted: Sequence[Entry]
    environment: Mapping[str, str]


def child(answer: Connection, job: Job) -> None:
    """Send when the reading began and ended, and the anonymous memory before it."""
    os.environ.update(job.environment)
    ARMS[job.arm](job.small, existing(job.small_wanted))
    targets = existing(job.wanted)
    gc.collect()
    before, begin = resident()[0], time.monotonic_ns()
    ARMS[job.arm](job.files, targets)
    end = time.monotonic_ns()
    check(targets, job.wanted)
    answer.send((begin, end, before))


def one(job: Job) -> tuple[float, float]:
    """Seconds, and bytes beyond. Raises RuntimeError where the process fails or does not end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "numpy"])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(send, job), daemon=True)
    process.start()
    send.close()
    try:
        with MemorySampler(process.pid or 0) as sampler:
            if not receive.poll(TIMEOUT_SECONDS):
                raise RuntimeError(f"{job.arm} did not end within {TIMEOUT_SECONDS} s")
            begin, end, before = receive.recv()
    except EOFError:
        raise RuntimeError(f"{job.arm} failed") from None
    finally:
        process.kill()
        process.join()
    return (end - begin) / 1e9, sampler.peak(begin, end)[0] - before


def measure(place: str, folder: Path, nbytes: int, rounds: int) -> Figures:
    """A round is a turn of each arm, in an order that is reversed in every other. The first round does not count:
    rclone computes the MD5 of the files in it."""
    model, small = data.model(folder / "model", nbytes, 2), data.model(folder / "small", MIB, 1)
    figures: Figures = {name: [] for name in ARMS}
    with located(place, folder) as (environment, path_of):
        for number in range(rounds + 1):
            for name in list(ARMS)[:: -1 if number % 2 else 1]:
                (evict if place == "cold" else warm)(model.files)
                files, few = ([path_of(each) for each in some.files] for some in (model, small))
                wanted = [read_entries(some.files) for some in (small, model)]
                figure = one(Job(name, few, files, *wanted, environment))
                figures[name] += [figure] if number else []
    return figures


@contextmanager
def located(place: str, folder: Path) -> Iterator[tuple[dict[str, str], Callable[[str], str]]]:
    """Variables for the children, and what a file is called at the place."""
    if place != "s3":
        yield {}, str
        return
    with served(folder) as endpoint:
        variables = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield variables, lambda path: f"s3://{Path(path).relative_to(folder).as_posix()}"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """rclone's S3 with the folder's folders as buckets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ["--addr", address, "--auth-key", f"{_KEY},{_SECRET}", "--config", os.devnull]
    command = [Path(sys.executable).with_name("rclone"), "serve", "s3", *options, folder]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_for(address)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait()


def _wait_for(address: str) -> None:
    host, port = address.split(":")
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens at {address}")


def lines(place: str, figures: Figures) -> list[str]:
    """Each arm's medians, and how many times the peer's ours are, round by round."""
    said = [
        f"{place}: {name}: {_shown([s for s, _ in each], 's')}, {_shown([b / MIB for _, b in each], 'MiB')}"
        for name, each in figures.items()
    ]
    for what, column, most in (("time", 0, MORE_TIME), ("anonymous memory", 1, LESS_MEMORY)):
        pairs = zip(figures[OURS], figures[PEER], strict=True)
        found = [mine[column] / other[column] for mine, other in pairs if other[column] > 0]
        if (ratio := Spread.of(found)) is not None:
            met = "met" if ratio.median <= most else "NOT MET"
            said.append(f"{place}: {what} {_shown(found, 'times the peer')}, at most {most:g}: {met}")
    return said


def _shown(values: Sequence[float], unit: str) -> str:
    found = Spread.of(values)
    return "no figure" if found is None else f"{found.median:.2f} {unit} ({found.low:.2f} to {found.high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=parse_size("512MiB"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--place", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--folder", type=Path, default=Path("build/bench/stores"))
    given = parser.parse_args()
    for place in given.place:
        figures = measure(place, given.folder.resolve(), given.size, given.rounds)
        print("\n".join(lines(place, figures)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
