# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment: reading ends, and so does the program."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from support.files import write_tensors
from support.measure import output_of

INTO = 'ThreadedReader(num_threads=4, chunk_bytes=1).read_into(sys.argv[1:], {"a": torch.empty(4000).byte()})'
ITERATED = "list(ThreadedReader(num_threads=4, chunk_bytes=1, max_in_flight_bytes=64).iter_weights(sys.argv[1:]))"


@pytest.mark.parametrize("read", [INTO, ITERATED], ids=["into", "iterated"])
def test_reading_that_is_interrupted_at_any_moment_ends(tmp_path: Path, read: str) -> None:
    """A lock that the consumer had just taken stayed taken, and its threads were waited for without end."""
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [4000], bytes(4000))})
    source = f"""
        import random, signal, sys
        import torch
        from weight_readers_threaded.reader import ThreadedReader
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        moments, interrupted = random.Random(0), 0
        for _ in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + moments.random() * 0.02)
                {read}
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
        print(interrupted > 50)
    """
    assert output_of(dedent(source), path) == "True"
