# SPDX-License-Identifier: Apache-2.0
"""What plugins declare of their formats, and what names and first bytes are by all declarations together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.plugins import PLUGIN, Plugin, Site, registry

import weight_readers
from weight_readers import (
    ConfigError,
    FileFormat,
    FormatConflictError,
    FormatTable,
    Signature,
)
from weight_readers._catalogue import KNOWN_READERS
from weight_readers.format_table import Claim
from weight_readers.formats import KNOWN_FORMATS

NPZ = FileFormat(name="npz", suffixes=[".npz"], signatures=[Signature(data=b"PK\x03\x04", contains=b".npy")])
NPZ_HEAD = b"PK\x03\x04" + bytes(26) + b"a.npy"
TORCH_HEAD = b"PK\x03\x04" + bytes(26) + b"archive/data.pkl"


def table(*formats: FileFormat) -> FormatTable:
    return FormatTable(Claim(format=each, reader=f"r{i}", origin=f"d{i} 1.0") for i, each in enumerate(formats))


def acme(**fields: Any) -> FileFormat:
    return FileFormat(**({"name": "acme", "suffixes": [".acme"]} | fields))


def plugin(name: str, *formats: FileFormat) -> Plugin:
    return Plugin(name, formats={each.name for each in formats}, file_formats=formats)


@pytest.fixture
def _fresh_default(site: Site) -> Iterator[None]:
    yield
    site.forget_modules()
    weight_readers.refresh()


class TestADeclaration:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"name": "Acme"}, r"FileFormat.name must match \[a-z0-9_\]\+"),
            ({"suffixes": []}, "FileFormat 'acme' has no suffix"),
            ({"suffixes": ["acme"]}, "'acme' is no suffix"),
            ({"suffixes": [".ACME"]}, "'.ACME' is no suffix"),
            ({"suffixes": [".tar.gz"]}, "'.tar.gz' is no suffix"),
            ({"suffixes": ".acme"}, "must be a collection"),
            ({"signatures": [b"ACME"]}, "FileFormat.signatures must be a Signature"),
            ({"header_first": 1}, "FileFormat.header_first must be True or False"),
        ],
    )
    def test_that_cannot_be_meant_is_refused(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises((TypeError, ValueError), match=words):
            acme(**fields)

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"data": b""}, "every file begins with"),
            ({"data": b"ACME", "offset": 509}, "within the first 512 bytes"),
            ({"data": b"ACME", "offset": -1}, "Signature.offset must be at least 0"),
            ({"data": "ACME"}, "Signature.data must be bytes, or hexadecimal text"),
        ],
    )
    def test_of_a_signature_that_tells_nothing_is_refused(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises((TypeError, ValueError), match=words):
            Signature(**fields)

    @pytest.mark.parametrize(
        ("formats", "file_formats", "words"),
        [
            ({"acme"}, [NPZ], r"file_formats has \['npz'\], which ReaderInfo.formats lacks"),
            ({"acme"}, [acme(), acme()], "has a format twice"),
            ({"pt"}, [acme(name="pt")], r"has \['pt'\], which core declares"),
            ({"acme"}, [acme(signatures=[Signature(data=b"{")])], "a signature of fewer than 4 bytes"),
        ],
    )
    def test_that_does_not_fit_its_reader_is_refused(
        self, formats: set[str], file_formats: list[FileFormat], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            Plugin(formats=formats, file_formats=file_formats)

    def test_is_text_in_json(self) -> None:
        assert json.loads(json.dumps(NPZ.to_json()))["signatures"] == [
            {"data": "504b0304", "offset": 0, "contains": "2e6e7079"}
        ]

    def test_of_this_project_belongs_to_a_reader_that_core_knows(self) -> None:
        read = frozenset().union(*(known.formats for known in KNOWN_READERS.values()))
        assert {each.name for each in KNOWN_FORMATS} == read


class TestATable:
    def test_has_the_formats_of_this_project_in_order_and_those_of_others_by_name(self) -> None:
        assert table(NPZ, acme()).names == ("safetensors", "gguf", "pt", "acme", "npz")

    def test_knows_a_declared_format_by_suffix_and_by_content(self) -> None:
        formats = table(NPZ)
        assert formats.by_suffix("a/B.NPZ") == formats.by_content(NPZ_HEAD) == ("npz",)

    def test_takes_content_for_the_format_with_the_longest_signature(self) -> None:
        zips = table(NPZ, acme(signatures=[Signature(data=b"PK\x03\x04")]))
        assert zips.by_content(NPZ_HEAD) == ("npz",)
        assert zips.by_content(TORCH_HEAD) == ("pt",)
        assert zips.by_content(b"PK\x03\x04" + bytes(60)) == ("acme",)

    @pytest.mark.parametrize("head", [b"", b"PK", b"hello", bytes(64)])
    def test_takes_content_that_nobody_declares_for_nothing(self, head: bytes) -> None:
        assert table(NPZ).by_content(head) == ()

    def test_gives_formats_of_others_one_place_after_those_of_this_project(self) -> None:
        formats = table(NPZ, acme())
        assert [formats.rank(name) for name in formats.names] == [0, 1, 2, 3, 3]

    def test_takes_two_equal_declarations_for_one(self) -> None:
        assert table(NPZ, NPZ).require("npz") == NPZ


class TestAConflict:
    def test_about_a_suffix_is_an_error_for_that_suffix_and_names_both(self) -> None:
        formats = table(acme(suffixes=[".bin", ".acme"]))
        assert formats.named("x.bin") == "pt or acme"
        with pytest.raises(FormatConflictError, match=r"suffix \.bin belongs to 2 formats: pt .* and acme") as caught:
            formats.require("pt or acme")
        assert caught.value.claims == ("pt (reader 'pt', weight-readers)", "acme (reader 'r0', d0 1.0)")
        assert "--format acme" in str(caught.value.fix)
        assert formats.require("acme").name == "acme"
        assert formats.named("x.pt") == "pt"

    def test_about_a_suffix_is_settled_by_what_was_asked_for(self) -> None:
        formats = table(acme(suffixes=[".bin"]))
        assert [formats.named("x.bin", asked=form) for form in ("pt", "acme", "gguf")] == ["pt", "acme", "pt or acme"]

    def test_about_a_format_is_an_error_for_that_format_and_names_both(self) -> None:
        formats = table(acme(), acme(suffixes=[".other"]))
        with pytest.raises(FormatConflictError, match="'acme' is declared in 2 ways") as caught:
            formats.require("acme")
        assert "d0 1.0" in str(caught.value)
        assert "d1 1.0" in str(caught.value)
        assert "WEIGHT_READERS_DISABLE=r1" in str(caught.value.fix)
        assert formats.require("pt").name == "pt"

    def test_does_not_depend_on_the_order_of_installation(self) -> None:
        one, other = (Claim(format=acme(suffixes=[s]), reader=s[1:], origin=f"{s[1:]} 1.0") for s in (".a", ".b"))
        said = [str(FormatTable(claims).conflicts()[0]) for claims in ([one, other], [other, one])]
        assert said[0] == said[1]

    def test_is_none_where_two_list_the_same_in_another_order(self) -> None:
        first, second = Signature(data=b"ACME"), Signature(data=b"acme", offset=4)
        one = acme(suffixes=[".a", ".b"], signatures=[first, second])
        other = acme(suffixes=[".b", ".a"], signatures=[second, first])
        assert table(one, other).conflicts() == []
        assert table(one, other).require("acme").name == "acme"
        assert table(one, acme(suffixes=[".a", ".b"], signatures=[first])).conflicts() != []

    def test_does_not_hide_that_a_format_is_not_known_at_all(self) -> None:
        for name in ("acme", "pt or acme", ""):
            with pytest.raises(ConfigError, match="no installed reader declares the format"):
                table(NPZ).require(name)

    def test_is_listed_before_anybody_meets_it(self) -> None:
        said = [str(error) for error in table(NPZ, acme(suffixes=[".npz"])).conflicts()]
        assert len(said) == 1
        assert "the suffix .npz belongs to 2 formats" in said[0]

    def test_is_in_the_report_of_the_registry(self) -> None:
        report = registry(plugin("one", acme()), plugin("two", acme(suffixes=[".other"]))).report()
        assert "'acme' is declared in 2 ways" in report["format_conflicts"][0]
        assert report["available"] == ["one", "two"]


class TestARegistry:
    def test_knows_the_formats_of_its_plugins(self) -> None:
        formats = registry(plugin("one", acme()), plugin("two", NPZ)).file_formats()
        assert formats.names == ("safetensors", "gguf", "pt", "acme", "npz")

    def test_does_not_know_the_formats_of_a_disabled_plugin(self) -> None:
        found = registry(plugin("one", acme()), environ={"WEIGHT_READERS_DISABLE": "one"}).file_formats()
        assert "acme" not in found.names

    @pytest.mark.usefixtures("_fresh_default")
    def test_asked_by_a_plugin_that_is_being_imported_answers_without_it_and_with_it_afterwards(
        self, site: Site
    ) -> None:
        declared = "formats={'acme'}, file_formats=[weight_readers.FileFormat(name='acme', suffixes=['.acme'])]"
        source = PLUGIN.format(name="acme").replace('formats={"safetensors"}', declared)
        site.plugin("acme", "import weight_readers\nSEEN = weight_readers.file_formats().names\n" + source)
        weight_readers.refresh()
        assert "acme" in weight_readers.file_formats().names
        assert "acme" not in sys.modules["acme_plugin"].SEEN

    def test_answers_out_of_one_table_until_it_is_refreshed(self) -> None:
        mine = registry(plugin("one", acme()))
        first = mine.file_formats()
        assert mine.file_formats() is first
        mine.refresh()
        assert mine.file_formats() is not first
