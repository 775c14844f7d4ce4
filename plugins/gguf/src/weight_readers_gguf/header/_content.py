# SPDX-License-Identifier: Apache-2.0
"""Whether the first bytes of a file are those of a GGUF file."""

from __future__ import annotations

import weight_readers_files.content
from weight_readers.errors import CheckpointError

MAGIC = b"GGUF"


def foreign_content(path: str, head: bytes) -> CheckpointError | None:
    """The error for a file whose first bytes are ``head`` and are not those of a GGUF file, else None."""
    # A file cut within its magic is reported as cut.
    if head and head[: len(MAGIC)] == MAGIC[: len(head)]:
        return None
    return weight_readers_files.content.foreign_content(path, head, expected=f"the first bytes {MAGIC!r}", what="GGUF")
