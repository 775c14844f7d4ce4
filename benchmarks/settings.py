# SPDX-License-Identifier: Apache-2.0
"""What is the same for every measurement, and how sizes are written."""

from __future__ import annotations

import re

THREADS = 4
LATE_THREADS = 8
"""Of the limit; the second where storage answers late, as of our threaded reader, whose policy sets that then."""
CHUNK_BYTES = 8 << 20
MAX_IN_FLIGHT_BYTES = 256 << 20
"""Of the limit and of the verdict on memory: the defaults of our threaded reader."""

READER = "weight-readers threaded"
FALLBACK = "weight-readers safetensors"
LIMIT = "limit: bare preadv"

ROWS = (3, 8)
"""The slice of work ``rows``: the fourth eighth, as rank 3 of 8 would read it."""
EVERY_KEY = 20
"""Work ``keys`` reads each 20th tensor: 5 % of the names, spread over shards and shapes."""

MIB = 1 << 20
GIB = 1 << 30
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": MIB, "GIB": GIB}


def parse_size(text: str) -> int:
    """``2GiB`` or ``128 MiB`` in bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+)\s*([KMG]iB|B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 2GiB or 128MiB")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]
