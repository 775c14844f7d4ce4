# SPDX-License-Identifier: Apache-2.0
"""All readers that are broken on purpose."""

from __future__ import annotations

from contract.broken import changes, declaration, into, memory, parts, processes, refusals, values  # noqa: F401
from contract.broken.registry import READERS, make

__all__ = ["READERS", "make"]
