# SPDX-License-Identifier: Apache-2.0
"""``verify``: everything that is wrong with a checkpoint, from its headers and, where asked for, its contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weight_readers import CheckpointError, TensorMeta, UnknownDtypeError
from weight_readers.tensors import UNKNOWN
from weight_readers_loader.chooser import Chooser
from weight_readers_loader.digests import Digest, Verified, references, verify
from weight_readers_loader.preflight import preflight
from weight_readers_loader.resolve import Layout
from weight_readers_loader.stored_digests import digester, kept
from weight_readers_loader.wording import counted, some


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All problems, and how far the contents were checked: ``contents`` is None where nobody asked."""

    layout: Layout | None
    tensors: int
    problems: tuple[CheckpointError, ...]
    notices: tuple[str, ...] = ()
    contents: Verified | None = None
    has_references: bool = False
    without: Mapping[str, str] = field(default_factory=dict)
    """Why a store keeps no digest to compare with, by file name."""

    @property
    def ok(self) -> bool:
        return not self.problems and self.unverified is None

    @property
    def unverified(self) -> str | None:
        """What was to be compared with a digest and has none: to ask for a check that cannot be made is a failure."""
        if self.contents is None or not self.contents.unknown:
            return None
        fix = "Pass --manifest FILE with their digests, as sha256sum writes it"
        why = "".join(f" ({remark})" for remark in sorted(set(self.without.values())))
        return f"no digest to verify {some(self.contents.unknown)} against{why}. {fix}"

    def lines(self) -> list[str]:
        files = counted(len(self.layout.files) if self.layout else 0, "file")
        lines = [f"notice: {notice}" for notice in self.notices]
        if not self.problems:
            lines.append(f"headers: {counted(self.tensors, 'tensor')} in {files}, no problem found")
        return [*lines, self._contents(), *([counted(len(self.problems), "problem")] if self.problems else [])]

    def _contents(self) -> str:
        if self.contents is None:
            offer = "pass --sha256" if self.has_references else "pass --manifest FILE with their digests"
            return f"contents: not verified; {offer}"
        if not self.contents.right and not self.contents.problems:
            return "contents: not verified: there is no digest for any file to verify against"
        algorithms = " and ".join(self.contents.algorithms)
        return f"contents: {algorithms or 'sha256'} right for {counted(len(self.contents.right), 'file')}"

    def to_json(self) -> dict[str, Any]:
        contents = self.contents
        return {
            "files": list(self.layout.paths) if self.layout else [],
            "tensors": self.tensors,
            "errors": [problem.to_json() for problem in self.problems],
            "notices": list(self.notices),
            "contents": contents
            and {
                "right": list(contents.right),
                "without_digest": list(contents.unknown),
                "algorithms": list(contents.algorithms),
            },
        }


def verification(
    resolve: Callable[[], Layout],
    *,
    strict: bool | None,
    contents: bool,
    manifest: str | None,
    cache_dir: str | None = None,
) -> Verification:
    """Check what ``resolve`` finds. Raises where no reader fits, or where ``manifest`` is none."""
    try:
        layout = resolve()
    except CheckpointError as error:
        return Verification(layout=None, tensors=0, problems=error.problems)
    tensors, notices, problems = _headers(layout, strict, cache_dir)
    digests, without, hashed = _contents(layout, contents=contents, manifest=manifest)
    return Verification(
        layout=layout,
        tensors=tensors,
        problems=problems + (hashed.problems if hashed else ()),
        notices=notices,
        contents=hashed,
        has_references=bool(digests) or layout.scheme != "file",
        without=without,
    )


def _contents(
    layout: Layout, *, contents: bool, manifest: str | None
) -> tuple[Mapping[str, Digest], Mapping[str, str], Verified | None]:
    """Digests to compare with, why there are none for some files, and what comparing them found."""
    if layout.scheme == "file" or not contents:
        digests = references(layout.files, manifest) if layout.scheme == "file" else {}
        return digests, {}, verify(layout.files, digests) if contents else None
    reader = digester(layout.scheme, {})
    digests, without = (references(layout.files, manifest), {}) if manifest else kept(layout.files, reader)
    return digests, without, verify(layout.files, digests, hash_of=reader.digest)


def _headers(
    layout: Layout, strict: bool | None, cache_dir: str | None
) -> tuple[int, tuple[str, ...], tuple[CheckpointError, ...]]:
    reader, selection = Chooser(format=layout.format, scheme=layout.scheme, strict=strict, cache_dir=cache_dir).pick()
    try:
        checked = preflight(layout, reader, strict=selection.strict)
    except CheckpointError as error:
        return len(error.partial), layout.notices, error.problems
    return len(checked.tensors), checked.notices, tuple(_unreadable(checked.tensors.values()))


def _unreadable(tensors: Iterable[TensorMeta]) -> Iterator[CheckpointError]:
    """Tensors that a load of the whole checkpoint would stop at."""
    for tensor in tensors:
        if tensor.dtype == UNKNOWN:
            why = tensor.converted or f"its dtype {tensor.source_dtype} is not known"
            yield UnknownDtypeError(f"the tensor cannot be read: {why}", path=tensor.file, tensor=tensor.name)
