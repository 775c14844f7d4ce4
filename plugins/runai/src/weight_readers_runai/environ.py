# SPDX-License-Identifier: Apache-2.0
"""Environment variables for the native library, which takes its settings from nowhere else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Have the variables set within the block. Readers of other threads wait for their turn with theirs."""
    with _lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
