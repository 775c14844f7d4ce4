# SPDX-License-Identifier: Apache-2.0
"""Local copies of stored files whose format no installed reader reads from their store. See docs/decisions/0013."""

from __future__ import annotations

from weight_readers_loader.copies.cache import cache_folder
from weight_readers_loader.copies.choice import Fetched, fetched_where_needed
from weight_readers_loader.copies.reader import CopiesReader

__all__ = ["CopiesReader", "Fetched", "cache_folder", "fetched_where_needed"]
