# SPDX-License-Identifier: Apache-2.0
"""How the command line shows things to people: rich tables, plain lines off a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from weight_readers import Candidate, TensorMeta
from weight_readers_loader.commands.output import text
from weight_readers_loader.wording import counted, size, visible

if TYPE_CHECKING:
    from weight_readers_loader.commands.explain import Explained
    from weight_readers_loader.commands.inspect import Inspected


def console() -> Console:
    # Off a terminal rich would fold lines at 80 columns, in the middle of names that are to be searched for.
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty(), emoji=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | list[str]]], styles: Sequence[str] = ()) -> None:
    """``styles`` are of the rows, on a terminal. A cell is a line, or a list of several."""
    shown = [tuple(map(_cell, row)) for row in rows]
    if not sys.stdout.isatty():
        for row in shown:
            text("  ".join(row))
        return
    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row, style in zip(shown, styles or [""] * len(shown), strict=True):
        drawn.add_row(*row, style=style)
    console().print(drawn)


def _cell(said: str | list[str]) -> str:
    # A line end within a text is none of a line: with one in its name a tensor would be shown as two.
    return visible(said) if isinstance(said, str) else "\n".join(map(visible, said))


def readers(report: Mapping[str, Any]) -> None:
    """The result of ``list``."""
    names = set(report["available"])
    rows = [
        (
            name,
            ", ".join(info["formats"]),
            ", ".join(info["schemes"]),
            info["lifetime"],
            ", ".join(info["features"]),
            f"{info['distribution']} {info['version']}",
        )
        for name, info in report["readers"].items()
        if name in names
    ]
    if rows:
        table(("reader", "formats", "schemes", "lifetime", "features", "from"), rows)
    else:
        text(f"no weight reader is installed. {_first_install(report)}")
    for line in troubles(report):
        text(line)


def _first_install(report: Mapping[str, Any]) -> str:
    extras = report["missing_extras"]
    chosen = extras.get("mmap") or next(iter(extras.values()), None)
    return f"Install one: {chosen['install']}" if chosen else ""


def troubles(report: Mapping[str, Any]) -> list[str]:
    """One line for each reader that is there and cannot be used, and for each distribution at fault."""
    lines = [f"broken: {name} ({_origin(entry)}): {entry['cause']}" for name, entry in report["broken"].items()]
    lines += [f"duplicate: {name}: {' and '.join(owners)}" for name, owners in report["duplicates"].items()]
    lines += [
        f"{'declines' if entry['code'] == 'vetoed' else 'unusable'}: {name}: {_reason(entry)}"
        for name, entry in report["unusable"].items()
        if entry["code"] != "duplicate"
    ]
    lines += [f"disabled: {name} ({_origin(e)}), by WEIGHT_READERS_DISABLE" for name, e in report["disabled"].items()]
    lines += [f"shadowed: {found}" for found in report["shadowed"]]
    lines += [f"conflict: {said}" for said in report["format_conflicts"]]
    lines += [f"unreadable distribution: {entry['location']}: {entry['cause']}" for entry in report["unreadable"]]
    return lines


def _origin(entry: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (entry["distribution"], entry["version"])))


def _reason(entry: Mapping[str, Any]) -> str:
    return ". ".join(filter(None, (entry["reason"], entry["fix"])))


def explained(found: Explained, reference: str) -> None:
    """The result of ``explain``: on a terminal the candidates are a table, the chosen one on top."""
    if not sys.stdout.isatty():
        for line in found.lines(reference):
            text(line)
        return
    selection = found.selection
    for line in found.about(reference):
        text(line)
    text(selection.headline())
    facts = selection.environment.facts()
    text(f"machine: {', '.join(facts)}\n" if facts else "")
    shown = [c for c in selection.candidates if c.name not in selection.of_other_formats]
    rows = [(c.name, _verdict(c, selection.chosen), _whys(c, selection.chosen), _from(c)) for c in shown]
    table(("reader", "", "why", "from"), rows, styles=[_style(c, selection.chosen) for c in shown])
    others = selection.of_other_formats
    for line in [f"\nfor other formats: {', '.join(others)}"] if others else []:
        text(line)
    for line in found.remarks():
        text(line.strip())


def _verdict(candidate: Candidate, chosen: str | None) -> str:
    if candidate.name == chosen:
        return "chosen"
    return "fits" if candidate.accepted else f"no [{candidate.code}]"


def _whys(candidate: Candidate, chosen: str | None) -> list[str]:
    tuned = candidate.tuned.items() if candidate.name == chosen else ()
    settings = [f"{name}={candidate.settings[name]!r}: {why}" for name, why in tuned]
    return [*candidate.reason.split("; "), *filter(None, [candidate.fix]), *settings]


def _from(candidate: Candidate) -> str:
    return " ".join(filter(None, (candidate.distribution, candidate.version)))


def _style(candidate: Candidate, chosen: str | None) -> str:
    return "green" if candidate.name == chosen else "" if candidate.accepted else "dim"


def inspected(seen: Inspected) -> None:
    """The result of ``inspect``. Of a file of which nothing could be listed, its error alone says what is in it."""
    if seen.tensors or seen.error is None:
        _tensors(seen.tensors)
        text(totals(seen.tensors, len(seen.layout.files)))
    for line in seen.remarks():
        text(line)


def _tensors(metas: Sequence[TensorMeta]) -> None:
    rows = [(m.name, _dtype(m), str(list(m.shape)), size(m.nbytes), m.file) for m in metas]
    table(("tensor", "dtype", "shape", "size", "file"), rows)


def _dtype(meta: TensorMeta) -> str:
    return f"{meta.source_dtype} (unknown)" if meta.dtype == "unknown" else meta.source_dtype


def totals(metas: Sequence[TensorMeta], files: int) -> str:
    bytes_by: Counter[str] = Counter()
    count_by: Counter[str] = Counter()
    for meta in metas:
        bytes_by[meta.source_dtype] += meta.nbytes
        count_by[meta.source_dtype] += 1
    by_dtype = ", ".join(f"{d}: {count_by[d]} ({size(n)})" for d, n in bytes_by.most_common())
    tensors_in = f"{counted(len(metas), 'tensor')} in {counted(files, 'file')}"
    return f"{tensors_in}, {size(bytes_by.total())}: {by_dtype or 'nothing'}"
