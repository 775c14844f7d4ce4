# SPDX-License-Identifier: Apache-2.0
"""Which parts of a file share one mapping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weight_readers_files import Wanted

# A mapping lives as long as any tensor in it. One per file would let a single kept bias hold 10 GB of address
# space (safetensors/safetensors#355) and needs room for the whole file at once (#528); one per tensor would run
# into the kernel's 65,530 mappings per process.
SEGMENT_BYTES = 64 << 20


def segments(wanted: Sequence[Wanted], *, segment_bytes: int = SEGMENT_BYTES) -> Iterator[list[Wanted]]:
    """Group tensors of one file, given by offset, into runs of at most ``segment_bytes`` (or one larger tensor).

    A gap of unwanted bytes counts as part of the run it lies in, so that far-apart tensors part. Tensors that share
    bytes stay together, however long: in two mappings a write into one would not show in the other.
    """
    run: list[Wanted] = []
    reached = 0
    for each in wanted:
        if run and each.begin >= reached and each.end - run[0].begin > segment_bytes:
            yield run
            run = []
        run.append(each)
        reached = max(reached, each.end)
    if run:
        yield run
