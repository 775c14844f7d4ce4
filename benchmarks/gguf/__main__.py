# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.gguf``: measure, print the tables and the thresholds, write JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.conditions import machine
from benchmarks.gguf import arms, dequantization, device, opening
from benchmarks.gguf.report import Run
from benchmarks.gguf.verdicts import verdicts
from weight_readers_gguf.types import DEQUANTIZABLE, TYPES

WORKS = ("fresh", "into", "opening", "device")
_NAMES = [each.name for each in TYPES.values() if each.name in DEQUANTIZABLE]
_PACKAGES = ("weight-readers-gguf", "gguf", "libgguf", "libggml-python", "numba", "numpy", "triton")
_QUICK = {"rows": 256, "rounds": 2, "vocabulary": 5_000}
_DEVICE_SIZE = 8192


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    absent = {name: why for name in options.arms if (why := arms.ARMS[name].absent()) is not None}
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    run = Run(settings=settings, machine=_machine(options.data), absent=absent)
    for work in options.work:
        _WORKS[work](run, options)
    run.verdicts = verdicts(run.results)
    (options.out / "tables.md").write_text(run.text())
    run.write_json(options.out / "results.json")
    print(run.text())  # noqa: T201
    _say(f"written: {options.out}/tables.md, results.json")
    return 0 if run.results else 1


def _dequantize(work: str, run: Run, options: argparse.Namespace) -> None:
    run.titles[work] = f"{work}: dequantization to float32, {dequantization.WORKS[work]}"
    chosen = [name for name in options.arms if name not in run.absent]
    for name in options.types:
        _say(f"{work} {name}")
        run.results.setdefault(work, {})[name] = dequantization.measure(
            work,
            name,
            chosen,
            rows=options.rows,
            columns=options.columns,
            rounds=options.rounds,
            verify=arms.GGML_C in chosen,
        )


def _open(run: Run, options: argparse.Namespace) -> None:
    run.titles["opening"] = (
        f"opening: headers of {options.vocabulary:,} tokens and merges, and of {options.tensors:,} tensors "
        f"({opening.READER} once for the vocabulary)"
    )
    names = (opening.OURS, opening.READER, opening.LIBGGUF)
    run.absent |= {name: why for name in names if (why := opening.absent(name)) is not None}
    chosen = [name for name in names if name not in run.absent]
    files = {
        "vocabulary": opening.vocabulary_file(options.data, options.vocabulary),
        "tensors": opening.tensors_file(options.data, options.tensors),
    }
    for name, path in files.items():
        _say(f"opening {path.name}")
        once = (opening.READER,) if name == "vocabulary" else ()
        run.results.setdefault("opening", {})[name] = opening.measure(path, chosen, options.rounds, once=once)


def _on_device(run: Run, options: argparse.Namespace) -> None:
    if why := device.absent():
        run.absent["device"] = why
        return
    size = {"rows": min(options.rows * 2, _DEVICE_SIZE), "columns": _DEVICE_SIZE, "rounds": options.rounds}
    run.titles["device"] = f"device: {size['rows']} x {size['columns']} on {torch.cuda.get_device_name()}"
    run.titles["linear"] = "linear: a packed layer beside one in bf16"
    for name in device.chosen(options.types):
        _say(f"device {name}")
        run.results.setdefault("device", {})[name] = device.bandwidth(name, **size)
        for tokens, by_arm in device.linear(name, options.data, **size).items():
            run.results.setdefault("linear", {})[f"{name}, {tokens}"] = by_arm


_WORKS = {
    "fresh": lambda run, options: _dequantize("fresh", run, options),
    "into": lambda run, options: _dequantize("into", run, options),
    "opening": _open,
    "device": _on_device,
}


def _machine(folder: Path) -> dict[str, object]:
    found = machine(str(folder))
    for name in _PACKAGES:
        try:
            found["versions"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found["versions"][name] = None
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gguf", description="The GGUF plugin beside its peers.")
    _several(parser, "--work", WORKS)
    _several(parser, "--types", _NAMES)
    _several(parser, "--arms", list(arms.ARMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4096, help="of a weight (default: 4096)")
    parser.add_argument("--columns", type=int, default=4096, help="a multiple of 256 (default: 4096)")
    parser.add_argument("--threads", type=int, default=2, help="of every arm that has them (default: 2)")
    parser.add_argument("--vocabulary", type=int, default=250_000, help="tokens (default: 250,000)")
    parser.add_argument("--tensors", type=int, default=1200, help="of the many-tensors header (default: 1200)")
    parser.add_argument("--data", type=Path, default=Path("build/bench/gguf"), help="where files are kept")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gguf-results"), help="where results are written")
    parser.add_argument("--quick", action="store_true", help="small, 2 rounds: does everything run?")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(_QUICK)
    if min(options.rounds, options.rows, options.threads) < 1 or options.columns < 256 or options.columns % 256:
        parser.error("--rounds, --rows and --threads must be at least 1, and --columns a multiple of 256")
    for folder in (options.data, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    return options


def _several(parser: argparse.ArgumentParser, flag: str, of: Sequence[str]) -> None:
    parser.add_argument(flag, nargs="+", choices=of, default=list(of), metavar="NAME", help=f"of: {', '.join(of)}")


if __name__ == "__main__":
    sys.exit(main())
