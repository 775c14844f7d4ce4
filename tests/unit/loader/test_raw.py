# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import pytest
import torch

from weight_readers_loader.raw import as_bytes

ONE = torch.tensor([[1.5, 0.0]])


@pytest.mark.parametrize("tensor", [ONE[:, 0], ONE[0, 0], ONE[:, :1]], ids=["odd stride", "0-d", "2-d"])
def test_one_element_has_its_bytes_whatever_its_strides(tensor: torch.Tensor) -> None:
    assert bytes(as_bytes(tensor).tolist()) == struct.pack("<f", 1.5)


def test_bytes_come_in_the_order_of_the_elements() -> None:
    columns = torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).t()
    assert bytes(as_bytes(columns).tolist()) == struct.pack("<4h", 1, 3, 2, 4)
