# SPDX-License-Identifier: Apache-2.0
"""The guard before a LoRA is merged: packed bytes cannot take one, and are not touched to find out."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from weight_readers.errors import TargetMismatchError
from weight_readers_gguf.model.wording import some


def reject_lora_on_packed_weights(module: nn.Module, is_target: Callable[[str], bool]) -> None:
    """Raise where a layer that a LoRA would change holds packed weights. Call it before anything is changed.

    ``is_target`` says of a layer's name (``blocks.0.attn.qkv``) whether the LoRA has weights for it. Only names of
    parameters are looked at (``qweight`` and no ``weight``), so that placeholders of offloaded layers, of any shape
    and on any device, are enough. Raises TargetMismatchError naming the layers; nothing is read or written.
    """
    if not isinstance(module, nn.Module) or not callable(is_target):
        raise TypeError(
            f"module must be a torch module and is_target a function, not {type(module).__name__}"
            f" and {type(is_target).__name__}"
        )
    held: dict[str, set[str]] = {}
    for name, _ in module.named_parameters(remove_duplicate=False):
        layer, _, parameter = name.rpartition(".")
        held.setdefault(layer, set()).add(parameter)
    packed = [layer for layer, own in held.items() if "qweight" in own and "weight" not in own and is_target(layer)]
    if packed:
        raise TargetMismatchError(
            f"a LoRA cannot be merged into packed weights, and {len(packed)} of its target layers hold some: "
            + some(packed),
            fix="Nothing was changed; attach it as a low-rank branch beside them, or load these layers with dequantize",
            unexpected=packed,
        )
