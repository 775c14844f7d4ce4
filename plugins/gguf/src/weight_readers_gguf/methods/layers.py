# SPDX-License-Identifier: Apache-2.0
"""What is known of a layer without knowing its class: engines have their own linear and embedding layers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch import nn

from weight_readers_gguf.methods.fit import Declared


class Kind(Enum):
    """What a layer does with its weight."""

    LINEAR = "linear"
    EMBEDDING = "embedding"


def kind_of(layer: Any) -> Kind | None:
    """By class for torch's layers, by their attributes for those of engines; None for anything else.

    A language-model head of an engine is an embedding that also multiplies.
    """
    if isinstance(layer, nn.Embedding) or _has(layer, "num_embeddings", "embedding_dim"):
        return Kind.EMBEDDING
    if isinstance(layer, nn.Linear) or _has(layer, "input_size", "output_size"):
        return Kind.LINEAR
    return None


def declared(
    prefix: str, layer: Any, columns: int, outputs: Sequence[int], whole_columns: int, whole_rows: int
) -> Declared:
    """The sizes an engine gives ``create_weights``, and what its layer says of kv heads and ranks."""
    sizes = [columns, whole_columns, whole_rows, *outputs]
    if any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
        raise TypeError(f"layer {prefix!r} declares sizes that are no whole numbers: {sizes!r:.200}")
    outputs = tuple(outputs)
    return Declared(prefix, columns, outputs, whole_columns, whole_rows, _replicas(layer, outputs))


def rank_of(layer: Any) -> int | None:
    """The layer's rank; None where it does not say."""
    rank = getattr(layer, "tp_rank", None)
    return rank if isinstance(rank, int) else None


def _replicas(layer: Any, outputs: tuple[int, ...]) -> tuple[int, ...]:
    copies = getattr(layer, "num_kv_head_replicas", 1)
    return (1, copies, copies) if len(outputs) == 3 and copies != 1 else ()


def _has(layer: Any, *names: str) -> bool:
    return all(isinstance(getattr(layer, name, None), int) for name in names)
