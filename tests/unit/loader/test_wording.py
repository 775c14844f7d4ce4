# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from weight_readers_loader.wording import counted, passing, size, some, visible


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (15_360, "15.0 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (3 << 29, "1.50 GiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_sizes_have_three_figures_and_a_binary_unit(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_counts_agree_with_their_noun() -> None:
    assert [counted(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_long_lists_are_cut_and_say_by_how_much() -> None:
    assert some([]) == "nothing"
    assert some(["a", "b"]) == "a, b"
    assert some(["a", "b", "c"], 2) == "a, b and 1 more"


def test_what_a_terminal_would_act_upon_is_shown() -> None:
    assert visible("plain é 漢") == "plain é 漢"
    assert visible("a\x1b[31mb\rc\nd\udcff") == "a\\x1b[31mb\\rc\\nd\\udcff"


def test_an_argument_is_said_in_both_ways_of_giving_it() -> None:
    assert passing("use_format", "pt") == "Pass use_format='pt' (--format pt)"
    assert passing("subfolder", "a b") == "Pass subfolder='a b' (--subfolder 'a b')"
