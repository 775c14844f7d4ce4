# SPDX-License-Identifier: Apache-2.0
"""Wanted tensors without a header."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from weight_readers_files import FilePlan, Wanted

MakeWanted = Callable[..., Wanted]


@pytest.fixture
def wanted() -> MakeWanted:
    """``wanted(begin, end)``: bytes of a file as a tensor of uint8."""

    def make(begin: int, end: int, name: str = "") -> Wanted:
        size = end - begin
        return Wanted(name or f"{begin}:{end}", torch.uint8, (size,), None, ((begin, size),), begin, end, size)

    return make


@pytest.fixture
def file_plan(wanted: MakeWanted) -> Callable[..., FilePlan]:
    """``file_plan(path, (begin, end), …)``: these parts of a file of any state."""

    def make(path: object, *spans: Sequence[int]) -> FilePlan:
        return FilePlan(str(path), None, [wanted(*span) for span in spans], True)

    return make
