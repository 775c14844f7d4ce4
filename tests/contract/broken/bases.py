# SPDX-License-Identifier: Apache-2.0
"""What is spoilt: a sound reader, by what it yields."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from weight_readers_mmap.reader import MappedReader

Pairs = Iterator[tuple[str, torch.Tensor]]


class Sound(MappedReader):
    """Nothing is spoilt but the declaration, or the registration."""


class Changed(MappedReader):
    """Yields what `pairs` makes of what a sound reader yields."""

    def iter_weights(self, files: Any, **arguments: Any) -> Pairs:
        return self.pairs(super().iter_weights(files, **arguments), files, **arguments)

    def pairs(self, sound: Pairs, files: Any, **arguments: Any) -> Pairs:
        for name, values in sound:
            yield from self.pair(name, values)

    def pair(self, name: str, values: torch.Tensor) -> Pairs:
        yield name, values

    def count(self, files: Any) -> int:
        return len(super().read_meta(files))


def mapped(meta: Any, *, shared: bool) -> torch.Tensor:
    """A float32 tensor as a view of its whole file, with no further questions."""
    file = torch.from_file(meta.file, shared=shared, size=os.path.getsize(meta.file), dtype=torch.uint8)
    return file[meta.offset : meta.offset + meta.nbytes].view(torch.float32).view(meta.shape)
