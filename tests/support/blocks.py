# SPDX-License-Identifier: Apache-2.0
"""Code blocks of Markdown files: what they hold, what they print when they are run, and which figures may differ."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FENCED = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^\$ (?P<command>[^\n]+)\n(?P<printed>.*?)(?=^\$ |\Z)", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    kind: str
    text: str


class Printed(NamedTuple):
    """What the page shows below a piece of code, and what that code printed."""

    code: str
    shown: str
    printed: str


def blocks(page: Path) -> list[Block]:
    return [Block(match["kind"], match["text"]) for match in FENCED.finditer(page.read_text(encoding="utf-8"))]


def normalised(text: str) -> str:
    """Figures, units and machines change from run to run; other words, names and order do not."""
    elsewhere = re.sub(r"^  machine: .*$", "  machine: #", text, flags=re.MULTILINE)
    return re.sub(r"\d+(\.\d+)?( [KMG]?i?B)?", "#", elsewhere).strip()


def sessions(block: Block) -> list[tuple[str, str]]:
    """Each command of a console block, and what it is shown to print."""
    return [(match["command"], match["printed"]) for match in SESSION.finditer(block.text)]


def run(page: list[Block], command: Callable[[list[str]], str]) -> Iterator[Printed]:
    """Run the Python and the commands of a page from top to bottom, in this process and in the current folder.

    ``command`` runs the words of a command line and gives what it printed.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    for block, below in pairwise([*page, Block("", "")]):
        if block.kind == "python":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(block.text, "a block of the page", "exec"), names)
            yield Printed(block.text, below.text if below.kind == "text" else "", said.getvalue())
        elif block.kind == "console":
            for line, shown in sessions(block):
                yield Printed(line, shown, command(shlex.split(line)))
