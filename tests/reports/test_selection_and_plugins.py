# SPDX-License-Identifier: Apache-2.0
"""Reports of users about selection, plugins and configuration, each with its number and its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.plugins import Plugin, Site, installed, registry

from weight_readers import (
    Declined,
    DuplicateReaderError,
    Environment,
    Feature,
    Lifetime,
    NoSuitableReaderError,
    PluginLoadError,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    Request,
    hookimpl,
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    yield site
    site.forget_modules()


# --- B071: an explicit choice of a format was replaced by another format ------------------------------------------
# The half about files (a folder with only .bin) is the loader's; core must never answer with another format's reader.

PICKLES = Plugin("pt", formats={"pt"}, fallback=True)


def test_b071_a_reader_of_another_format_never_stands_in() -> None:
    with pytest.raises(NoSuitableReaderError, match="pt: reads pt, not safetensors"):
        registry(PICKLES).select(Request(format="safetensors"))
    with pytest.raises(ReaderUnavailableError):
        registry(PICKLES).select(Request(format="safetensors"), requested="safetensors")
    with pytest.raises(ReaderUnavailableError):
        registry(PICKLES).select(requested="safetensors")


def test_b071_the_policy_may_choose_among_formats_and_says_whom() -> None:
    reader = registry(PICKLES, Plugin("safe")).select(Request())
    assert reader.selection is not None
    assert reader.selection.explain().splitlines()[0] == "chosen: safe (the others are fallbacks)"


# --- B073: a plugin whose registration raised was dropped with a line at debug level --------------------------------


@pytest.mark.parametrize(
    ("source", "value", "cause"),
    [
        ("raise ValueError('bad build')", "acme_plugin", "ValueError: bad build"),
        ("raise SystemExit(1)", "acme_plugin", "SystemExit: 1"),
        ("raise ImportError('libacme.so.3')", "acme_plugin", "ImportError: libacme.so.3"),
        ("VALUE = 1", "acme_plugin:PLUGIN", "AttributeError: module 'acme_plugin' has no attribute 'PLUGIN'"),
    ],
)
def test_b073_a_plugin_that_raises_is_listed_with_its_traceback_and_an_error_when_named(
    site: Site, source: str, value: str, cause: str
) -> None:
    site.module("acme_plugin", source)
    site.distribution("acme-dist", {"acme": value})
    site.plugin("healthy")
    given = installed(site)
    listed = given.report()["broken"]["acme"]
    assert cause in listed["cause"]
    assert listed["traceback"].startswith("Traceback")
    with pytest.raises(PluginLoadError, match=r"reader 'acme' of acme-dist 1\.0 is broken"):
        given.describe_reader("acme")
    with pytest.raises(PluginLoadError):
        given.select(requested="acme", strict=True)
    with pytest.raises(PluginLoadError):
        given.select(requested="acme")  # no fallback is installed
    assert given.select().info.name == "healthy"


# --- B075: one broken entry point made the whole command unusable ----------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "its own module 'acme_plugin' is not there"),
        ("def oops(:\n", "SyntaxError"),
        ("import ctypes\nctypes.CDLL('libacme-not-there.so.1')", "OSError: libacme-not-there.so.1"),
    ],
    ids=["missing module", "syntax error", "missing C library"],
)
def test_b075_listing_works_beside_a_broken_entry_point(site: Site, source: str | None, said: str) -> None:
    if source is not None:
        site.module("acme_plugin", source)
    site.distribution("acme-dist", {"acme": "acme_plugin"})
    site.plugin("healthy")
    given = installed(site)
    assert given.available_reader_names() == ["healthy"]
    assert said in given.report()["broken"]["acme"]["cause"]


# --- B076: two plugins with one name, the last one on the path won ----------------------------------------------------


@pytest.mark.parametrize("name", ["mmap", "safetensors"], ids=["a name of their own", "the name of a built-in"])
@pytest.mark.parametrize("swapped", [False, True])
def test_b076_two_distributions_of_one_name_collide_the_same_way_in_any_order(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, swapped: bool
) -> None:
    other = Site(tmp_path / "other")
    monkeypatch.syspath_prepend(str(other.folder))
    site.plugin(name, distribution="weight-readers-mmap")
    other.plugin(name, distribution="someone-elses", module="someone_elses")
    site.plugin("bystander")
    given = installed(other, site) if swapped else installed(site, other)
    with pytest.raises(DuplicateReaderError) as caught:
        given.select(requested=name)
    assert [owner.split()[0] for owner in caught.value.distributions] == ["someone-elses", "weight-readers-mmap"]
    assert caught.value.fix == "Uninstall all but one of them: pip uninstall someone-elses"
    assert list(given.report()["duplicates"]) == [name]
    assert given.available_reader_names() == ["bystander"]


def test_b076_the_same_package_twice_on_the_path_is_no_collision(site: Site, tmp_path: Path) -> None:
    editable = Site(tmp_path / "editable")
    editable.distribution("acme-dist", {"acme": "acme_plugin"})
    site.plugin("acme")
    for given in (installed(editable, site), installed(site, editable)):
        assert given.available_reader_names() == ["acme"]
        assert given.report()["duplicates"] == {}


def test_b076_the_same_object_twice_is_no_collision() -> None:
    plugin = Plugin("acme")
    registry(plugin).available_reader_names()
    assert registry(plugin).available_reader_names() == ["acme"]


# --- B078: an option was dropped, or an impossible pair was found late ------------------------------------------------


def test_b078_an_option_of_one_reader_is_never_dropped_by_another() -> None:
    given = registry(Plugin("a", options={"num_threads"}), Plugin("b", options={"readonly"}, fallback=True))
    request = Request(options={"num_threads": 4})
    reader: Any = given.select(request)
    assert (reader.info.name, reader.options) == ("a", {"num_threads": 4})
    with pytest.raises(ReaderUnavailableError, match="reader 'b' cannot be used here: has no option num_threads"):
        given.select(request, requested="b", strict=True)
    with pytest.raises(ReaderUnavailableError, match="has no option num_threads: its options are readonly"):
        given.select(request, requested="b")


def test_b078_options_that_no_reader_has_together_are_refused_with_each_readers_own() -> None:
    given = registry(Plugin("a", options={"num_threads"}), Plugin("b", options={"readonly"}))
    with pytest.raises(NoSuitableReaderError) as caught:
        given.select(Request(options={"num_threads": 4, "readonly": True}))
    assert "a: has no option readonly: its options are num_threads" in caught.value.what
    assert "b: has no option num_threads: its options are readonly" in caught.value.what


def test_b078_mapping_and_direct_io_are_refused_when_the_request_is_made() -> None:
    with pytest.raises(ValueError, match="file_mapping and direct_io, which exclude each other"):
        Request(needs={Feature.FILE_MAPPING, Feature.DIRECT_IO})


# --- B081: an ImportError deep inside a plugin was told as "loader not found" -----------------------------------------


def test_b081_a_plugin_that_misses_something_names_what_it_misses_with_the_chain(site: Site) -> None:
    site.module("acme_deep", "import acme_backend\n")
    site.plugin("acme", "import acme_deep\n")
    with pytest.raises(PluginLoadError) as caught:
        installed(site).describe_reader("acme")
    assert "it imports 'acme_backend', which is not installed" in caught.value.what
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.__cause__.name == "acme_backend"
    assert "acme_deep.py" in installed(site).report()["broken"]["acme"]["traceback"]


def test_b081_a_plugin_whose_own_module_is_missing_says_that(site: Site) -> None:
    site.distribution("acme-dist", {"acme": "acme_plugin"})
    with pytest.raises(PluginLoadError, match="its own module 'acme_plugin' is not there"):
        installed(site).describe_reader("acme")


# --- B083: which reader was used, and why, could not be told ----------------------------------------------------------

MAPPED = Plugin(
    "safetensors",
    features={Feature.KEY_FILTER, Feature.FILE_MAPPING, Feature.SLICES},
    lifetime=Lifetime.MAPPED,
    dtypes={"float32", "bfloat16"},
    fallback=True,
)
THREADS = Plugin("threaded", features={Feature.KEY_FILTER, Feature.CONCURRENT, Feature.SLICES, Feature.READ_INTO})
STREAM = Plugin("runai_streamer", schemes={"file", "s3"}, features={Feature.CONCURRENT}, dtypes={"float32"})

GOLDEN = {
    "local": (
        Request(format="safetensors", schemes={"file"}, kept_on_host=True),
        Environment(cpus=8),
        """\
chosen: safetensors (tensors stay in host memory: maps the file: no copy, and the kernel can drop pages)
  machine: 8 CPUs
  safetensors: accepted: tensors stay in host memory: maps the file: no copy, and the kernel can drop pages
  threaded: accepted: tensors stay in host memory: would copy every byte into anonymous memory
  runai_streamer: accepted: tensors stay in host memory: would copy every byte into anonymous memory""",
    ),
    "s3": (
        Request(format="safetensors", schemes={"s3"}),
        Environment(),
        """\
chosen: runai_streamer (the only reader that fits)
  runai_streamer: accepted: fits the request
  threaded: rejected [scheme]: cannot read s3: its schemes are file
  safetensors: rejected [scheme]: cannot read s3: its schemes are file""",
    ),
    "F4 file": (
        Request(format="safetensors", dtypes={"float4_e2m1fn_x2"}),
        Environment(),
        """\
chosen: threaded (the only reader that fits)
  threaded: accepted: fits the request
  safetensors: rejected [dtype]: cannot read dtype float4_e2m1fn_x2
  runai_streamer: rejected [dtype]: cannot read dtype float4_e2m1fn_x2""",
    ),
    "network mount": (
        Request(format="safetensors"),
        Environment(filesystem="nfs"),
        """\
chosen: threaded (made for local files alone, the others for other places too)
  machine: nfs
  threaded: accepted: network file system (nfs): reads in large requests
  runai_streamer: accepted: network file system (nfs): reads in large requests
  safetensors: accepted: network file system (nfs): a mapping would fault page by page over the network""",
    ),
    "tensor parallel": (
        Request(format="safetensors", needs={Feature.SLICES}, into_targets=True, device="cuda:1"),
        Environment(cpus=8),
        """\
chosen: threaded (into existing tensors: reads straight into them)
  machine: 8 CPUs
  threaded: accepted: device placement: reads to the host and copies then; into existing tensors: reads straight \
into them; several CPUs (8): reads with several threads
  safetensors: accepted: device placement: reads to the host and copies then; into existing tensors: reads first \
and copies then; several CPUs (8): reads with one thread
  runai_streamer: rejected [feature]: lacks slices""",
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_b083_explain_says_who_is_used_and_why_for_each_candidate(case: str) -> None:
    request, environment, golden = GOLDEN[case]
    given = registry(MAPPED, THREADS, STREAM)
    assert given.explain(request, environment=environment).explain() == golden
    reader = given.select(request, environment=environment)
    assert str(reader.selection) == golden


def test_b083_a_fallback_and_a_veto_are_said_too() -> None:
    class Vetoing(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request) -> Declined | None:
            return Declined(reason="cannot read under fsdp", fix="Use tensor parallelism") if request.engine else None

    given = registry(Vetoing("threaded"), MAPPED)
    with pytest.warns(ReaderFallbackWarning, match="cannot read under fsdp. Use tensor parallelism"):
        reader = given.select(Request(engine={"fsdp": True}), requested="threaded")
    assert (
        str(reader.selection)
        == """\
chosen: safetensors (the fallback: 'threaded' was requested and is not usable)
  safetensors: accepted: fits the request
  threaded: rejected [vetoed]: cannot read under fsdp. Use tensor parallelism"""
    )
