# SPDX-License-Identifier: Apache-2.0
"""The outcome of a selection, with every candidate and its reason; and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weight_readers import _schema
from weight_readers._catalogue import KNOWN_READERS
from weight_readers._schema import Schema
from weight_readers.capabilities import Environment, ReaderInfo, Request
from weight_readers.policy import Accepted, Rejected, Verdict, rank


@dataclass(frozen=True, kw_only=True)
class Candidate(Schema):
    """One reader that was considered: accepted with its reasons, or rejected with code, reason and fix."""

    name: str
    accepted: bool
    code: str = "accepted"
    reason: str = ""
    fix: str | None = None
    distribution: str | None = None
    version: str | None = None
    fallback: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata={"coerce": _schema.mapping})

    @classmethod
    def of(
        cls, name: str, verdict: Verdict, *, info: ReaderInfo | None, distribution: str | None, version: str | None
    ) -> Candidate:
        common: dict[str, Any] = {
            "name": name,
            "distribution": distribution,
            "version": version,
            "fallback": info is not None and info.fallback,
        }
        if isinstance(verdict, Accepted):
            reason = "; ".join(verdict.reasons) or "fits the request"
            return cls(accepted=True, reason=reason, settings=verdict.settings, **common)
        return cls(accepted=False, code=verdict.code, reason=verdict.reason, fix=verdict.fix, **common)

    def __str__(self) -> str:
        origin = f" ({self.distribution} {self.version})" if self.distribution else ""
        mark = "accepted" if self.accepted else f"rejected [{self.code}]"
        return f"{self.name}{origin}: {mark}: {self.reason}" + (f". {self.fix}" if self.fix else "")


@dataclass(frozen=True, kw_only=True)
class Selection(Schema):
    """Who was picked for ``request``, and why: ``candidates`` lists everyone, best first.

    ``chosen`` is None where none fits. ``fallback`` says that ``chosen`` stands in for ``requested``, which is
    not usable. ``strict`` forbids that.
    """

    request: Request = field(metadata={"coerce": lambda name, v: Request.from_json(v) if isinstance(v, Mapping) else v})
    environment: Environment = field(
        metadata={"coerce": lambda name, v: Environment.from_json(v) if isinstance(v, Mapping) else v}
    )
    requested: str | None = None
    chosen: str | None = None
    fallback: bool = False
    strict: bool = False
    reason: str = ""
    candidates: tuple[Candidate, ...] = field(default=(), metadata={"coerce": _schema.schemas(Candidate)})

    def candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    def explain(self) -> str:
        """Every candidate and its reason, the chosen one first, as lines of text."""
        head = f"chosen: {self.chosen or 'none'}"
        if self.reason:
            head += f" ({self.reason})"
        return "\n".join([head, *(f"  {candidate}" for candidate in self.candidates)])

    __str__ = explain


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the registry knows of one name before policy looks at it."""

    name: str
    verdict: Verdict
    info: ReaderInfo | None = None
    distribution: str | None = None
    version: str | None = None


def choose(
    standings: Sequence[Standing],
    request: Request,
    environment: Environment,
    *,
    requested: str | None = None,
    environment_prefers: Sequence[str] = (),
    strict: bool = False,
) -> Selection:
    """Rank the standings and pick one: the best, or the fallback for a requested reader that is not usable."""
    verdicts = {s.name: s.verdict for s in standings}
    infos = {s.name: s.info for s in standings if s.info is not None}
    by_name = {s.name: s for s in standings}
    order = rank(verdicts, infos, request, environment, requested=requested, environment_prefers=environment_prefers)
    unusable = requested is not None and isinstance(verdicts.get(requested), Rejected)
    accepted = [name for name in order if isinstance(verdicts[name], Accepted)]
    if unusable and requested is not None:
        stand_ins = [] if strict else [n for n in accepted if _stands_in(infos[n], requested, infos, request)]
        chosen = stand_ins[0] if stand_ins else None
    else:
        chosen = accepted[0] if accepted else None
    candidates = [
        Candidate.of(
            n, verdicts[n], info=infos.get(n), distribution=by_name[n].distribution, version=by_name[n].version
        )
        for n in sorted(order, key=lambda name: name != chosen)
    ]
    return Selection(
        request=request,
        environment=environment,
        requested=requested,
        chosen=chosen,
        fallback=unusable and chosen is not None,
        strict=strict,
        reason=_reason(chosen, requested, unusable, request, environment_prefers, accepted),
        candidates=tuple(candidates),
    )


def _stands_in(info: ReaderInfo, requested: str, infos: Mapping[str, ReaderInfo], request: Request) -> bool:
    """Whether ``info`` is the fallback for the format that ``requested`` would have read."""
    if not info.fallback:
        return False
    if request.format is not None:
        return True  # accepted, so it reads that format
    if requested in infos:
        formats = infos[requested].formats
    else:
        formats = KNOWN_READERS[requested].formats if requested in KNOWN_READERS else frozenset()
    return bool(formats & info.formats)


def _reason(
    chosen: str | None,
    requested: str | None,
    unusable: bool,
    request: Request,
    environment_prefers: Sequence[str],
    accepted: Sequence[str],
) -> str:
    if chosen is None:
        return f"{requested!r} was requested and is not usable" if unusable else "no installed reader fits"
    if unusable:
        return f"the fallback: {requested!r} was requested and is not usable"
    if chosen == requested:
        return "requested by name"
    if len(accepted) == 1:
        return "the only reader that fits"
    if chosen in request.prefer:
        return "preferred by the caller"
    if chosen in environment_prefers:
        return "preferred by WEIGHT_READERS_PREFER"
    return "first by the auto rules"
