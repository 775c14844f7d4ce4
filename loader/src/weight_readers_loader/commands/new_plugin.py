# SPDX-License-Identifier: Apache-2.0
"""``new-plugin``: the files of a reader of one's own, complete and tested, to be changed from there."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

import click

import weight_readers
from weight_readers import ConfigError, UnknownReaderError, WeightReadersError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")
_FILES = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    "src/$package/__init__.py": "init.py.in",
    "src/$package/plugin.py": "plugin.py.in",
    "src/$package/header.py": "header.py.in",
    "src/$package/reader.py": "reader.py.in",
    "tests/test_contract.py": "test_contract.py.in",
}


def write(name: str, folder: str | None = None) -> list[Path]:
    """Write the plugin of a reader ``name`` below ``folder`` (default ``<name>-reader``); returns what was written.

    Raises ConfigError for a name that no reader can have or one has, and WeightReadersError where the folder exists.
    """
    check(name)
    words = _words(name)
    target = Path(folder or words["distribution"])
    contents = {target / _filled(path, words): _filled(_template(source), words) for path, source in _FILES.items()}
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise WeightReadersError(
            f"nothing was written: cannot make the folder {target} ({error.strerror})",
            fix="Give a folder that does not exist yet: --folder NAME",
        ) from error
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(contents)


def check(name: str) -> None:
    """Raise ConfigError for a name that cannot be that of a new reader."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"a reader cannot be called {name!r}",
            fix="Use lower-case letters, digits and _, 30 at most, beginning with a letter",
        )
    if _is_taken(name):
        raise ConfigError(f"there is a reader called {name!r} already", fix="Choose another name")
    formats = weight_readers.file_formats()
    if owners := (name,) if name in formats.names else formats.by_suffix(f"x.{name}"):
        raise ConfigError(f"files called .{name} are of the format {owners[0]!r} already", fix="Choose another name")


def _is_taken(name: str) -> bool:
    """Whether a reader of that name is installed, usable or not, or is one of this project."""
    try:
        weight_readers.describe_reader(name)
    except UnknownReaderError:
        return False
    except WeightReadersError:
        return True
    return True


def lines(written: list[Path]) -> list[str]:
    """What was written, and what to do next."""
    folder = click.format_filename(written[0].parent)
    return [
        *(f"wrote {click.format_filename(path)}" for path in written),
        f'next: pip install -e "{folder}[test]" && pytest {folder}',
    ]


def _words(name: str) -> dict[str, str]:
    return {
        "name": name,
        "package": f"{name}_reader",
        "distribution": f"{name.strip('_').replace('_', '-')}-reader",
        "title": "".join(part.capitalize() for part in name.split("_")),
    }


def _filled(text: str, words: dict[str, str]) -> str:
    return Template(text).substitute(words)


def _template(name: str) -> str:
    return (files("weight_readers_loader") / "template" / name).read_text(encoding="utf-8")
