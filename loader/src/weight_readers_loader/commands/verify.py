# SPDX-License-Identifier: Apache-2.0
"""``verify``: everything that is wrong with a checkpoint, from its headers and, where asked for, its contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weight_readers import CheckpointError, select_weight_reader
from weight_readers_loader.digests import Verified, references, verify
from weight_readers_loader.preflight import preflight
from weight_readers_loader.resolve.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All problems, and how far the contents were checked: ``contents`` is None where nobody asked."""

    layout: Layout | None
    tensors: int
    problems: tuple[CheckpointError, ...]
    notices: tuple[str, ...] = ()
    contents: Verified | None = None
    has_references: bool = False

    @property
    def ok(self) -> bool:
        return not self.problems and not (self.contents and self.contents.unknown)

    def lines(self) -> list[str]:
        files = len(self.layout.files) if self.layout else 0
        lines = [f"notice: {notice}" for notice in self.notices]
        if not self.problems:
            lines.append(f"headers: {self.tensors} tensors in {files} file{'s' * (files != 1)}, no problem found")
        return [*lines, self._contents(), *([f"{len(self.problems)} problems"] if self.problems else [])]

    def _contents(self) -> str:
        if self.contents is None:
            offer = "pass --sha256" if self.has_references else "pass --manifest FILE with their digests"
            return f"contents: not verified; {offer}"
        if not self.contents.right and not self.contents.problems:
            return "contents: not verified: there is no digest for any file to verify against"
        unknown = self.contents.unknown
        rest = f", no digest for {len(unknown)}: {', '.join(unknown[:5])}" if unknown else ""
        return f"contents: sha256 right for {len(self.contents.right)} files{rest}"

    def to_json(self) -> dict[str, Any]:
        contents = self.contents
        return {
            "ok": self.ok,
            "files": list(self.layout.paths) if self.layout else [],
            "tensors": self.tensors,
            "errors": [problem.to_json() for problem in self.problems],
            "notices": list(self.notices),
            "contents": contents and {"right": list(contents.right), "without_digest": list(contents.unknown)},
        }


def verification(resolve: Callable[[], Layout], *, contents: bool, manifest: str | None) -> Verification:
    """Check what ``resolve`` finds. Raises where no reader fits, or where ``manifest`` is none."""
    try:
        layout = resolve()
    except CheckpointError as error:
        return Verification(layout=None, tensors=0, problems=error.problems)
    problems: tuple[CheckpointError, ...] = ()
    notices, tensors = layout.notices, 0
    reader = select_weight_reader(format=layout.format, schemes=frozenset({"file"}))
    try:
        checked = preflight(layout, reader, strict=False)
        notices, tensors = checked.notices, len(checked.tensors)
    except CheckpointError as error:
        problems = error.problems
    digests = references(layout.files, manifest)
    hashed = verify(layout.files, digests) if contents else None
    return Verification(
        layout=layout,
        tensors=tensors,
        problems=problems + (hashed.problems if hashed else ()),
        notices=notices,
        contents=hashed,
        has_references=bool(digests),
    )
