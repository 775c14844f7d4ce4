# SPDX-License-Identifier: Apache-2.0
"""What the machine is for a load: facts for core's policy, gathered in milliseconds.

Each place that is looked at is an argument, and each may be absent: then that fact is not known.
"""

from weight_readers_loader.environment.facts import gathered
from weight_readers_loader.environment.filesystem import filesystem_of
from weight_readers_loader.environment.limits import (
    HERE,
    Places,
    available_cpus,
    available_memory,
    local_ranks,
    reachable_memory,
)
from weight_readers_loader.environment.residency import Span, residency, sampled

__all__ = [
    "HERE",
    "Places",
    "Span",
    "available_cpus",
    "available_memory",
    "filesystem_of",
    "gathered",
    "local_ranks",
    "reachable_memory",
    "residency",
    "sampled",
]
