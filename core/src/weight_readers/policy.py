# SPDX-License-Identifier: Apache-2.0
"""The policy: which readers fit a request, and which of those is best. Pure functions of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from weight_readers import _schema
from weight_readers._catalogue import is_ours
from weight_readers._needs import host_need, must_copy, to_device
from weight_readers._preferences import applying
from weight_readers._schema import Schema
from weight_readers._tunings import Tuned, tuned
from weight_readers.capabilities import Feature, ReaderInfo, Request
from weight_readers.environment import Environment


@dataclass(frozen=True, kw_only=True)
class Accepted(Schema):
    """The reader fits. ``reasons`` say what speaks for and against it.

    ``settings`` are options it has to run with, ``tuned`` the reason for each of them that policy chose by itself.
    """

    reasons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata={"coerce": _schema.mapping})
    tuned: Mapping[str, str] = field(default_factory=dict, hash=False, metadata={"coerce": _schema.mapping})

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
    chosen = list(tuned(info, request, environment))
    return Accepted(
        reasons=tuple(
            p.reason(info, request, environment) for p in applying(request, environment) if p.says(info, request)
        ),
        settings=_settings(info, request, chosen),
        tuned={each.option: each.reason for each in chosen},
    )


def _settings(info: ReaderInfo, request: Request, chosen: Iterable[Tuned]) -> dict[str, Any]:
    """The options that the reader is made with besides those that the caller requires of it."""
    wished = {name: v for name, v in request.settings.items() if name in info.options and name not in request.options}
    settings = {**wished, **{each.option: each.value for each in chosen}}
    return {**settings, "copy": True} if must_copy(info, request) else settings


class Precedence(NamedTuple):
    """What orders the readers, the weightiest first; the smaller comes first. No number is supplied by a plugin."""

    rejected: bool
    foreign: bool
    not_requested: bool
    caller: int
    environment: int
    auto: tuple[bool, ...]
    for_more_places: bool
    fallback: bool
    of_others: bool
    name: str


def precedence(
    name: str,
    verdict: Verdict,
    info: ReaderInfo | None,
    request: Request,
    environment: Environment,
    *,
    requested: str | None = None,
    environment_prefers: Sequence[str] = (),
    distribution: str | None = None,
) -> Precedence:
    """Where ``name`` stands. A name without info (absent, broken, disabled) has nothing that is preferred."""
    return Precedence(
        rejected=isinstance(verdict, Rejected),
        foreign=isinstance(verdict, Rejected) and verdict.code == "format",
        not_requested=name != requested,
        caller=_place(name, request.prefer),
        environment=_place(name, environment_prefers),
        auto=tuple(info is None or not p.likes(info, request) for p in applying(request, environment)),
        for_more_places=info is None or bool(_places(info) - (request.schemes or _HERE)),
        fallback=info is None or info.fallback,
        of_others=not is_ours(name, distribution),
        name=name,
    )


def rank(
    verdicts: Mapping[str, Verdict],
    infos: Mapping[str, ReaderInfo],
    request: Request,
    environment: Environment,
    *,
    requested: str | None = None,
    environment_prefers: Sequence[str] = (),
    distributions: Mapping[str, str | None] = MappingProxyType({}),
) -> list[Precedence]:
    """Where each name of ``verdicts`` stands, best first; ``distributions`` are those that the readers come from."""
    place = partial(
        precedence,
        request=request,
        environment=environment,
        requested=requested,
        environment_prefers=environment_prefers,
    )
    return sorted(
        place(name, verdict, infos.get(name), distribution=distributions.get(name))
        for name, verdict in verdicts.items()
    )


def why_before(first: Precedence, second: Precedence, request: Request, environment: Environment) -> str:
    """In words, the weightiest point in which ``first`` comes before ``second``."""
    decisive = next(field for field in Precedence._fields if getattr(first, field) != getattr(second, field))
    if decisive == "for_more_places":
        places = " and ".join(f"{scheme}://" for scheme in sorted(request.schemes - _HERE))
        return f"made for {places or 'local files'} alone, the others for other places too"
    if decisive != "auto":
        return _WHY[decisive]
    preferences = zip(applying(request, environment), first.auto, second.auto, strict=True)
    return next(f"{p.title(environment)}: {p.liked}" for p, one, other in preferences if one != other)


_WHY = {
    "rejected": "the other does not fit",
    "foreign": "the other reads other formats",
    "not_requested": "requested by name",
    "caller": "preferred by the caller",
    "environment": "preferred by WEIGHT_READERS_PREFER",
    "fallback": "the others are fallbacks",
    "of_others": "a reader of this project before equals of others",
    "name": "first by name among equals: WEIGHT_READERS_PREFER says otherwise",
}


_HERE = frozenset({"file"})
"""Where the files lie if nobody says: paths are what readers are given then."""


def _places(info: ReaderInfo) -> frozenset[str]:
    """The schemes that the reader is made for, also those that lack a package: its rank is the same without it."""
    return info.schemes | frozenset(info.more_schemes)


def _place(name: str, order: Sequence[str]) -> int:
    return list(order).index(name) if name in order else len(order)


# --- what a reader must be able to do ----------------------------------------------------------------------


def _format(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    if request.format is None or request.format in info.formats:
        return None
    return Rejected(code="format", reason=f"reads {_list(info.formats)}, not {request.format}")


def _scheme(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    lacking = request.schemes - info.schemes
    if not lacking:
        return None
    reason = f"cannot read {_list(lacking)}: its schemes are {_list(info.schemes)}"
    commands = sorted({str(info.more_schemes[scheme]) for scheme in lacking if scheme in info.more_schemes})
    return Rejected(code="scheme", reason=reason, fix=f"Install it: {' && '.join(commands)}" if commands else None)


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
    if not must_copy(info, request):
        return None
    if "copy" not in info.options:
        return Rejected(code="owned", reason="yields views of the file, and owned tensors were asked for")
    if request.options.get("copy", True) is not True:
        return Rejected(code="owned", reason=f"option copy={request.options['copy']!r} contradicts owned=True")
    return None


def _budget(info: ReaderInfo, request: Request, environment: Environment) -> Rejected | None:
    need, budget = host_need(info, request), environment.host_memory_limit
    if need is None or budget is None or need <= budget:
        return None
    if to_device(request):
        reason = f"has no bound on host memory: {need} bytes are wanted and {budget} are free"
        if Feature.BOUNDED_MEMORY in info.features:
            reason = f"would have {need} bytes of host memory under way, and {budget} are free"
        return Rejected(code="over-budget", reason=reason)
    return Rejected(
        code="over-budget",
        reason=f"would hold {need} bytes of host memory, and {budget} are free",
        fix="Load less (a key filter or slices), or keep the tensors mapped: owned=False",
    )


_RULES: tuple[_Rule, ...] = (_format, _scheme, _key_filter, _features, _dtypes, _options, _owned, _budget)


def _list(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "none"
