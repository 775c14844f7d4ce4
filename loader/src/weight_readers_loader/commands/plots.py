# SPDX-License-Identifier: Apache-2.0
"""The pictures of ``inspect`` and ``bench``: where the bytes of a checkpoint are, and how long each reader took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from weight_readers import TensorMeta
from weight_readers_loader.wording import size, visible

if TYPE_CHECKING:
    from weight_readers_loader.commands.bench import Bench

MOST_BARS = 100
"""Where there are more parts, blocks are joined by what their names have before the number, and then the smallest."""

_COLOURS = (
    "#1b6ca8", "#e8a33d", "#5aa469", "#c05746", "#8d6cab",
    "#6fa8dc", "#9c9c9c", "#2f4858", "#d4c06a", "#444444",
)  # fmt: skip
_LONGEST = 60
"""Characters of a label; longer ones would leave no room for the bars."""
_FASTEST, _OTHER, _LIMIT = "#1b6ca8", "#6fa8dc", "#9c9c9c"


def parts(metas: Sequence[TensorMeta]) -> dict[str, Counter[str]]:
    """Part of the model -> dtype -> bytes, in the order of the files, of `MOST_BARS` parts at most.

    A part is a numbered block (``model.layers.7``) or, besides blocks, the first two words of a name.
    """
    found = _parts(metas, numbered=True)
    if len(found) > MOST_BARS:
        found = _parts(metas, numbered=False)
    return found if len(found) <= MOST_BARS else _largest(found)


def _parts(metas: Sequence[TensorMeta], *, numbered: bool) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for meta in metas:
        found.setdefault(_part(meta.name, numbered=numbered), Counter())[meta.source_dtype] += meta.nbytes
    return found


def _part(name: str, *, numbered: bool) -> str:
    words = name.split(".")
    number = next((place for place, word in enumerate(words[1:-1], 1) if word.isdigit()), None)
    if number is None:
        return ".".join(words[: max(1, min(2, len(words) - 1))])
    return ".".join(words[: number + 1] if numbered else [*words[:number], "*"])


def _largest(found: Mapping[str, Counter[str]]) -> dict[str, Counter[str]]:
    kept = set(sorted(found, key=lambda part: found[part].total(), reverse=True)[: MOST_BARS - 1])
    shown = {part: counts for part, counts in found.items() if part in kept}
    rest: Counter[str] = Counter()
    for part in found.keys() - kept:
        rest.update(found[part])
    return shown | {f"{len(found) - len(kept)} other parts": rest}


def tensors(metas: Sequence[TensorMeta], title: str) -> Figure:
    """A bar for each part of the model, as long as its bytes, coloured by dtype; the first of the file on top."""
    held = parts(metas)
    total: Counter[str] = Counter()
    for counts in held.values():
        total.update(counts)
    figure, axis = _axis(len(held), title)
    unit, scale = _unit(max((counts.total() for counts in held.values()), default=0))
    colours = {dtype: _COLOURS[i % len(_COLOURS)] for i, (dtype, _) in enumerate(total.most_common())}
    for place, (part, counts) in enumerate(held.items()):
        begin = 0.0
        for dtype in (dtype for dtype in colours if counts[dtype]):
            (bar,) = axis.barh(place, counts[dtype] / scale, left=begin, color=colours[dtype], height=0.8)
            bar.set_gid(visible(f"{part}/{dtype}"))
            begin += counts[dtype] / scale
    _finish(axis, list(held), unit)
    _legend(axis, {f"{dtype}  {size(nbytes)}": colours[dtype] for dtype, nbytes in total.most_common()})
    return figure


def bench(found: Bench) -> Figure:
    """A bar for each reader, as long as its median time; a dot for each round, a line from lowest to highest."""
    where, kind, *_ = found.lines()
    figure, axis = _axis(len(found.samples), f"{where}\n{kind}")
    for place, (name, samples) in enumerate(found.samples.items()):
        seconds = [sample.seconds for sample in samples]
        (bar,) = axis.barh(place, median(seconds), color=_colour(found, name), height=0.6)
        bar.set_gid(name)
        axis.plot([min(seconds), max(seconds)], [place, place], color="#222222", linewidth=1)
        axis.plot(seconds, [place] * len(seconds), "o", color="#222222", markersize=3)
    speed = {name: size(int(found.nbytes / median(s.seconds for s in held))) for name, held in found.samples.items()}
    _finish(axis, [f"{name}, {speed[name]}/s" for name in found.samples], "seconds, less is better")
    return figure


def _colour(found: Bench, name: str) -> str:
    from weight_readers_loader.commands.bench import LIMIT  # which imports torch

    return _LIMIT if name == LIMIT else _FASTEST if name == found.fastest else _OTHER


def _axis(bars: int, title: str) -> tuple[Figure, Any]:
    # Without pyplot: no window system is asked for, and no state of the process is changed.
    figure = Figure(figsize=(9, 1.4 + 0.22 * max(3, bars)), layout="constrained")
    axis = figure.add_subplot()
    lines = (line for said in title.split("\n") for line in wrap(visible(said), width=110))
    axis.set_title(_literal("\n".join(lines)), fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _unit(nbytes: int) -> tuple[str, int]:
    """The unit in which as many bytes are said, and how many bytes it is."""
    unit = size(nbytes).split()[1]
    return unit, next(1024**power for power in range(6) if size(1024**power).split()[1] == unit)


def _finish(axis: Any, labels: Sequence[str], quantity: str) -> None:
    axis.set_yticks(range(len(labels)), [_literal(_short(visible(label))) for label in labels], fontsize=8)
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.set_xlim(left=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(quantity, fontsize=9)


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST // 2]}…{label[-_LONGEST // 2 :]}"


def _literal(text: str) -> str:
    """Names come from files: a dollar sign in one begins no formula."""
    return text.replace("$", r"\$")


def _legend(axis: Any, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=label) for label, colour in colours.items()]
    axis.legend(handles=patches, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
