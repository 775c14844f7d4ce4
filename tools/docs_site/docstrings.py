# SPDX-License-Identifier: Apache-2.0
"""Docstrings as Markdown: lines of the form ``name: what it is`` become a list, which prose would run together."""

from __future__ import annotations

import re
from typing import Any

import griffe

_PARAMETER = re.compile(r"^(?P<names>\w+(?:, \w+)*): (?=\S)", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n\s*\n")


class ParameterLists(griffe.Extension):
    """A paragraph that begins with a parameter is a list of parameters."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(docstring: str) -> str:
    return "\n\n".join(_listed(paragraph) for paragraph in _PARAGRAPH.split(docstring))


def _listed(paragraph: str) -> str:
    if _PARAMETER.match(paragraph) is None:
        return paragraph
    return _PARAMETER.sub(lambda match: f"- `{match['names']}`: ", paragraph)
