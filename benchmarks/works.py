# SPDX-License-Identifier: Apache-2.0
"""The works: what is read, how it is wanted, and from where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Work:
    """One thing to measure.

    kind: ``into`` parameters that exist, ``own`` (all tensors kept), ``rows`` (slices kept), ``slow`` (a consumer
        that sleeps and keeps nothing).
    selection: what is wanted: ``all``, ``keys`` or ``rows`` (see `benchmarks.entries.SELECTIONS`).
    data: ``model``, ``small`` or ``slow``: the checkpoint that is read, the last one over slow storage.
    metric: what the work is about: ``seconds``, ``anon`` (bytes beyond the model) or ``stall`` (seconds).
    """

    name: str
    title: str
    kind: str
    selection: str = "all"
    data: str = "model"
    cold: bool = False
    ticker: bool = False
    metric: str = "seconds"


GROUPS: dict[str, tuple[Work, ...]] = {
    "warm-into": (Work(name="warm-into", title="warm, into existing parameters", kind="into"),),
    "cold-into": (Work(name="cold-into", title="cold, into existing parameters", kind="into", cold=True),),
    "warm-own": (Work(name="warm-own", title="warm, iterate and own", kind="own"),),
    "keys": (
        Work(name="keys-warm", title="5 % of the keys, warm", kind="own", selection="keys"),
        Work(name="keys-cold", title="5 % of the keys, cold", kind="own", selection="keys", cold=True),
    ),
    "rows": (
        Work(name="rows-warm", title="1/8 of the rows of every matrix, warm", kind="rows", selection="rows"),
        Work(name="rows-cold", title="1/8 of the rows of every matrix, cold", kind="rows", selection="rows", cold=True),
    ),
    "small": (
        Work(name="small-into", title="many small tensors, warm, into existing", kind="into", data="small"),
        Work(name="small-own", title="many small tensors, warm, iterate and own", kind="own", data="small"),
    ),
    "latency": (
        Work(
            name="latency-into",
            title="storage that answers late, into existing parameters",
            kind="into",
            data="slow",
            cold=True,
        ),
    ),
    "memory": (Work(name="memory-slow", title="anonymous memory with a slow consumer", kind="slow", metric="anon"),),
    "ticker": (
        Work(
            name="ticker-into",
            title="worst stall of a 1 ms ticker, warm, into existing",
            kind="into",
            ticker=True,
            metric="stall",
        ),
    ),
}
"""What ``--work`` takes, and the works that it stands for."""
