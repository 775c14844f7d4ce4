# SPDX-License-Identifier: Apache-2.0
"""The auto rules for settings: how a reader is made for the case at hand, where the caller leaves that open.

Each rule sets one option of those that a reader lets policy set (`TUNABLE`). What nobody knows sets nothing: then the
reader's own default counts. What each was measured by is in docs/decisions/0019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from weight_readers._preferences import is_cached
from weight_readers.capabilities import ReaderInfo, Request
from weight_readers.environment import Environment

THREADS = 4
"""More do not help one disk, and thrash a shared one (vllm-project/vllm-ascend#16548)."""

WAITING = 8
"""Threads of all ranks of a machine that wait for a network, whatever the CPUs: waiting takes none."""


class Tuned(NamedTuple):
    """An option's value, and why it is that one."""

    option: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """An auto rule: where it ``applies``, ``option`` gets ``value`` for ``reason``."""

    option: str
    applies: Callable[[Environment], bool]
    value: Callable[[Environment], Any]
    reason: Callable[[Environment], str]


def _waiting(environment: Environment) -> int:
    return max(1, WAITING // (environment.local_ranks or 1))


TUNINGS: tuple[Tuning, ...] = (
    Tuning(
        option="prefetch",
        applies=lambda environment: environment.on_network and not is_cached(environment),
        value=_waiting,
        reason=lambda environment: f"{environment.filesystem}: requests wait together rather than page by page",
    ),
    Tuning(
        option="num_threads",
        applies=lambda environment: environment.on_network and not is_cached(environment),
        value=_waiting,
        reason=lambda environment: f"{environment.filesystem}: requests wait together",
    ),
    Tuning(
        option="num_threads",
        applies=lambda environment: environment.cpus is not None,
        value=lambda environment: min(THREADS, environment.cpus or 1),
        reason=lambda environment: f"{environment.cpus} CPUs for this process, and {THREADS} threads at most",
    ),
)
"""The rules; of two for one option the first that applies counts."""


def tuned(info: ReaderInfo, request: Request, environment: Environment) -> Iterator[Tuned]:
    """What policy sets for this reader. What the caller says of an option, wish or requirement, is left alone."""
    open_ = set(info.tunable) - set(request.options) - set(request.settings)
    for rule in TUNINGS:
        if rule.option in open_ and rule.applies(environment):
            open_.remove(rule.option)
            yield Tuned(rule.option, rule.value(environment), rule.reason(environment))
