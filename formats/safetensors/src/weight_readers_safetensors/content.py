# SPDX-License-Identifier: Apache-2.0
"""Whether the first bytes of a file are those of a safetensors file."""

from __future__ import annotations

import weight_readers_files.content
from weight_readers.errors import CheckpointError
from weight_readers_files.content import looks_like_safetensors, recognise


def foreign_content(path: str, head: bytes) -> CheckpointError | None:
    """The error for a file that begins with ``head`` and is empty or known to be something else, else None.

    What is not known is parsed: its header says more about what is wrong with it.
    """
    if looks_like_safetensors(head) or (head and recognise(head) is None):
        return None
    return weight_readers_files.content.foreign_content(path, head, expected="safetensors", what="safetensors")
