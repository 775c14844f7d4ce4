# SPDX-License-Identifier: Apache-2.0
"""The outcome of a selection, with every candidate and its reason; and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weight_readers import _schema
from weight_readers._catalogue import KNOWN_READERS
from weight_readers._schema import Schema
from weight_readers.capabilities import ReaderInfo, Request
from weight_readers.environment import Environment
from weight_readers.policy import Accepted, Precedence, Rejected, Verdict, rank, why_before


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the registry knows of one name before policy looks at it."""

    name: str
    verdict: Verdict
    info: ReaderInfo | None = None
    distribution: str | None = None
    version: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate(Schema):
    """One reader that was considered: accepted with its reasons, or rejected with code, reason and fix.

    ``settings`` are what it is made with besides `Request.options`, ``tuned`` the reasons for those that policy chose.
    """

    name: str
    accepted: bool
    code: str = "accepted"
    reason: str = ""
    fix: str | None = None
    distribution: str | None = None
    version: str | None = None
    fallback: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata={"coerce": _schema.mapping})
    tuned: Mapping[str, str] = field(default_factory=dict, hash=False, metadata={"coerce": _schema.mapping})

    @classmethod
    def of(cls, standing: Standing) -> Candidate:
        common: dict[str, Any] = {
            "name": standing.name,
            "distribution": standing.distribution,
            "version": standing.version,
            "fallback": standing.info is not None and standing.info.fallback,
        }
        verdict = standing.verdict
        if isinstance(verdict, Accepted):
            reason = "; ".join(verdict.reasons) or "fits the request"
            return cls(accepted=True, reason=reason, settings=verdict.settings, tuned=verdict.tuned, **common)
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

    request: Request = field(metadata={"coerce": _schema.schema(Request)})
    environment: Environment = field(metadata={"coerce": _schema.schema(Environment)})
    requested: str | None = None
    chosen: str | None = None
    fallback: bool = False
    strict: bool = False
    reason: str = ""
    candidates: tuple[Candidate, ...] = field(default=(), metadata={"coerce": _schema.schemas(Candidate)})

    def candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    @property
    def of_other_formats(self) -> tuple[str, ...]:
        """Where one was chosen, the readers of other formats: there is nothing to learn from them."""
        passed_over = (c for c in self.candidates if self.chosen and c.code == "format")
        return tuple(c.name for c in passed_over if c.name != self.requested)

    def made_with(self) -> list[tuple[str, Any, str]]:
        """Name, value and origin of each option that the chosen reader is made with; it has its defaults for others.

        The origin of what policy set for the case at hand is its reason.
        """
        chosen = self.candidate(self.chosen or "")
        if chosen is None:
            return []
        given = {**chosen.settings, **self.request.options}
        return [(name, value, self._origin(chosen, name, value)) for name, value in given.items()]

    def _origin(self, chosen: Candidate, name: str, value: Any) -> str:
        if name in self.request.options:
            return "required by the caller"
        if name in chosen.tuned:
            return chosen.tuned[name]
        return "set by the caller" if self.request.settings.get(name) == value else "owned tensors were asked for"

    def headline(self) -> str:
        """Who was chosen, and why, in one line."""
        return f"chosen: {self.chosen or 'none'}" + (f" ({self.reason})" if self.reason else "")

    def explain(self) -> str:
        """The facts, and every candidate and its reason, the chosen one first and with its settings, as lines of text.

        Readers `of_other_formats` share a line.
        """
        others = self.of_other_formats
        facts = self.environment.facts()
        lines = [f"  machine: {', '.join(facts)}"] if facts else []
        for candidate in self.candidates:
            if candidate.name not in others:
                lines.append(f"  {candidate}")
            if candidate.name == self.chosen:
                lines += [f"    {name}={candidate.settings[name]!r}: {why}" for name, why in candidate.tuned.items()]
        return "\n".join([self.headline(), *lines, *([f"  for other formats: {', '.join(others)}"] if others else [])])

    __str__ = explain


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
    by_name = {s.name: s for s in standings}
    order = rank(
        {s.name: s.verdict for s in standings},
        {s.name: s.info for s in standings if s.info is not None},
        request,
        environment,
        requested=requested,
        environment_prefers=environment_prefers,
        distributions={s.name: s.distribution for s in standings},
    )
    fitting = [place for place in order if not place.rejected]
    asked = by_name.get(requested or "")
    unusable = asked is not None and isinstance(asked.verdict, Rejected)
    if asked is not None and unusable:
        fitting = [] if strict else [place for place in fitting if _stands_in(by_name[place.name], asked, request)]
    chosen = fitting[0].name if fitting else None
    return Selection(
        request=request,
        environment=environment,
        requested=requested,
        chosen=chosen,
        fallback=unusable and chosen is not None,
        strict=strict,
        reason=_reason(fitting, requested, unusable, request, environment),
        candidates=tuple(Candidate.of(by_name[p.name]) for p in sorted(order, key=lambda p: p.name != chosen)),
    )


def _stands_in(candidate: Standing, asked: Standing, request: Request) -> bool:
    """Whether ``candidate``, which fits, is the fallback for the format that ``asked`` would have read."""
    if candidate.info is None or not candidate.info.fallback:
        return False
    if request.format is not None:
        return True
    known = asked.info or KNOWN_READERS.get(asked.name)
    return known is not None and bool(known.formats & candidate.info.formats)


def _reason(
    fitting: Sequence[Precedence], requested: str | None, unusable: bool, request: Request, environment: Environment
) -> str:
    if unusable:
        why = f"{requested!r} was requested and is not usable"
        return f"the fallback: {why}" if fitting else why
    if not fitting:
        return "no installed reader fits"
    if fitting[0].name == requested:
        return "requested by name"
    if len(fitting) == 1:
        return "the only reader that fits"
    return why_before(fitting[0], fitting[1], request, environment)
