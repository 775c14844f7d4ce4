# SPDX-License-Identifier: Apache-2.0
"""What happens to a stream of tensors, and to its running totals, between the reader and the consumer."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields

import torch

from weight_readers import ReadStats, TensorMeta

Update = Callable[[ReadStats], None]
Weights = Iterable[tuple[str, torch.Tensor]]


class Totals:
    """Running totals over several reads, one after the other."""

    def __init__(self, report: Update | None) -> None:
        self._report = report
        self._before = ReadStats()
        self._latest = ReadStats()

    def update(self, stats: ReadStats) -> None:
        self._latest = ReadStats(
            **{f.name: getattr(self._before, f.name) + getattr(stats, f.name) for f in fields(ReadStats)}
        )
        if self._report is not None:
            self._report(self._latest)

    def next_group(self) -> None:
        self._before = self._latest


def announced(
    weights: Weights, tensors: Mapping[str, TensorMeta], on_file: Callable[[str], None]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Say each file's path before the first of its tensors is handed out."""
    current = None
    for name, tensor in weights:
        if tensors[name].file != current:
            current = tensors[name].file
            on_file(current)
        yield name, tensor


def touched(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights:
        if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
            raw = tensor.reshape(-1).view(torch.uint8)
            raw[:: mmap.PAGESIZE].sum() + raw[-1]
        yield name, tensor


def both(one: Update, other: Update) -> Update:
    def update(stats: ReadStats) -> None:
        one(stats)
        other(stats)

    return update
