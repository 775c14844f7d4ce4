# SPDX-License-Identifier: Apache-2.0
"""On a GPU: dequantization beside a copy of as many bytes, and `GGUFLinearMethod.apply` beside a bf16 GEMM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gguf.blocks import random_weight
from benchmarks.rounds import Result, orders
from weight_readers_gguf.types import BY_NAME

DEQUANTIZE, COPY = "dequantize to bf16", "copy of as many bytes"
APPLY, GEMM = "GGUFLinearMethod.apply", "bf16 GEMM"
TOKENS = (1, 16, 256, 2048)
_REPEATS = 20
"""Calls between two events: one alone would be shorter than their resolution allows to compare."""


def absent() -> str | None:
    """Why nothing of this can run here."""
    return None if torch.cuda.is_available() else "no CUDA device here"


def bandwidth(name: str, *, rows: int, columns: int, rounds: int) -> dict[str, list[Result]]:
    """Seconds and bytes (read and written) of dequantizing a weight that is on the device, and of a plain copy."""
    from weight_readers_gguf.dequant import dequantize

    packed = torch.from_numpy(random_weight(name, rows, columns)).cuda()
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
    moved = packed.nbytes + out.nbytes
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], Any]] = {
        DEQUANTIZE: lambda: dequantize(packed, name, dtype=torch.bfloat16, out=out),
        COPY: lambda: target.copy_(source),
    }
    return _measured(calls, rounds, moved)


def linear(name: str, folder: Path, *, rows: int, columns: int, rounds: int) -> dict[int, dict[str, list[Result]]]:
    """Seconds of a linear layer with a packed weight and with one in bf16, by the number of tokens."""
    method, layer = _packed_layer(name, folder, rows, columns)
    dense = torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")
    found = {}
    for tokens in TOKENS:
        x = torch.randn(tokens, columns, dtype=torch.bfloat16, device="cuda")
        calls: dict[str, Callable[[], Any]] = {
            APPLY: partial(method.apply, layer, x),
            GEMM: partial(torch.nn.functional.linear, x, dense),
        }
        found[tokens] = _measured(calls, rounds, 0)
    return found


def _packed_layer(name: str, folder: Path, rows: int, columns: int) -> tuple[Any, torch.nn.Module]:
    import gguf

    from weight_readers_gguf.methods.config import GGUFConfig

    path, packed = folder / f"layer-{name}.gguf", random_weight(name, rows, columns)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("layer.weight", packed, raw_dtype=gguf.GGMLQuantizationType(BY_NAME[name].id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    layer = torch.nn.Linear(columns, rows, bias=False, device="meta")
    method: Any = GGUFConfig.from_file(path).get_quant_method(layer, "layer")
    with torch.device("cuda"):
        method.create_weights(layer, columns, [rows], columns, rows, torch.bfloat16)
    layer.get_parameter("qweight").copy_(torch.from_numpy(packed))
    return method, layer


def _measured(calls: dict[str, Callable[[], Any]], rounds: int, nbytes: int) -> dict[str, list[Result]]:
    with torch.inference_mode():
        for call in calls.values():
            call()
        torch.cuda.synchronize()
        found: dict[str, list[Result]] = {arm: [] for arm in calls}
        for number, order in enumerate(orders(list(calls), rounds)):
            for arm in order:
                found[arm].append({"round": number, "seconds": _seconds(calls[arm]), "bytes": nbytes})
    return found


def _seconds(call: Callable[[], Any]) -> float:
    make: Any = torch.cuda.Event
    begin, end = make(enable_timing=True), make(enable_timing=True)
    begin.record()
    for _ in range(_REPEATS):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _REPEATS


def chosen(names: Sequence[str]) -> list[str]:
    """Types that the Triton path has."""
    from weight_readers_gguf.dequant import triton_kernels

    return [name for name in names if name in triton_kernels.SUPPORTED]
