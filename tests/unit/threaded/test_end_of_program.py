# SPDX-License-Identifier: Apache-2.0
"""A program that ends while iterators rest."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from support.measure import output_of
from support.tensors import write_shards


def test_a_program_ends_while_its_iterators_rest(tmp_path: Path) -> None:
    """Threads that wait for room can neither go on nor be waited for once the interpreter takes itself down."""
    shards = write_shards(tmp_path, 2, tensors=64)
    source = """
        import sys
        from weight_readers_threaded.reader import ThreadedReader
        reader = ThreadedReader(num_threads=4, chunk_bytes=64, max_in_flight_bytes=256)
        rest = [reader.iter_weights(sys.argv[1:]) for _ in range(4)]
        for weights in rest:
            next(weights)
        print("read")
    """
    assert output_of(dedent(source), *shards) == "read"


def test_who_reads_on_while_the_program_ends_is_told_so(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2, tensors=64)
    source = """
        import atexit, sys
        @atexit.register
        def read_on():
            try:
                list(weights)
            except RuntimeError as error:
                print(error)
        from weight_readers_threaded.reader import ThreadedReader
        weights = ThreadedReader(num_threads=4, chunk_bytes=64, max_in_flight_bytes=256).iter_weights(sys.argv[1:])
        next(weights)
    """
    assert output_of(dedent(source), *shards) == "reading was ended, as the program ends"
