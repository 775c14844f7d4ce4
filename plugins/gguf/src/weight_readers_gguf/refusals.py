# SPDX-License-Identifier: Apache-2.0
"""What an engine may not combine with packed weights: said before a download, each with its reason and remedy.

Pure functions of the request, in a fixed order; the first that applies is the answer. Keys of
``Request.engine`` that are read: ``quantization``, ``svdquant``, ``nunchaku``, ``fsdp`` and ``offloaded`` (both of
the component that the file is for), ``lora``, ``adaln_online``, ``adaln_cache_path``. Order and meaning are those
of SGLang's ``_validate_gguf_runtime_support``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weight_readers import Declined, Environment, Request

DEVICES = frozenset({"cpu", "cuda"})
"""Device types on which packed weights are computed with."""

_DENSE = "reader option dequantize='bfloat16' delivers plain weights"
_WITHOUT_FSDP = f"Load this component without FSDP or offloaded; {_DENSE}"
_WITHOUT_LORA = f"Start without it and attach it as a low-rank branch beside the packed weights; {_DENSE}"


def declined(request: Request, environment: Environment) -> Declined | None:
    """The first reason why ``request`` cannot be served from a GGUF file, or None.

    ``environment`` is not consulted: nothing here depends on the machine. Weights that ``options`` or ``settings``
    dequantize while they are read are plain ones: what excludes packed weights only does not apply to them.
    """
    dense = bool(request.options.get("dequantize") or request.settings.get("dequantize"))
    for rule in _RULES:
        if not (dense and rule in _OF_PACKED_WEIGHTS) and (found := rule(request)):
            return found
    return None


def _quantization_gguf(request: Request) -> Declined | None:
    if _asked(request.engine, "quantization") != "gguf":
        return None
    return Declined(
        reason="quantization 'gguf' is selected by the checkpoint itself, not by an option",
        fix="Leave the quantization option out and name the .gguf file as the weights",
    )


def _other_quantization(request: Request) -> Declined | None:
    asked = _asked(request.engine, "quantization")
    if asked is None:
        return None
    return Declined(
        reason=f"quantization {asked!r} was asked for, and a GGUF checkpoint fixes its own",
        fix="Leave the quantization option out, or load a checkpoint that is not quantized",
    )


def _second_source(request: Request) -> Declined | None:
    for key in ("svdquant", "nunchaku"):
        if _asked(request.engine, key) is not None:
            return Declined(
                reason=f"{key} and a GGUF checkpoint both supply the weights of this component",
                fix=f"Give one of the two: leave {key} out, or the .gguf file",
            )
    return None


def _device(request: Request) -> Declined | None:
    if request.device_type is None or request.device_type in DEVICES:
        return None
    return Declined(
        reason=f"packed weights cannot be computed with on device {request.device_type!r}",
        fix=f"Use one of the devices {', '.join(sorted(DEVICES))}; {_DENSE}",
    )


def _fsdp(request: Request) -> Declined | None:
    if _asked(request.engine, "fsdp") is None or _asked(request.engine, "offloaded") is not None:
        return None
    return Declined(reason="FSDP shards this component, and packed blocks cannot be sharded by it", fix=_WITHOUT_FSDP)


def _lora(request: Request) -> Declined | None:
    if _asked(request.engine, "lora") is None:
        return None
    return Declined(reason="a LoRA cannot be merged into packed blocks when the engine starts", fix=_WITHOUT_LORA)


def _adaln_online(request: Request) -> Declined | None:
    if _asked(request.engine, "adaln_online") is None:
        return None
    return Declined(
        reason="adaln_online computes modulation from weights that a GGUF checkpoint holds packed or as a curve",
        fix="Leave adaln_online out, or load the safetensors checkpoint",
    )


def _adaln_cache(request: Request) -> Declined | None:
    if _asked(request.engine, "adaln_cache_path") is None:
        return None
    return Declined(
        reason="adaln_cache_path names modulation that was computed for other weights than a GGUF checkpoint's",
        fix="Leave adaln_cache_path out, or load the safetensors checkpoint",
    )


_RULES: tuple[Callable[[Request], Declined | None], ...] = (
    _quantization_gguf,
    _other_quantization,
    _second_source,
    _device,
    _fsdp,
    _lora,
    _adaln_online,
    _adaln_cache,
)
_OF_PACKED_WEIGHTS = (_device, _fsdp, _lora)


def _asked(engine: Mapping[str, Any], key: str) -> Any:
    """What the engine was asked for under ``key``; None for what says nothing (absent, False, empty)."""
    return engine.get(key) or None
