# SPDX-License-Identifier: Apache-2.0
"""The words of ``explain --what-if fs=nfs residency=0``. Light: what they mean is in `elsewhere`."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

OPTION = "--what-if"
_WORD = re.compile(r"[A-Za-z_-]+=.*", re.DOTALL)

what_if = click.option(
    OPTION,
    "what_if",
    multiple=True,
    metavar="NAME=VALUE...",
    help="As if on another machine: residency, fs, budget, cpus, ranks, device.",
)


class WhatIf(click.Command):
    """Takes several words after one ``--what-if``, up to the first that is not NAME=VALUE."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(arguments: Iterable[str]) -> list[str]:
    """``--what-if a=1 b=2`` as ``--what-if a=1 --what-if b=2``."""
    found: list[str] = []
    following = False
    for word in arguments:
        is_word = _WORD.fullmatch(word) is not None
        if following and is_word and found[-1] != OPTION:
            found.append(OPTION)
        following = word == OPTION or (following and is_word)
        found.append(word)
    return found
