# SPDX-License-Identifier: Apache-2.0
"""The file of ``--plot``: what kind of picture it is, and matplotlib, which draws it, are settled before any work."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weight_readers_loader.commands.report_file import WholeFile, cannot_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "weight-readers"}
"""Text of an SVG stays text, that can be searched for, and equal pictures are equal files."""


class PlotFile(WholeFile):
    """A picture at ``path``, of the kind that its suffix names.

    Raises ValueError for another suffix, OSError where no file can be written, ImportError without matplotlib.
    """

    def __init__(self, path: str) -> None:
        self._kind = Path(path).suffix.lower().removeprefix(".")
        if self._kind not in KINDS:
            raise ValueError(f"pictures end in {', '.join(f'.{kind}' for kind in KINDS)}")
        if find_spec("matplotlib") is None:
            raise ImportError('--plot draws with matplotlib. Install it: pip install "weight-readers-loader[plot]"')
        super().__init__(path)

    def draw(self, figure: Figure) -> None:
        """Put ``figure`` there. Raises OSError."""
        from matplotlib import rc_context

        content = io.BytesIO()
        undated: Any = {"metadata": {"Date": None}} if self._kind == "svg" else {}
        with rc_context(_SETTINGS), _one_word_of_glyphs(matters=self._kind != "svg"):
            figure.savefig(content, format=self._kind, dpi=110, **undated)
        self.put(content.getvalue())


@contextmanager
def _one_word_of_glyphs(*, matters: bool) -> Iterator[None]:
    """In place of matplotlib's warning for each letter that no installed font has, one, where it ``matters``."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
    lacking = [said for said in heard if "missing from font" in str(said.message)]
    for said in (said for said in heard if said not in lacking):
        warnings.warn_explicit(said.message, said.category, said.filename, said.lineno)
    if lacking and matters:
        what = "no font that is installed here has some letters of these names, and the picture has boxes for them"
        warnings.warn(f"{what}. Install a font that has them, or write an .svg, which keeps them as text", stacklevel=2)


def _plot_file(context: click.Context, parameter: click.Parameter, path: str | None) -> PlotFile | None:
    try:
        return None if path is None else PlotFile(path)
    except (OSError, ValueError) as error:
        raise click.BadParameter(cannot_write(path, error), context, parameter) from error
    except ImportError as error:
        raise click.ClickException(str(error)) from error


plot = click.option(
    "--plot", metavar="FILE", callback=_plot_file, help="Draw a picture too, as FILE.png, FILE.svg or FILE.pdf."
)
