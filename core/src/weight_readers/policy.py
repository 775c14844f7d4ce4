# SPDX-License-Identifier: Apache-2.0
"""The policy: which readers fit a request, and which of those is best. Pure functions of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weight_readers import _schema
from weight_readers._schema import Schema
from weight_readers.capabilities import Environment, Feature, Lifetime, ReaderInfo, Request

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "ceph", "cifs", "smb", "smb2", "9p", "beegfs", "glusterfs", "afs", "virtiofs"}
)
"""File systems on which each page fault is a round trip (vllm-project/vllm#24469); ``fuse`` and ``fuse.*`` too."""


@dataclass(frozen=True, kw_only=True)
class Accepted(Schema):
    """The reader fits. ``reasons`` say what speaks for and against it, ``settings`` are options it has to run with."""

    reasons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata={"coerce": _schema.mapping})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "reasons", tuple(self.reasons))


@dataclass(frozen=True, kw_only=True)
class Rejected(Schema):
    """The reader does not fit: a stable ``code``, the ``reason`` in words, and what would ``fix`` it."""

    code: str
    reason: str
    fix: str | None = None


Verdict = Accepted | Rejected
_Rule = Callable[[ReaderInfo, Request, Environment], Rejected | None]


def decide(info: ReaderInfo, request: Request, environment: Environment) -> Verdict:
    """Whether ``info`` can serve ``request`` on this machine; the first rule that it breaks is the reason."""
    for rule in _RULES:
        if rejected := rule(info, request, environment):
            return rejected
    return Accepted(
        reasons=tuple(p.reason(info, request) for p in PREFERENCES if p.applies(request, environment)),
        settings={"copy": True} if _must_copy(info, request) else {},
    )


def rank(
    verdicts: Mapping[str, Verdict],
    infos: Mapping[str, ReaderInfo],
    request: Request,
    environment: Environment,
    *,
    requested: str | None = None,
    environment_prefers: Sequence[str] = (),
) -> list[str]:
    """The names of ``verdicts``, best first. A name without info (absent, broken) ranks last of its kind."""

    def precedence(name: str) -> tuple[Any, ...]:
        info = infos.get(name)
        return (
            isinstance(verdicts[name], Rejected),
            name != requested,
            _place(name, request.prefer),
            _place(name, environment_prefers),
            _auto_rules(info, request, environment),
            info is None or info.fallback,
            name,
        )

    return sorted(verdicts, key=precedence)


def _place(name: str, order: Sequence[str]) -> int:
    return list(order).index(name) if name in order else len(order)


def _auto_rules(info: ReaderInfo | None, request: Request, environment: Environment) -> tuple[bool, ...]:
    """One flag per preference that applies, False where the reader has what is preferred: False sorts first."""
    applying = [p for p in PREFERENCES if p.applies(request, environment)]
    return tuple(info is None or not p.likes(info, request) for p in applying)


# --- what a reader must be able to do ----------------------------------------------------------------------


def _format(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    if request.format is None or request.format in info.formats:
        return None
    return Rejected(code="format", reason=f"reads {_list(info.formats)}, not {request.format}")


def _scheme(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    lacking = request.schemes - info.schemes
    if not lacking:
        return None
    return Rejected(code="scheme", reason=f"cannot read {_list(lacking)}: its schemes are {_list(info.schemes)}")


def _key_filter(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    if Feature.KEY_FILTER not in request.needs or info.supports_key_filter:
        return None
    # Reading all to throw most away is worse than reading the part more slowly.
    return Rejected(code="key-filter", reason="cannot skip tensors before their bytes are read")


def _features(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    lacking = sorted(feature.value for feature in request.needs - info.features)
    return Rejected(code="feature", reason=f"lacks {', '.join(lacking)}") if lacking else None


def _dtypes(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    lacking = request.dtypes - info.dtypes if info.dtypes else frozenset[str]()
    return Rejected(code="dtype", reason=f"cannot read dtype {_list(lacking)}") if lacking else None


def _options(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    lacking = set(request.options) - info.options
    if not lacking:
        return None
    has = f"its options are {_list(info.options)}" if info.options else "it has no options"
    return Rejected(code="option", reason=f"has no option {_list(lacking)}: {has}")


def _owned(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    if not request.owned or info.lifetime is not Lifetime.MAPPED or "copy" in info.options:
        return None
    return Rejected(code="owned", reason="yields views of the file, and owned tensors were asked for")


def _budget(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    wanted, budget = request.bytes_wanted, environment.host_memory_budget
    if wanted is None or budget is None or wanted <= budget or request.device_type not in (None, "cpu"):
        return _device_budget(info, request, environment)
    if info.retains_file_mapping and not _must_copy(info, request):
        return None
    if Feature.BOUNDED_MEMORY in info.features and not (request.kept_on_host or request.owned):
        return None
    return Rejected(
        code="over-budget",
        reason=f"would hold {wanted} bytes of host memory, and {budget} are free",
        fix="Load less (a key filter or slices), or keep the tensors mapped: owned=False",
    )


def _device_budget(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    """On the way to a device only what a reader has in flight counts, and only a bound or a mapping limits it."""
    wanted, budget = request.bytes_wanted, environment.host_memory_budget
    if wanted is None or budget is None or wanted <= budget:
        return None
    if info.retains_file_mapping or Feature.BOUNDED_MEMORY in info.features:
        return None
    return Rejected(
        code="over-budget",
        reason=f"has no bound on host memory: {wanted} bytes are wanted and {budget} are free",
    )


def _must_copy(info: ReaderInfo, request: Request) -> bool:
    return request.owned and info.lifetime is Lifetime.MAPPED


_RULES: tuple[_Rule, ...] = (_format, _scheme, _key_filter, _features, _dtypes, _options, _owned, _budget)


# --- what is better among those that can -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Preference:
    """An auto rule: when it ``applies``, readers it ``likes`` come before those it does not."""

    name: str
    applies: Callable[[Request, Environment], bool]
    likes: Callable[[ReaderInfo, Request], bool]
    liked: str
    disliked: str

    def reason(self, info: ReaderInfo, request: Request) -> str:
        return f"{self.name}: {self.liked if self.likes(info, request) else self.disliked}"


def _on_network(request: Request, environment: Environment) -> bool:
    kind = environment.filesystem
    return kind is not None and (kind in NETWORK_FILESYSTEMS or kind.split(".")[0] in ("fuse", "fuseblk"))


def _to_device(request: Request, environment: Environment) -> bool:
    return request.device_type not in (None, "cpu", "meta")


def _kept_on_host(request: Request, environment: Environment) -> bool:
    return request.kept_on_host and not request.owned and not _to_device(request, environment)


def _cached(request: Request, environment: Environment) -> bool:
    return environment.page_cache_residency is not None and environment.page_cache_residency >= 0.9


def _has_cpus(request: Request, environment: Environment) -> bool:
    return environment.cpus is not None and environment.cpus > 1 and not _kept_on_host(request, environment)


PREFERENCES: tuple[Preference, ...] = (
    Preference(
        name="network file system",
        applies=_on_network,
        likes=lambda info, request: not info.retains_file_mapping,
        liked="reads in large requests",
        disliked="a mapping would fault page by page over the network",
    ),
    Preference(
        name="host-bound and kept",
        applies=_kept_on_host,
        likes=lambda info, request: info.retains_file_mapping,
        liked="keeps the mapping: pages that the kernel can drop, no copy",
        disliked="would copy every byte into anonymous memory",
    ),
    Preference(
        name="device placement",
        applies=_to_device,
        likes=lambda info, request: request.device_type in info.devices,
        liked="places tensors on the device itself",
        disliked="reads to the host and copies then",
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
        applies=_cached,
        likes=lambda info, request: Feature.DIRECT_IO not in info.features,
        liked="takes the bytes from the page cache",
        disliked="would read cached bytes from storage again",
    ),
    Preference(
        name="several CPUs",
        applies=_has_cpus,
        likes=lambda info, request: Feature.CONCURRENT in info.features,
        liked="reads with several threads",
        disliked="reads with one thread",
    ),
)
"""The auto rules, the most important first."""


def _list(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "none"
