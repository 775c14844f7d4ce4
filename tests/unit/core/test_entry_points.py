# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest
from support.plugins import Site

from weight_readers._entry_points import Scan, scan


def scanned(*sites: Site) -> Scan:
    return scan(importlib_metadata.distributions(path=[str(site.folder) for site in sites]))


def test_an_entry_point_is_found_with_its_distribution_version_and_place(site: Site) -> None:
    where = site.distribution("acme-dist", {"acme": "acme_plugin:PLUGIN"}, version="2.5")
    (source,) = scanned(site).sources["acme"]
    assert ("acme-dist", "2.5", str(where)) == (source.distribution, source.version, source.location)
    assert source.module == "acme_plugin"
    assert f"acme-dist 2.5 at {where}" == str(source)


def test_other_groups_and_packages_without_entry_points_are_passed_over(site: Site) -> None:
    site.distribution("tool", "[console_scripts]\nweight_readers = tool:main\n")
    site.distribution("bare", "")
    assert Scan() == scanned(site)


def test_nothing_is_imported_by_a_scan(site: Site) -> None:
    site.plugin("acme", "raise SystemExit('imported')")
    assert list(scanned(site).sources) == ["acme"]


@pytest.mark.parametrize("metadata", [None, "", "Version: 1.0\n", "garbage\x00"])
def test_a_nameless_dist_info_of_an_unrelated_package_harms_nobody(site: Site, metadata: str | None) -> None:
    nameless = site.distribution("broken", "[console_scripts]\nx = y:z\n")
    (nameless / "METADATA").unlink()
    if metadata is not None:
        (nameless / "METADATA").write_text(metadata)
    site.plugin("acme")
    found = scanned(site)
    assert (list(found.sources), found.unreadable) == (["acme"], ())


def test_a_nameless_dist_info_of_a_plugin_counts_under_its_place(site: Site) -> None:
    where = site.plugin("acme")
    (where / "METADATA").unlink()
    (source,) = scanned(site).sources["acme"]
    assert (str(where), None) == (source.distribution, source.version)


@pytest.mark.parametrize("text", ["[console_scripts\nfoo", "foo\nbar = baz", "[x]\nno equals sign\n", "= = ="])
def test_malformed_entry_points_of_an_unrelated_package_harm_nobody(site: Site, text: str) -> None:
    site.distribution("unrelated", text)
    site.plugin("acme")
    found = scanned(site)
    assert (list(found.sources), found.unreadable) == (["acme"], ())


def test_malformed_entry_points_of_a_plugin_are_listed_and_hide_nobody(site: Site) -> None:
    where = site.distribution("bad-plugin", "[weight_readers]\nno equals sign\n")
    site.plugin("acme")
    found = scanned(site)
    assert list(found.sources) == ["acme"]
    assert [str(where)] == [location for location, _ in found.unreadable]


def test_entry_points_that_are_no_text_are_listed_and_hide_nobody(site: Site) -> None:
    where = site.distribution("binary", "")
    (where / "entry_points.txt").write_bytes(b"\xff\xfe[weight_readers]")
    site.plugin("acme")
    found = scanned(site)
    assert list(found.sources) == ["acme"]
    ((location, cause),) = found.unreadable
    assert str(where) == location
    assert cause.startswith("UnicodeDecodeError")


def test_a_stale_egg_info_does_not_hide_the_entry_points_of_the_healthy_plugin(site: Site, tmp_path: Path) -> None:
    stale = Site(tmp_path / "checkout")
    stale.distribution("acme-dist", "", version="0.1", suffix="egg-info")
    site.distribution("acme-dist", {"acme": "acme_plugin"})
    (source,) = scanned(stale, site).sources["acme"]
    assert source.version == "1.0"


def test_of_two_copies_the_dist_info_counts_and_not_the_stale_egg_info(site: Site, tmp_path: Path) -> None:
    stale = Site(tmp_path / "checkout")
    stale.distribution("acme-dist", {"acme": "moved_away"}, version="0.1", suffix="egg-info")
    site.distribution("acme-dist", {"acme": "acme_plugin"})
    found = scanned(stale, site)
    assert [source.module for source in found.sources["acme"]] == ["acme_plugin"]
    assert [source.version for source in found.shadowed] == ["0.1"]


def test_the_same_distribution_twice_is_no_collision_and_the_first_on_the_path_counts(
    site: Site, tmp_path: Path
) -> None:
    editable = Site(tmp_path / "editable")
    editable.distribution("Acme_Dist", {"acme": "acme_plugin"}, version="1.1")
    site.distribution("acme-dist", {"acme": "acme_plugin"}, version="1.0")
    found = scanned(editable, site)
    assert [source.version for source in found.sources["acme"]] == ["1.1"]
    assert [source.version for source in found.shadowed] == ["1.0"]


def test_two_distributions_of_one_name_are_both_kept_in_the_same_order_whatever_the_path(
    site: Site, tmp_path: Path
) -> None:
    other = Site(tmp_path / "other")
    site.distribution("zeta-dist", {"acme": "zeta"})
    other.distribution("alpha-dist", {"acme": "alpha"})
    for found in (scanned(site, other), scanned(other, site)):
        assert [source.distribution for source in found.sources["acme"]] == ["alpha-dist", "zeta-dist"]
        assert found.shadowed == ()


def test_a_finder_that_fails_ends_the_walk_and_hides_nobody_found_so_far(site: Site) -> None:
    site.distribution("acme-dist", {"acme": "acme_plugin"})

    def walk() -> Iterator[Any]:
        yield from importlib_metadata.distributions(path=[str(site.folder)])
        raise RuntimeError("a broken finder")

    found = scan(walk())
    assert list(found.sources) == ["acme"]
    assert found.unreadable == (("sys.meta_path", "RuntimeError: a broken finder"),)


def test_a_finder_that_panics_or_has_no_text_hides_nobody_found_so_far(site: Site) -> None:
    class Panic(BaseException):
        def __str__(self) -> str:
            raise RuntimeError

    class Odd:
        def read_text(self, name: str) -> str:
            raise Panic

        def __repr__(self) -> str:
            raise RuntimeError

    def walk() -> Iterator[Any]:
        yield Odd()
        yield from importlib_metadata.distributions(path=[str(site.folder)])
        raise Panic

    site.distribution("acme-dist", {"acme": "acme_plugin"})
    found = scan(walk())
    assert list(found.sources) == ["acme"]
    said = "Panic: <unprintable>"
    assert found.unreadable == (("<unprintable Odd>", said), ("sys.meta_path", said))


@pytest.mark.parametrize("value", ["acme.plugin", "acme.plugin:PLUGIN", "acme.plugin:A.b", "acme.plugin [extra]"])
def test_the_module_is_the_part_before_colon_and_extras(site: Site, value: str) -> None:
    site.distribution("acme-dist", {"acme": value})
    (source,) = scanned(site).sources["acme"]
    assert source.module == "acme.plugin"
