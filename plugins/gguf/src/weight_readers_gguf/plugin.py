# SPDX-License-Identifier: Apache-2.0
"""The hooks of reader ``gguf``, and the quant methods that come with it. Light: no torch, no numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weight_readers import (
    Alignment,
    Declined,
    Environment,
    Feature,
    Lifetime,
    Order,
    QuantMethodInfo,
    ReaderInfo,
    Request,
    Requirement,
    WeightReader,
    Writes,
    hookimpl,
)

INFO = ReaderInfo(
    name="gguf",
    summary="memory-mapped GGUF files: quantized weights packed as they are stored, or dequantized on request",
    formats=frozenset({"gguf"}),
    schemes=frozenset({"file"}),
    devices=frozenset({"cpu"}),
    features=frozenset(
        {
            Feature.KEY_FILTER,
            Feature.FILE_MAPPING,
            Feature.SLICES,
            Feature.MULTI_SLICES,
            Feature.PACKED,
            Feature.BOUNDED_MEMORY,
        }
    ),
    lifetime=Lifetime.MAPPED,
    order=Order.FILE_OFFSET,
    alignment=Alignment.NATURAL,
    writes=Writes.COPY_ON_WRITE,
    options=frozenset({"dequantize", "readonly", "copy", "prefetch"}),
    tunable=frozenset({"prefetch"}),
    engine_keys=frozenset(
        {"quantization", "svdquant", "nunchaku", "fsdp", "offloaded", "lora", "adaln_online", "adaln_cache_path"}
    ),
    requires=(
        Requirement(module="torch", distribution="torch"),
        Requirement(module="numpy", distribution="numpy"),
        Requirement(module="weight_readers_files", distribution="weight-readers-files"),
    ),
    fallback=True,
)


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return INFO


@hookimpl
def weight_readers_check(request: Request, environment: Environment) -> Declined | None:
    from weight_readers_gguf.refusals import declined

    return declined(request, environment)


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> WeightReader:
    from weight_readers_gguf.reader import GGUFReader

    return GGUFReader(**options)


@hookimpl
def weight_readers_quant_methods() -> Sequence[QuantMethodInfo]:
    from weight_readers_gguf.types import DEQUANTIZABLE

    return [
        QuantMethodInfo(
            name="gguf",
            weight_types=DEQUANTIZABLE,
            device_types=frozenset({device}),
            factory="weight_readers_gguf.methods.config:GGUFConfig",
            summary=f"dequantizes blocks {how}, then the native GEMM",
        )
        for device, how in (("cuda", "in Triton kernels"), ("cpu", "in compiled code, or in torch operations"))
    ]
