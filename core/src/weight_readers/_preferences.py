# SPDX-License-Identifier: Apache-2.0
"""The auto rules: what is better among readers that can serve a request. Pure functions of request and machine.

What each was measured by is in docs/decisions/0019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weight_readers._needs import must_copy
from weight_readers.capabilities import Feature, ReaderInfo, Request
from weight_readers.environment import Environment


@dataclass(frozen=True, kw_only=True)
class Preference:
    """An auto rule: when it ``applies``, readers it ``likes`` come before those it does not.

    ``fact`` words what it knows of the machine, for rules that go by that. An ``exceptional`` dislike alone is worth
    a word: of readers that are liked nothing is said.
    """

    name: str
    applies: Callable[[Request, Environment], bool]
    likes: Callable[[ReaderInfo, Request], bool]
    liked: str
    disliked: str
    fact: Callable[[Environment], str] | None = None
    exceptional: bool = False

    def says(self, info: ReaderInfo, request: Request) -> bool:
        return not self.exceptional or not self.likes(info, request)

    def reason(self, info: ReaderInfo, request: Request, environment: Environment) -> str:
        said = self.liked if self.likes(info, request) else self.disliked
        return f"{self.title(environment)}: {said}"

    def title(self, environment: Environment) -> str:
        """The name, with the fact where there is one."""
        return self.name if self.fact is None else f"{self.name} ({self.fact(environment)})"


def _to_device(request: Request, environment: Environment) -> bool:
    return request.device_type not in (None, "cpu", "meta")


def _kept_on_host(request: Request, environment: Environment) -> bool:
    return request.kept_on_host and not request.owned and not _to_device(request, environment)


def _passed_on(request: Request, environment: Environment) -> bool:
    """Whether tensors are taken one by one on the host, by a caller who said so and does not keep them."""
    is_here = request.device_type == "cpu" and not request.owned
    return is_here and not request.kept_on_host and not request.into_targets


def is_cached(environment: Environment) -> bool:
    """Whether nearly all of the wanted bytes are known to be in the page cache."""
    return environment.page_cache_residency is not None and environment.page_cache_residency >= 0.9


def _in_short_stretches(request: Request, environment: Environment) -> bool:
    """Whether what is wanted lies in pieces so short that each costs more to ask for than to copy."""
    if not request.stretches or request.bytes_wanted is None or _to_device(request, environment):
        return False
    return request.bytes_wanted < request.stretches * SHORT_STRETCH


def _has_cpus(request: Request, environment: Environment) -> bool:
    views_do = _kept_on_host(request, environment) or _passed_on(request, environment)
    return environment.cpus is not None and environment.cpus > 1 and not views_do


SHORT_STRETCH = 32 << 10
"""Bytes that are copied while one more read is asked for, about."""


PREFERENCES: tuple[Preference, ...] = (
    Preference(
        name="network file system",
        applies=lambda request, environment: environment.on_network,
        likes=lambda info, request: not info.retains_file_mapping,
        liked="reads in large requests",
        disliked="a mapping would fault page by page over the network",
        fact=lambda environment: str(environment.filesystem),
    ),
    Preference(
        name="tensors stay in host memory",
        applies=_kept_on_host,
        likes=lambda info, request: info.retains_file_mapping,
        liked="maps the file: no copy, and the kernel can drop pages",
        disliked="would copy every byte into anonymous memory",
    ),
    Preference(
        name="taken one by one on the host",
        applies=_passed_on,
        likes=lambda info, request: info.retains_file_mapping,
        liked="hands out views: nothing is copied on the way",
        disliked="would make memory for every tensor and copy it there",
    ),
    Preference(
        name="device placement",
        applies=_to_device,
        likes=lambda info, request: request.device_type in info.devices,
        liked="places tensors on the device itself",
        disliked="reads to the host and copies then",
    ),
    Preference(
        name="parts in short stretches",
        applies=_in_short_stretches,
        likes=lambda info, request: info.retains_file_mapping and not must_copy(info, request),
        liked="takes them out of a mapping",
        disliked="asks for each of them",
    ),
    Preference(
        name="into existing tensors",
        applies=lambda request, environment: request.into_targets,
        likes=lambda info, request: Feature.READ_INTO in info.features,
        liked="reads straight into them",
        disliked="reads first and copies then",
    ),
    Preference(
        name="cached file",
        applies=lambda request, environment: is_cached(environment),
        likes=lambda info, request: Feature.DIRECT_IO not in info.features,
        liked="takes the bytes from the page cache",
        disliked="would read cached bytes from storage again",
        fact=lambda environment: f"{environment.page_cache_residency:.0%}",
        exceptional=True,
    ),
    Preference(
        name="several CPUs",
        applies=_has_cpus,
        likes=lambda info, request: Feature.CONCURRENT in info.features,
        liked="reads with several threads",
        disliked="reads with one thread",
        fact=lambda environment: str(environment.cpus),
    ),
)
"""The auto rules, the most important first."""


def applying(request: Request, environment: Environment) -> list[Preference]:
    """The rules that say something about this request, the most important first."""
    return [p for p in PREFERENCES if p.applies(request, environment)]
