# SPDX-License-Identifier: Apache-2.0
"""The model side: packed layers in a module of the caller's, and weights put into it with nothing left over."""

from weight_readers_gguf.model.fill import fill
from weight_readers_gguf.model.load import load_packed
from weight_readers_gguf.model.lora import reject_lora_on_packed_weights
from weight_readers_gguf.model.packed import PackedEmbedding, PackedLayer, PackedLinear
from weight_readers_gguf.model.prepare import Prepared, prepare_module
from weight_readers_gguf.model.qkv import QKVLayout, QKVRows
from weight_readers_gguf.model.report import How, Placement, PlacementReport
from weight_readers_gguf.model.rules import Rules
from weight_readers_gguf.model.weight import PackedWeight

__all__ = [
    "How",
    "PackedEmbedding",
    "PackedLayer",
    "PackedLinear",
    "PackedWeight",
    "Placement",
    "PlacementReport",
    "Prepared",
    "QKVLayout",
    "QKVRows",
    "Rules",
    "fill",
    "load_packed",
    "prepare_module",
    "reject_lora_on_packed_weights",
]
