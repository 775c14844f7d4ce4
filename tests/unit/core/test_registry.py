# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import importlib_metadata
import pytest
from support.plugins import PLUGIN, Plugin, Site, info, installed, registry

from weight_readers import (
    DuplicateReaderError,
    Environment,
    Feature,
    ReaderInfo,
    ReaderUnavailableError,
    Registry,
    Requirement,
    UnknownReaderError,
    hookimpl,
)

CHILD_SECONDS = 30
"""A deadlock is seen as a child that does not end; a healthy one takes well under a second."""


def run_child(site: Site, source: str) -> Any:
    """Run ``source`` with ``registry`` over the site in a child process; the JSON that it prints."""
    head = f"""
        import sys, json, threading, importlib_metadata, weight_readers
        sys.path.insert(0, {str(site.folder)!r})
        registry = weight_readers.Registry(
            distributions=lambda: importlib_metadata.distributions(path=[{str(site.folder)!r}]), environ={{}})
        sys.modules["the_registry"] = type(sys)("the_registry")
        sys.modules["the_registry"].registry = registry
        def together(*calls):
            answers = [None] * len(calls)
            def run(place, call):
                try:
                    answers[place] = call()
                except BaseException as error:
                    answers[place] = repr(error)
            threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return answers
    """
    script = dedent(head) + dedent(source)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=CHILD_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- scan at first use -------------------------------------------------------------------------------------------


def test_nothing_is_scanned_before_the_first_question_and_once_after_it(site: Site) -> None:
    walks: list[int] = []

    def distributions() -> Any:
        walks.append(1)
        return importlib_metadata.distributions(path=[str(site.folder)])

    given = Registry(distributions=distributions, environ={})
    assert walks == []
    given.available_reader_names()
    given.report()
    given.explain()
    assert walks == [1]


def test_refresh_sees_an_added_and_a_removed_distribution(site: Site) -> None:
    site.plugin("first")
    given = installed(site)
    assert given.available_reader_names() == ["first"]
    second = site.plugin("second")
    assert given.available_reader_names() == ["first"]
    given.refresh()
    assert given.available_reader_names() == ["first", "second"]
    for file in second.iterdir():
        file.unlink()
    second.rmdir()
    given.refresh()
    assert given.available_reader_names() == ["first"]


def test_the_default_registry_sees_what_appears_on_the_path(site: Site) -> None:
    given = Registry(environ={})
    before = given.available_reader_names()
    site.plugin("appeared")
    given.refresh()
    assert given.available_reader_names() == sorted([*before, "appeared"])


def test_a_distribution_may_bring_several_readers(site: Site) -> None:
    site.module("one_plugin", PLUGIN.format(name="one"))
    site.module("two_plugin", PLUGIN.format(name="two"))
    site.distribution("both", {"one": "one_plugin", "two": "two_plugin"})
    assert installed(site).available_reader_names() == ["one", "two"]


def test_a_plugin_found_by_a_fixed_list_of_distributions(site: Site) -> None:
    folder = site.plugin("acme")
    given = Registry(distributions=[importlib_metadata.Distribution.at(folder)], environ={})
    assert given.available_reader_names() == ["acme"]
    given.refresh()
    assert given.available_reader_names() == ["acme"]


# --- two distributions, one name ---------------------------------------------------------------------------------


def two_claimants(site: Site) -> None:
    site.plugin("acme", distribution="acme-one")
    site.distribution("acme-two", {"acme": "acme_plugin"})
    site.plugin("healthy")


def test_a_name_of_two_distributions_is_an_error_on_use_and_others_are_unaffected(site: Site) -> None:
    two_claimants(site)
    given = installed(site)
    assert given.available_reader_names() == ["healthy"]
    for use in (given.describe_reader, lambda name: given.select(requested=name)):
        with pytest.raises(DuplicateReaderError) as caught:
            use("acme")
        assert caught.value.name == "acme"
        assert [owner.split()[0] for owner in caught.value.distributions] == ["acme-one", "acme-two"]
        assert caught.value.fix == "Uninstall all but one of them: pip uninstall acme-two"
    assert given.select().info.name == "healthy"


def test_a_name_of_two_distributions_is_listed(site: Site) -> None:
    two_claimants(site)
    given = installed(site)
    (owners,) = given.report()["duplicates"].values()
    assert [owner.split(" at ")[0] for owner in owners] == ["acme-one 1.0", "acme-two 1.0"]
    candidate = given.explain().candidate("acme")
    assert candidate is not None
    assert candidate.code == "duplicate"
    assert "acme-one 1.0" in candidate.reason


def test_neither_claimant_of_a_name_is_imported(site: Site) -> None:
    two_claimants(site)
    site.module("acme_plugin", "raise SystemExit('imported')")
    assert installed(site).report()["broken"] == {}


def test_the_order_of_the_path_does_not_change_the_verdict(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    site.plugin("acme", distribution="acme-one")
    other.distribution("acme-two", {"acme": "acme_plugin"})
    said = []
    for given in (installed(site, other), installed(other, site)):
        with pytest.raises(DuplicateReaderError) as caught:
            given.describe_reader("acme")
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_stranger_with_the_name_of_ours_ranks_as_a_stranger(site: Site) -> None:
    site.plugin("safetensors", distribution="acme-safetensors")
    site.plugin("threaded", distribution="weight-readers-threaded")
    selection = installed(site).explain()
    assert (selection.chosen, selection.reason) == ("threaded", "a reader of this project before equals of others")


def test_a_stranger_with_the_name_of_ours_is_the_one_to_uninstall(site: Site) -> None:
    site.distribution("weight-readers-mmap", {"safetensors": "ours"})
    site.distribution("a-stranger", {"safetensors": "theirs"})
    with pytest.raises(DuplicateReaderError, match="pip uninstall a-stranger"):
        installed(site).describe_reader("safetensors")


def test_an_explicit_plugin_with_the_name_of_an_installed_one_is_a_duplicate(site: Site) -> None:
    folder = site.plugin("acme")
    given = Registry(plugins={"acme": Plugin()}, distributions=[importlib_metadata.Distribution.at(folder)], environ={})
    with pytest.raises(DuplicateReaderError, match=r"acme-dist 1.0 at .* and Registry\(plugins=…\)"):
        given.describe_reader("acme")


def test_the_same_distribution_twice_on_the_path_is_no_collision(site: Site, tmp_path: Path) -> None:
    site.plugin("acme")
    copy = Site(tmp_path / "copy")
    copy.distribution("acme-dist", {"acme": "acme_plugin"})
    given = installed(copy, site)
    assert given.available_reader_names() == ["acme"]
    report = given.report()
    assert report["duplicates"] == {}
    assert len(report["shadowed"]) == 1


# --- names -------------------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_what_is_available_with_the_close_match() -> None:
    with pytest.raises(UnknownReaderError) as caught:
        registry(Plugin("acme")).describe_reader("acne")
    assert str(caught.value) == "unknown weight reader 'acne'; available: ['acme']. Did you mean 'acme'?"
    assert caught.value.available == ("acme",)


def test_an_unknown_name_that_nearly_names_a_reader_of_ours_says_how_to_install_it() -> None:
    with pytest.raises(UnknownReaderError) as caught:
        registry().describe_reader("safetensor")
    assert caught.value.fix == "Did you mean 'safetensors'? Install it: pip install \"weight-readers[mmap]\""


def test_the_name_of_an_extra_leads_to_its_reader() -> None:
    with pytest.raises(UnknownReaderError, match="Did you mean 'safetensors'"):
        registry(Plugin("acme")).describe_reader("mmap")


def test_an_unknown_name_with_nothing_installed_says_what_to_install() -> None:
    with pytest.raises(UnknownReaderError) as caught:
        registry().describe_reader("xyzzy")
    assert caught.value.fix == 'Install it: pip install "weight-readers[mmap]"'


def test_a_reader_of_ours_that_is_not_installed_is_known_and_unavailable() -> None:
    with pytest.raises(ReaderUnavailableError) as caught:
        registry().describe_reader("safetensors")
    assert (caught.value.name, caught.value.code) == ("safetensors", "absent")
    assert caught.value.fix == 'Install it: pip install "weight-readers[mmap]"'


# --- threads -----------------------------------------------------------------------------------------------------


def at_once(count: int, call: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(count)

    def wait_and_call(_: int) -> Any:
        barrier.wait(60)
        return call()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


def test_sixteen_threads_selecting_at_once_agree_and_hold_the_same_record(site: Site) -> None:
    for name in ("a", "b"):
        site.plugin(name)
    site.plugin("c", "import time\ntime.sleep(0.01)\nraise ValueError('x')\n")
    for _ in range(5):
        site.forget_modules()
        given = installed(site)
        readers = at_once(16, given.select)
        assert {reader.info.name for reader in readers} == {"a"}
        assert len({reader.selection.explain() for reader in readers}) == 1
        assert len({id(info) for info in at_once(16, partial(given.describe_reader, "a"))}) == 1


class Slow(Plugin):
    """Describes itself anew each time, slowly, so that all threads are inside at once."""

    @hookimpl
    def weight_readers_describe(self) -> ReaderInfo:
        time.sleep(0.05)
        return info("slow")


def test_of_threads_that_scan_at_once_the_first_to_publish_wins_for_all() -> None:
    def slowly() -> Any:
        time.sleep(0.05)
        return ()

    given = Registry(plugins={"slow": Slow()}, distributions=slowly, environ={})
    assert len({id(info) for info in at_once(16, partial(given.describe_reader, "slow"))}) == 1


def test_of_threads_that_load_one_plugin_the_first_to_publish_wins_for_all() -> None:
    given = registry(slow=Slow())
    infos = at_once(16, partial(given.describe_reader, "slow"))
    assert len({id(info) for info in infos}) == 1
    assert given.describe_reader("slow") is infos[0]


def test_a_plugin_that_calls_the_registry_while_two_threads_import_it_does_not_deadlock(site: Site) -> None:
    ask = "import the_registry, time\ntime.sleep(0.2)\nSEEN = the_registry.registry.available_reader_names()\n"
    site.plugin("asking", ask + PLUGIN.format(name="asking"))
    site.plugin("other")
    answers = run_child(
        site,
        """
        names = registry.available_reader_names
        answers = together(names, names)
        print(json.dumps([answers, sys.modules["asking_plugin"].SEEN, names(), registry.report()["broken"]]))
        """,
    )
    assert answers == [[["asking", "other"]] * 2, ["other"], ["asking", "other"], {}]


@pytest.mark.parametrize(
    "enter", ["registry.describe_reader({!r}).name", "__import__({!r} + '_plugin').INFO.name"], ids=["asked", "by hand"]
)
def test_two_plugins_that_ask_for_each_other_in_two_threads_do_not_deadlock_and_both_stay_healthy(
    site: Site, enter: str
) -> None:
    for name, wanted in (("left", "right"), ("right", "left")):
        ask = dedent(
            f"""
            import the_registry, time
            time.sleep(0.3)  # until the other thread is inside the other module
            SEEN = {wanted!r} in the_registry.registry.available_reader_names()
            """
        )
        site.plugin(name, ask + PLUGIN.format(name=name))
    left, right = enter.format("left"), enter.format("right")
    answers = run_child(
        site,
        f"""
        answers = together(lambda: {left}, lambda: {right})
        print(json.dumps([answers, registry.available_reader_names(), list(registry.report()["broken"])]))
        """,
    )
    assert answers == [["left", "right"], ["left", "right"], []]


def test_a_plugin_imported_by_hand_whose_import_asks_the_registry_is_healthy_afterwards(site: Site) -> None:
    ask = "import the_registry\nSEEN = the_registry.registry.available_reader_names()\n"
    site.plugin("asking", ask + PLUGIN.format(name="asking"))
    answers = run_child(
        site,
        """
        import asking_plugin
        print(json.dumps([asking_plugin.SEEN, registry.available_reader_names(), registry.report()["broken"]]))
        """,
    )
    assert answers == [[], ["asking"], {}]


def test_a_plugin_that_names_an_object_and_asks_while_imported_by_hand_is_healthy_afterwards(site: Site) -> None:
    ask = "import the_registry\nSEEN = the_registry.registry.available_reader_names()\n"
    tail = "\nimport sys\nPLUGIN = sys.modules[__name__]\n"
    site.module("asking_plugin", ask + PLUGIN.format(name="asking") + tail)
    site.distribution("asking-dist", {"asking": "asking_plugin:PLUGIN"})
    answers = run_child(
        site,
        """
        import asking_plugin
        print(json.dumps([asking_plugin.SEEN, registry.available_reader_names(), registry.report()["broken"]]))
        """,
    )
    assert answers == [[], ["asking"], {}]


def test_a_plugin_asking_for_itself_while_imported_is_told_that_it_is_being_imported(site: Site) -> None:
    ask = dedent(
        """
        import the_registry
        try:
            the_registry.registry.describe_reader("asking")
        except ImportError as error:
            SEEN = str(error)
        """
    )
    site.plugin("asking", ask + PLUGIN.format(name="asking"))
    answers = run_child(
        site,
        """
        registry.available_reader_names()
        print(json.dumps(sys.modules["asking_plugin"].SEEN))
        """,
    )
    assert answers == "reader 'asking' cannot be used: its plugin is still being imported"


def test_a_failure_that_comes_from_a_half_imported_plugin_is_not_believed(site: Site) -> None:
    ask = "import the_registry\nthe_registry.registry.available_reader_names()\nREADY = True\n"
    site.plugin("first", ask + PLUGIN.format(name="first"))
    site.plugin("second", "from first_plugin import READY\n" + PLUGIN.format(name="second"))
    assert run_child(site, "print(json.dumps(registry.available_reader_names()))") == ["first", "second"]


# --- report ------------------------------------------------------------------------------------------------------


def test_the_report_of_all_that_can_be_wrong_is_json(site: Site) -> None:
    two_claimants(site)
    site.plugin("bad", "raise ValueError('x')")
    site.plugin("off")
    (site.distribution("torn", "") / "entry_points.txt").write_text("[weight_readers]\ntorn\n")
    report = installed(site, environ={"WEIGHT_READERS_DISABLE": "off"}).report()
    assert json.loads(json.dumps(report)) == report
    assert report["schema"] == 1
    assert report["available"] == ["healthy"]
    assert list(report["readers"]) == ["healthy"]
    assert list(report["broken"]) == ["bad"]
    assert list(report["disabled"]) == ["off"]
    assert list(report["duplicates"]) == ["acme"]
    assert len(report["unreadable"]) == 1
    assert report["readers"]["healthy"]["distribution"] == "healthy-dist"
    assert report["settings"]["WEIGHT_READERS_DISABLE"] == ["off"]


def test_a_reader_whose_backend_is_missing_is_reported_as_unusable_with_the_command() -> None:
    given = registry(Plugin("acme", requires=[Requirement(module="no_such", distribution="no-such")]))
    unusable = given.report()["unusable"]["acme"]
    assert (unusable["code"], unusable["fix"]) == ("backend-missing", "Install it: pip install no-such")


# --- explicit plugins ----------------------------------------------------------------------------------------------


def test_a_frozen_application_passes_its_plugins_itself(site: Site) -> None:
    site.module("frozen_plugin", PLUGIN.format(name="frozen"))
    given = Registry(plugins={"frozen": importlib.import_module("frozen_plugin")}, distributions=(), environ={})
    assert given.available_reader_names() == ["frozen"]
    assert given.select().info.name == "frozen"
    given.refresh()
    assert given.available_reader_names() == ["frozen"]


def test_explicit_plugins_come_on_top_of_the_installed_ones(site: Site) -> None:
    folder = site.plugin("acme")
    found = [importlib_metadata.Distribution.at(folder)]
    given = Registry(plugins={"mine": Plugin("mine")}, distributions=found, environ={})
    assert given.available_reader_names() == ["acme", "mine"]


def test_the_registrys_own_facts_count_where_a_request_brings_none() -> None:
    threads = Plugin("z_threads", features={Feature.CONCURRENT})
    given = Registry(
        plugins={"a": Plugin("a"), "z_threads": threads},
        distributions=(),
        environ={},
        environment=Environment(cpus=8),
    )
    assert given.explain().chosen == "z_threads"
    assert given.explain(environment=Environment(cpus=1)).chosen == "a"
