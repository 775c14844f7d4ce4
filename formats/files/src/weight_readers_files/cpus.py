# SPDX-License-Identifier: Apache-2.0
"""The CPUs that this process may run on."""

from __future__ import annotations

import os


def available_cpus() -> int:
    """Those of the affinity mask; all where the system has none."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
