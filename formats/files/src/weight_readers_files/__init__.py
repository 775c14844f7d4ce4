# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files of any format: their order and state, the parts wanted of them, and mappings of those.

`mapping`, `source`, `segments`, `prefetch`, `residency`, `memory`, `targets`, `tensors` and `passes` map, read and
write; they are imported by their names, the last four with torch, as `devices` is.
"""

from weight_readers_files.known import HeaderCache, KnownHeaders
from weight_readers_files.natural import natural_key, natural_order
from weight_readers_files.opening import open_regular
from weight_readers_files.plans import (
    FilePlan,
    check_slices,
    chosen_by_file,
    file_plan,
    file_plans,
    lies_everywhere,
)
from weight_readers_files.ranges import Range, Stripes, coalesce, cut, nbytes_of, pages_of
from weight_readers_files.state import State, states_of
from weight_readers_files.wanted import Wanted, WholeTensors, by_offset, bytes_of, ranges_of

__all__ = [
    "FilePlan",
    "HeaderCache",
    "KnownHeaders",
    "Range",
    "State",
    "Stripes",
    "Wanted",
    "WholeTensors",
    "by_offset",
    "bytes_of",
    "check_slices",
    "chosen_by_file",
    "coalesce",
    "cut",
    "file_plan",
    "file_plans",
    "lies_everywhere",
    "natural_key",
    "natural_order",
    "nbytes_of",
    "open_regular",
    "pages_of",
    "ranges_of",
    "states_of",
]
