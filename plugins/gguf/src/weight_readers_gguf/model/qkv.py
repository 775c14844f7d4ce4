# SPDX-License-Identifier: Apache-2.0
"""The order of rows in a fused q, k, v projection, declared by the source of the weights.

Rows are whole in packed weights too: each is a row of blocks. So reordering them is exact on packed bytes, and
what was packed stays packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from weight_readers.errors import TargetMismatchError


class QKVLayout(str, Enum):
    """How the rows of a fused projection lie in a checkpoint."""

    GROUPED = "grouped"
    """Group by group: the queries of the first group, its key, its value, then the next (native safetensors)."""
    CONTIGUOUS = "contiguous"
    """``[q_all, k_all, v_all]``: every GGUF file, its dense tensors included."""


@dataclass(frozen=True, kw_only=True)
class QKVRows:
    """Reorders the rows of a fused projection from ``layout`` to ``[q_all, k_all, v_all]``.

    ``heads`` query heads of ``head_dim`` rows each in ``kv_heads`` groups (as many as heads where None): the
    projection has ``(heads + 2 * kv_heads) * head_dim`` rows. Called with a weight ``[rows, ...]`` of any dtype,
    packed bytes included, or with a bias ``[rows]``.
    """

    layout: QKVLayout
    heads: int
    head_dim: int
    kv_heads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", QKVLayout(self.layout))
        for name in ("heads", "head_dim", "groups"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{'kv_heads' if name == 'groups' else name} must be a whole number, not {value!r}")
        if min(self.heads, self.head_dim, self.groups) < 1 or self.heads % self.groups:
            raise ValueError(
                f"{self.heads} heads of {self.head_dim} rows in {self.groups} groups: numbers of at least 1, and heads"
                " a multiple of kv_heads, are needed"
            )

    @property
    def groups(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def rows(self) -> int:
        return (self.heads + 2 * self.groups) * self.head_dim

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same rows in the order ``[q_all, k_all, v_all]``: a copy, or the tensor itself where it has it.

        Raises TargetMismatchError for a tensor of another number of rows.
        """
        if tensor.dim() == 0 or tensor.shape[0] != self.rows:
            raise TargetMismatchError(
                f"a fused q, k, v projection of shape {list(tensor.shape)} does not have the {self.rows} rows of"
                f" {self.heads} query heads and {self.groups} key and value heads of {self.head_dim}",
                fix="Declare the heads that the checkpoint was saved with",
            )
        if self.layout is QKVLayout.CONTIGUOUS:
            return tensor
        queries = self.heads // self.groups * self.head_dim
        grouped = tensor.reshape(self.groups, queries + 2 * self.head_dim, *tensor.shape[1:])
        parts = torch.split(grouped, [queries, self.head_dim, self.head_dim], dim=1)
        return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
