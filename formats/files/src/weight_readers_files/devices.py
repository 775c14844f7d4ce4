# SPDX-License-Identifier: Apache-2.0
"""The device that a caller names for the tensors."""

from __future__ import annotations

import torch

from weight_readers.devices import known_device, usable_device


def placement(device: str | torch.device) -> torch.device:
    """The device of that name. Raises ConfigError for one that cannot be used here, with those that can.

    Raises ValueError for meta: all would be read, and every value dropped.
    """
    if known_device(device, torch).type == "meta":
        raise ValueError(
            f"device={str(device)!r} has no memory for values, and no tensor was read: name a real device; "
            "read_meta has the names, dtypes and shapes"
        )
    found: torch.device = usable_device(device, torch)
    return found
