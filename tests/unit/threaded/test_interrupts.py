# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment: reading ends, and so does the program."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from support.files import write_tensors
from support.measure import output_of


def test_reading_that_is_interrupted_at_any_moment_ends(tmp_path: Path) -> None:
    """A lock that the consumer had just taken stayed taken, and its threads were waited for without end."""
    path = write_tensors(tmp_path / "m.safetensors", {"a": ("U8", [4000], bytes(4000))})
    source = """
        import random, signal, sys
        import torch
        from weight_readers_threaded.reader import ThreadedReader
        reader, target = ThreadedReader(num_threads=4, chunk_bytes=1, max_in_flight_bytes=64), torch.empty(4000).byte()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        moments, interrupted = random.Random(0), 0
        for number in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + moments.random() * 0.02)
                if number % 2:
                    reader.read_into(sys.argv[1:], {"a": target})
                else:
                    list(reader.iter_weights(sys.argv[1:]))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
        print(interrupted > 100)
    """
    assert output_of(dedent(source), path) == "True"
