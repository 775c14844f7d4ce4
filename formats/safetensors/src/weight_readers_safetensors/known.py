# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files that were read before, kept as long as their files are the same."""

from __future__ import annotations

import weight_readers_files.known
from weight_readers.reader import CheckpointMeta
from weight_readers_safetensors.shards import read_headers


class HeaderCache(weight_readers_files.known.HeaderCache[CheckpointMeta]):
    """The headers of the files that were asked for last: a load asks twice, once to check and once to read."""

    def __init__(self) -> None:
        super().__init__(lambda paths: read_headers(paths), shared_as="safetensors")
