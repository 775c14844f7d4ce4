# SPDX-License-Identifier: Apache-2.0
"""Reading a header: one with a large vocabulary, one with many tensors; each measurement in a process of its own."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conditions import MemorySampler, resident
from benchmarks.rounds import Result, orders

OURS, READER, LIBGGUF = "weight-readers", "gguf.GGUFReader", "libgguf.inspect_gguf"
_TIMEOUT_SECONDS = 600
_SETTLE_SECONDS = 0.02
"""Between the call and the answer, for the sampler to see what is held."""


def vocabulary_file(folder: Path, tokens: int, tensors: int = 400) -> Path:
    """``tokens`` tokens, merges, scores and types, as a language model has them, and small tensors."""

    def describe(writer: Any) -> None:
        words = [f"token{number:x}" for number in range(tokens)]
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(words)
        writer.add_token_merges([f"{word} {word}" for word in words])
        writer.add_token_scores([0.5] * tokens)
        writer.add_token_types([1] * tokens)

    return _made(folder / f"vocabulary-{tokens}.gguf", tensors, describe)


def tensors_file(folder: Path, tensors: int) -> Path:
    """Many tensors and hardly any metadata, as a diffusion transformer has them."""
    return _made(folder / f"tensors-{tensors}.gguf", tensors, lambda writer: None)


def _made(path: Path, tensors: int, describe: Callable[[Any], None]) -> Path:
    import gguf

    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    describe(writer)
    for number in range(tensors):
        writer.add_tensor(f"transformer_blocks.{number // 20}.part.{number % 20}.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(path)


def measure(path: Path, arms: Sequence[str], rounds: int, *, once: Sequence[str] = ()) -> dict[str, list[Result]]:
    """Seconds and memory beyond what was there before, by arm; those of ``once`` in the first round only."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy"])
    found: dict[str, list[Result]] = {arm: [] for arm in arms}
    for number, order in enumerate(orders(arms, rounds)):
        for arm in order:
            if number == 0 or arm not in once:
                found[arm].append({"round": number, **_in_child(context, arm, path)})
    return found


def absent(arm: str) -> str | None:
    """Why an arm cannot run here."""
    module = {OURS: "weight_readers_gguf", READER: "gguf", LIBGGUF: "libgguf"}[arm]
    return None if importlib.util.find_spec(module) else f"{module} is not installed (requirements-bench.txt)"


def _in_child(context: Any, arm: str, path: Path) -> Result:
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, arm, str(path)), daemon=True)
    process.start()
    send.close()
    with MemorySampler(process.pid or 0, interval=0.002) as sampler:
        try:
            result: Result = receive.recv() if receive.poll(_TIMEOUT_SECONDS) else {"error": "no answer in time"}
        except EOFError:
            result = {"error": "the process ended without an answer"}
    process.kill()
    process.join()
    if "error" not in result:
        anon, file = sampler.peak(result.pop("begin"), result.pop("end"))
        result["peak"] = max(anon + file, result["held_after"]) - result["before"]
        result["held"] = result.pop("held_after") - result.pop("before")
    return result


def _child(answer: Connection, arm: str, path: str) -> None:
    try:
        answer.send(_timed(arm, path))
    except Exception as error:
        answer.send({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})


def _timed(arm: str, path: str) -> Result:
    call = _call(arm)
    call(str(tensors_file(Path(path).parent, 2)))
    gc.collect()
    before, begin = sum(resident()), time.monotonic_ns()
    header = call(path)
    seconds = (time.monotonic_ns() - begin) / 1e9
    time.sleep(_SETTLE_SECONDS)
    held, end = sum(resident()), time.monotonic_ns()
    del header
    return {"seconds": seconds, "before": before, "held_after": held, "begin": begin, "end": end}


def _call(arm: str) -> Callable[[str], Any]:
    """The arm's way to a header, imported in the process that is measured."""
    if arm == OURS:
        from weight_readers_gguf.header import read_header

        return read_header
    if arm == READER:
        import gguf

        reader: Callable[[str], Any] = gguf.GGUFReader
        return reader
    from libgguf.inspect import inspect_gguf

    inspect: Callable[[str], Any] = inspect_gguf
    return inspect
