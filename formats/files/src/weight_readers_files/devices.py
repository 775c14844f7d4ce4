# SPDX-License-Identifier: Apache-2.0
"""The device that a caller names for the tensors."""

from __future__ import annotations

import torch


def placement(device: str | torch.device) -> torch.device:
    """What torch makes of the name. Raises ValueError for meta: all would be read, and every value dropped.

    Raises RuntimeError, torch's own, for a name that it does not know.
    """
    found = torch.device(device)
    if found.type == "meta":
        raise ValueError(
            f"device={str(device)!r} has no memory for values, and no tensor was read: name a real device; "
            "read_meta has the names, dtypes and shapes"
        )
    return found
