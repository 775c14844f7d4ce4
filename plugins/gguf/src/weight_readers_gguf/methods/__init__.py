# SPDX-License-Identifier: Apache-2.0
"""Quant methods: layers that compute with packed weights, made from the headers of GGUF files."""

from weight_readers_gguf.methods.config import GGUFConfig
from weight_readers_gguf.methods.embedding import GGUFEmbeddingMethod
from weight_readers_gguf.methods.linear import GGUFLinearMethod
from weight_readers_gguf.methods.state import check_description, describe
from weight_readers_gguf.methods.unquantized import UnquantizedLinearMethod
from weight_readers_gguf.methods.workspace import Workspace

__all__ = [
    "GGUFConfig",
    "GGUFEmbeddingMethod",
    "GGUFLinearMethod",
    "UnquantizedLinearMethod",
    "Workspace",
    "check_description",
    "describe",
]
