# SPDX-License-Identifier: Apache-2.0
"""The files that are wrong: the kit's own, an author's, and those that a format does not tell from sound ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from weight_readers import HeaderError
from weight_readers_testkit import Fault, ReaderContractTests, Stored

MINE = Fault(HeaderError, lambda path: path.write_bytes(b"x"))


class Kit(ReaderContractTests):
    reader_name = "acme"
    dtypes = ("float32",)
    file_format = "acme"
    given: Mapping[str, Fault | str] = {}

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        path.write_bytes(b"sound")

    def faults(self) -> Mapping[str, Fault | str]:
        return self.given


def kit(given: Mapping[str, Fault | str]) -> ReaderContractTests:
    return type("Given", (Kit,), {"given": given})()


def test_an_authors_fault_comes_on_top_or_replaces_one_of_the_kits_own() -> None:
    own = Kit().corpus()
    corpus = kit({"no list": MINE, "empty": MINE}).corpus()
    assert (corpus["no list"], corpus["empty"]) == (MINE, MINE)
    assert corpus.keys() - own.keys() == {"no list"}


def test_a_fault_that_is_switched_off_skips_its_test_with_the_reason(tmp_path: Path) -> None:
    off = kit({"seven bytes": "a file of any length is sound", "cut in half": "so it is"})
    with pytest.raises(pytest.skip.Exception, match="a file of any length is sound"):
        off._broken(tmp_path, off.corpus()["seven bytes"])
    with pytest.raises(pytest.skip.Exception, match="so it is"):
        off.test_a_filter_does_not_hide_a_broken_file(tmp_path)


def test_switching_off_what_the_kit_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"switches off \['seven byte'\]: the kit's own are .*seven bytes"):
        kit({"seven byte": "a misspelling"}).corpus()
