# SPDX-License-Identifier: Apache-2.0
"""The settings that policy chooses, as tables: what the machine is, and what a reader is made with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from support.plugins import Plugin, environments, info, reader_infos, registry, requests

from weight_readers import Accepted, Environment, ReaderInfo, Request
from weight_readers._tunings import TUNINGS
from weight_readers.capabilities import TUNABLE
from weight_readers.environment import LOCAL_FILESYSTEMS, NETWORK_FILESYSTEMS
from weight_readers.policy import decide

READER = info(options=set(TUNABLE), tunable=set(TUNABLE))


def settings(environment: Environment, request: Request | None = None, reader: ReaderInfo = READER) -> dict[str, Any]:
    verdict = decide(reader, request or Request(), environment)
    assert isinstance(verdict, Accepted)
    assert set(verdict.tuned) <= set(verdict.settings)
    return dict(verdict.settings)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (Environment(), {}),
        (Environment(cpus=1), {"num_threads": 1}),
        (Environment(cpus=3), {"num_threads": 3}),
        (Environment(cpus=128), {"num_threads": 4}),
        (Environment(filesystem="ext4", cpus=2), {"num_threads": 2}),
        (Environment(filesystem="nfs"), {"num_threads": 8, "prefetch": 8}),
        (Environment(filesystem="nfs4", cpus=1), {"num_threads": 8, "prefetch": 8}),
        (Environment(filesystem="fuse.sshfs", local_ranks=4), {"num_threads": 2, "prefetch": 2}),
        (Environment(filesystem="lustre", local_ranks=16), {"num_threads": 1, "prefetch": 1}),
        (Environment(filesystem="nfs", page_cache_residency=0.89), {"num_threads": 8, "prefetch": 8}),
        (Environment(filesystem="nfs", page_cache_residency=1.0, cpus=2), {"num_threads": 2}),
        (Environment(page_cache_residency=0.0), {}),
        (Environment(page_cache_residency=0.9), {}),
        (Environment(host_memory_free=1, rss_anon=1, rss_file=1, devices={"cuda"}), {}),
    ],
)
def test_the_facts_decide_what_a_reader_is_made_with(environment: Environment, expected: dict[str, Any]) -> None:
    assert settings(environment) == expected


@pytest.mark.parametrize("kind", sorted(NETWORK_FILESYSTEMS))
def test_over_every_network_file_system_requests_wait_together(kind: str) -> None:
    assert settings(Environment(filesystem=kind, cpus=1))["prefetch"] > 1


@pytest.mark.parametrize("kind", [*sorted(LOCAL_FILESYSTEMS), "unheard_of", "fused"])
def test_on_local_and_unknown_ones_nothing_is_read_ahead(kind: str) -> None:
    assert settings(Environment(filesystem=kind)) == {}


@pytest.mark.parametrize("where", ["options", "settings"])
@pytest.mark.parametrize("option", ["num_threads", "prefetch"])
def test_what_the_caller_says_of_an_option_counts_whatever_the_facts(where: str, option: str) -> None:
    request = Request(**{where: {option: 5}})
    verdict = decide(READER, request, Environment(filesystem="nfs"))
    assert isinstance(verdict, Accepted)
    assert verdict.settings.get(option) == (5 if where == "settings" else None)
    assert option not in verdict.tuned


def test_an_option_that_a_reader_does_not_let_policy_set_is_left_alone() -> None:
    reader = info(options=set(TUNABLE), tunable={"prefetch"})
    assert settings(Environment(filesystem="nfs"), reader=reader) == {"prefetch": 8}


def test_each_setting_has_its_reason_with_the_fact() -> None:
    verdict = decide(READER, Request(), Environment(filesystem="fuse.s3fs", cpus=2))
    assert isinstance(verdict, Accepted)
    assert verdict.tuned.keys() == {"prefetch", "num_threads"}
    assert all("fuse.s3fs" in reason for reason in verdict.tuned.values())


def test_every_rule_is_about_an_option_that_policy_may_set() -> None:
    assert {rule.option for rule in TUNINGS} == set(TUNABLE)


def test_the_reader_is_made_with_it_and_the_selection_says_so() -> None:
    plugin = Plugin("acme", options={"num_threads"}, tunable={"num_threads"})
    reader = registry(plugin).select(environment=Environment(cpus=3))
    assert reader.options == {"num_threads": 3}  # type: ignore[attr-defined]
    assert reader.selection is not None
    assert "    num_threads=3: 3 CPUs for this process, and 4 threads at most" in str(reader.selection).splitlines()


@pytest.mark.parametrize(
    ("tunable", "options", "message"),
    [({"turbo"}, {"turbo"}, "tunable has"), ({"prefetch"}, set(), "which ReaderInfo.options lacks")],
)
def test_what_cannot_be_set_cannot_be_declared(tunable: set[str], options: set[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        info(options=options, tunable=tunable)


@given(reader_infos(), requests(), environments())
def test_nothing_is_set_that_the_reader_does_not_have_or_the_caller_has_said(
    reader: ReaderInfo, request_: Request, environment: Environment
) -> None:
    verdict = decide(reader, request_, environment)
    if isinstance(verdict, Accepted):
        assert set(verdict.tuned) <= reader.tunable - set(request_.options) - set(request_.settings)
