# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plugins import READER_NAMES, environments, info, reader_infos, requests

from weight_readers import Accepted, Environment, Feature, Lifetime, ReaderInfo, Rejected, Request
from weight_readers._preferences import PREFERENCES, applying
from weight_readers.environment import NETWORK_FILESYSTEMS
from weight_readers.policy import Precedence, decide, rank, why_before

F = Feature
ANYTHING = Request()
HERE = Environment()
MAPPED = info("mapped", features={F.FILE_MAPPING}, lifetime=Lifetime.MAPPED)
COPYING = info("copying", features={F.FILE_MAPPING}, lifetime=Lifetime.MAPPED, options={"copy"})
OWNED = info("owned")
BOUNDED = info("bounded", features={F.BOUNDED_MEMORY}, lifetime=Lifetime.UNTIL_NEXT)
FILLING = info("filling", features={F.BOUNDED_MEMORY, F.READ_INTO})
TIGHT = Environment(host_memory_budget=10)
FULL = Environment(host_memory_free=10)
ALLOWED_MORE = Environment(host_memory_budget=99, host_memory_free=10)
ALLOWED_LESS = Environment(host_memory_budget=10, host_memory_free=99)


def names(
    infos: list[ReaderInfo], request: Request = ANYTHING, environment: Environment = HERE, **options: Any
) -> list[str]:
    verdicts = {i.name: decide(i, request, environment) for i in infos}
    return [p.name for p in rank(verdicts, {i.name: i for i in infos}, request, environment, **options)]


# --- decide ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reader", "request_", "environment", "reason"),
    [
        ("format", OWNED, Request(format="gguf"), HERE, "reads safetensors, not gguf"),
        ("scheme", OWNED, Request(schemes={"file", "s3"}), HERE, "cannot read s3: its schemes are file"),
        ("key-filter", OWNED, Request(needs={F.KEY_FILTER}), HERE, "cannot skip tensors before their bytes are read"),
        ("feature", OWNED, Request(needs={F.SLICES, F.READ_INTO}), HERE, "lacks read_into, slices"),
        ("dtype", info(dtypes={"float32"}), Request(dtypes={"int4"}), HERE, "cannot read dtype int4"),
        ("option", OWNED, Request(options={"turbo": 1}), HERE, "has no option turbo: it has no options"),
        ("option", COPYING, Request(options={"turbo": 1}), HERE, "has no option turbo: its options are copy"),
        ("owned", MAPPED, Request(owned=True), HERE, "yields views of the file, and owned tensors were asked for"),
        ("owned", COPYING, Request(owned=True, options={"copy": False}), HERE, "copy=False contradicts owned=True"),
        ("over-budget", OWNED, Request(bytes_wanted=11), TIGHT, "would hold 11 bytes of host memory, and 10 are free"),
        ("over-budget", OWNED, Request(bytes_wanted=11, device="cuda"), TIGHT, "has no bound on host memory"),
        ("over-budget", COPYING, Request(bytes_wanted=11, owned=True), TIGHT, "would hold 11 bytes"),
        ("over-budget", BOUNDED, Request(bytes_wanted=11, kept_on_host=True), TIGHT, "would hold 11 bytes"),
        ("over-budget", BOUNDED, Request(bytes_wanted=11, owned=True), TIGHT, "would hold 11 bytes"),
        ("over-budget", BOUNDED, Request(bytes_wanted=99, largest_tensor=6), TIGHT, "would hold 12 bytes"),
        ("over-budget", BOUNDED, Request(bytes_wanted=11, largest_tensor=9), TIGHT, "would hold 11 bytes"),
        ("over-budget", FILLING, Request(bytes_wanted=99, largest_tensor=6), TIGHT, "would hold 12 bytes"),
        ("over-budget", FILLING, Request(bytes_wanted=99, kept_on_host=True), TIGHT, "would hold 99 bytes"),
        (
            "over-budget",
            BOUNDED,
            Request(bytes_wanted=99, largest_tensor=6, device="cuda"),
            TIGHT,
            "would have 12 bytes of host memory under way, and 10 are free",
        ),
        ("over-budget", COPYING, Request(bytes_wanted=11, options={"copy": True}), TIGHT, "would hold 11 bytes"),
        ("over-budget", OWNED, Request(bytes_wanted=11), FULL, "would hold 11 bytes of host memory, and 10 are free"),
        ("over-budget", OWNED, Request(bytes_wanted=11), ALLOWED_MORE, "and 10 are free"),
        ("over-budget", OWNED, Request(bytes_wanted=11), ALLOWED_LESS, "and 10 are free"),
    ],
)
def test_a_reader_that_cannot_serve_is_rejected_with_a_code_and_the_reason(
    code: str, reader: ReaderInfo, request_: Request, environment: Environment, reason: str
) -> None:
    verdict = decide(reader, request_, environment)
    assert isinstance(verdict, Rejected)
    assert code == verdict.code
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("reader", "request_", "environment"),
    [
        (OWNED, Request(), HERE),
        (OWNED, Request(format="safetensors", schemes={"file"}), HERE),
        (info(features={F.KEY_FILTER}), Request(needs={F.KEY_FILTER}), HERE),
        (info(features=set(F)), Request(needs={F.SLICES, F.READ_INTO}), HERE),
        (info(dtypes=()), Request(dtypes={"int4"}), HERE),
        (COPYING, Request(options={"copy": False}), HERE),
        (OWNED, Request(owned=True), HERE),
        (BOUNDED, Request(owned=True), HERE),
        (OWNED, Request(bytes_wanted=10), TIGHT),
        (OWNED, Request(bytes_wanted=11), HERE),
        (OWNED, Request(), TIGHT),
        (MAPPED, Request(bytes_wanted=11, kept_on_host=True), TIGHT),
        (BOUNDED, Request(bytes_wanted=11), TIGHT),
        (BOUNDED, Request(bytes_wanted=11, device="cuda"), TIGHT),
        (MAPPED, Request(bytes_wanted=11, device="cuda"), TIGHT),
        (MAPPED, Request(bytes_wanted=99, largest_tensor=99), TIGHT),
        (BOUNDED, Request(bytes_wanted=99, largest_tensor=5), TIGHT),
        (BOUNDED, Request(bytes_wanted=99, largest_tensor=5, kept_on_host=True, device="cuda"), TIGHT),
        (BOUNDED, Request(bytes_wanted=99, largest_tensor=5, owned=True, into_targets=True), TIGHT),
        (FILLING, Request(bytes_wanted=99, largest_tensor=99, into_targets=True), TIGHT),
        (MAPPED, Request(bytes_wanted=11, kept_on_host=True), FULL),
        (OWNED, Request(bytes_wanted=10), ALLOWED_MORE),
    ],
)
def test_a_reader_that_can_serve_is_accepted(reader: ReaderInfo, request_: Request, environment: Environment) -> None:
    assert isinstance(decide(reader, request_, environment), Accepted)


def test_the_first_broken_rule_is_the_reason() -> None:
    verdict = decide(OWNED, Request(format="gguf", schemes={"s3"}, needs={F.KEY_FILTER}), HERE)
    assert isinstance(verdict, Rejected)
    assert verdict.code == "format"


def test_owned_tensors_of_a_mapped_reader_that_can_copy_are_a_setting() -> None:
    verdict = decide(COPYING, Request(owned=True), HERE)
    assert isinstance(verdict, Accepted)
    assert verdict.settings == {"copy": True}


@pytest.mark.parametrize("reader", [OWNED, BOUNDED])
def test_a_reader_that_yields_no_views_needs_no_setting_for_owned_tensors(reader: ReaderInfo) -> None:
    verdict = decide(reader, Request(owned=True), HERE)
    assert isinstance(verdict, Accepted)
    assert verdict.settings == {}


# --- the auto rules --------------------------------------------------------------------------------------------

RULES = {
    "network file system": (Request(), Environment(filesystem="nfs"), OWNED, MAPPED),
    "tensors stay in host memory": (Request(kept_on_host=True), HERE, MAPPED, OWNED),
    "taken one by one on the host": (Request(device="cpu"), HERE, MAPPED, OWNED),
    "device placement": (Request(device="cuda:1"), HERE, info("direct", devices={"cuda"}), OWNED),
    "parts in short stretches": (Request(bytes_wanted=4096, stretches=2), HERE, MAPPED, OWNED),
    "into existing tensors": (Request(into_targets=True), HERE, info("into", features={F.READ_INTO}), OWNED),
    "cached file": (Request(), Environment(page_cache_residency=0.9), OWNED, info("raw", features={F.DIRECT_IO})),
    "several CPUs": (Request(), Environment(cpus=2), info("threads", features={F.CONCURRENT}), MAPPED),
}


def test_every_auto_rule_has_a_row_in_the_table() -> None:
    assert [p.name for p in PREFERENCES] == list(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_an_auto_rule_puts_what_it_likes_first_and_says_so(rule: str) -> None:
    request, environment, liked, other = RULES[rule]
    assert [liked.name, other.name] == names([other, liked], request, environment)
    accepted = [decide(reader, request, environment) for reader in (liked, other)]
    preference = next(p for p in PREFERENCES if p.name == rule)
    title = preference.title(environment)
    assert title.startswith(rule)
    praise = () if preference.exceptional else (f"{title}: {preference.liked}",)
    assert [praise, (f"{title}: {preference.disliked}",)] == [
        verdict.reasons for verdict in accepted if isinstance(verdict, Accepted)
    ]


@pytest.mark.parametrize(
    ("request_", "environment", "rules"),
    [
        (Request(), HERE, []),
        (Request(device="cpu"), Environment(cpus=8, page_cache_residency=0.0), ["taken one by one on the host"]),
        (Request(device="cpu", owned=True), HERE, []),
        (Request(device="cpu", kept_on_host=True), HERE, ["tensors stay in host memory"]),
        (Request(device="cpu", into_targets=True), HERE, ["into existing tensors"]),
        (Request(bytes_wanted=32 << 10, stretches=1), HERE, []),
        (Request(bytes_wanted=(32 << 10) - 1, stretches=1), HERE, ["parts in short stretches"]),
        (Request(bytes_wanted=100, stretches=0), HERE, []),
        (Request(stretches=9), HERE, []),
        (Request(bytes_wanted=100, stretches=9, device="cuda"), HERE, ["device placement"]),
        (Request(device="meta"), HERE, []),
        (Request(kept_on_host=True, owned=True), HERE, []),
        (Request(kept_on_host=True, device="cuda"), HERE, ["device placement"]),
        (Request(kept_on_host=True), Environment(cpus=8), ["tensors stay in host memory"]),
        (Request(), Environment(cpus=1), []),
        (Request(), Environment(page_cache_residency=0.89), []),
        (Request(), Environment(filesystem="ext4"), []),
        (Request(), Environment(filesystem="fuse"), ["network file system"]),
        (Request(), Environment(filesystem="fuse.sshfs"), ["network file system"]),
        (Request(), Environment(filesystem="fuseblk"), ["network file system"]),
        (Request(), Environment(filesystem="fused"), []),
    ],
)
def test_a_rule_applies_only_where_it_has_something_to_say(
    request_: Request, environment: Environment, rules: list[str]
) -> None:
    assert rules == [p.name for p in applying(request_, environment)]


@pytest.mark.parametrize("kind", sorted(NETWORK_FILESYSTEMS))
def test_a_mapping_comes_last_on_every_network_file_system(kind: str) -> None:
    assert names([MAPPED, OWNED], Request(kept_on_host=True), Environment(filesystem=kind)) == ["owned", "mapped"]


def test_short_stretches_come_from_a_mapping_also_where_another_reader_fills_targets() -> None:
    filling = info("filling", features={F.READ_INTO, F.CONCURRENT})
    parts = Request(into_targets=True, bytes_wanted=1 << 30, stretches=1 << 18)
    assert names([filling, MAPPED], parts, HERE) == ["mapped", "filling"]
    assert names([filling, MAPPED], parts, Environment(filesystem="nfs")) == ["filling", "mapped"]


def test_a_mapping_that_has_to_copy_is_none_that_short_stretches_come_from() -> None:
    parts = Request(owned=True, bytes_wanted=100, stretches=9)
    verdict = decide(COPYING, parts, HERE)
    assert isinstance(verdict, Accepted)
    assert verdict.reasons == ("parts in short stretches: asks for each of them",)


def test_over_a_network_what_memory_does_not_hold_stays_mapped() -> None:
    over_network = Environment(filesystem="nfs", host_memory_free=10)
    assert names([OWNED, MAPPED], Request(kept_on_host=True, bytes_wanted=11), over_network) == ["mapped", "owned"]


def test_an_earlier_rule_outweighs_all_later_ones() -> None:
    later = info("later", features={F.READ_INTO, F.CONCURRENT}, devices={"cuda"})
    assert names(
        [later, MAPPED], Request(kept_on_host=True, into_targets=True), Environment(page_cache_residency=1.0)
    ) == ["mapped", "later"]


# --- rank: the order of precedence, each step against all the steps below it -------------------------------------

BEST = info("a_best", features=set(F))
PLAIN = info("b_plain")
WEAK = info("z_weak", features={F.DIRECT_IO}, fallback=True)


def test_accepted_comes_before_rejected_whatever_speaks_for_the_rejected() -> None:
    request = Request(format="safetensors", prefer=["gone"])
    gone = info("gone", formats={"gguf"})
    assert names([gone, WEAK], request, requested="gone", environment_prefers=["gone"]) == ["z_weak", "gone"]


def test_requested_comes_before_the_callers_preference() -> None:
    request = Request(prefer=["a_best"])
    assert names([BEST, WEAK], request, requested="z_weak", environment_prefers=["a_best"]) == ["z_weak", "a_best"]


def test_the_callers_preference_comes_before_that_of_the_environment() -> None:
    assert names([BEST, WEAK], Request(prefer=["z_weak"]), environment_prefers=["a_best"]) == ["z_weak", "a_best"]


def test_a_preference_is_an_order() -> None:
    assert names([BEST, PLAIN, WEAK], Request(prefer=["z_weak", "b_plain"])) == ["z_weak", "b_plain", "a_best"]


def test_the_environments_preference_comes_before_the_auto_rules() -> None:
    order = names([BEST, WEAK], Request(into_targets=True), environment_prefers=["z_weak"])
    assert order == ["z_weak", "a_best"]


def test_the_auto_rules_come_before_not_being_a_fallback() -> None:
    fallback = info("z_fallback", features={F.READ_INTO}, fallback=True)
    assert names([PLAIN, fallback], Request(into_targets=True)) == ["z_fallback", "b_plain"]


STORES = info("a_streamer", schemes={"file", "s3"})
UNPACKED = info("a_streamer", more_schemes={"s3": "pip install s3"})
S3 = info("z_s3", schemes={"s3"})
THREADS = info("a_streamer", schemes={"file", "s3"}, features={F.CONCURRENT})


@pytest.mark.parametrize(
    ("first", "second", "request_", "environment"),
    [
        (PLAIN, STORES, Request(schemes={"file"}), HERE),
        (PLAIN, STORES, Request(), HERE),
        (PLAIN, UNPACKED, Request(schemes={"file"}), HERE),
        (WEAK, STORES, Request(schemes={"file"}), HERE),
        (PLAIN, STORES, Request(schemes={"file"}), Environment(filesystem="nfs")),
        (S3, STORES, Request(schemes={"s3"}), HERE),
        (STORES, PLAIN, Request(schemes={"s3"}), HERE),
        (STORES, PLAIN, Request(schemes={"file"}, prefer=["a_streamer"]), HERE),
        (THREADS, MAPPED, Request(schemes={"file"}), Environment(cpus=2)),
    ],
)
def test_what_is_made_for_such_places_alone_comes_before_what_is_made_for_more(
    first: ReaderInfo, second: ReaderInfo, request_: Request, environment: Environment
) -> None:
    """Where the auto rules tell no difference, also before a fallback and the name."""
    assert [first.name, second.name] == names([second, first], request_, environment)


def test_no_fallback_comes_before_the_name() -> None:
    assert names([info("a_fallback", fallback=True), PLAIN]) == ["b_plain", "a_fallback"]


def test_the_name_decides_last() -> None:
    assert names([PLAIN, BEST]) == ["a_best", "b_plain"]


def test_a_name_without_info_comes_last_among_the_rejected() -> None:
    broken = Rejected(code="broken", reason="r")
    verdicts = {"absent": broken, "known": broken}
    assert [p.name for p in rank(verdicts, {"known": info("known")}, Request(), HERE)] == ["known", "absent"]


@pytest.mark.parametrize(
    ("request_", "options", "why"),
    [
        (Request(), {"requested": "z_weak"}, "requested by name"),
        (Request(prefer=["z_weak"]), {}, "preferred by the caller"),
        (Request(), {"environment_prefers": ["z_weak"]}, "preferred by WEIGHT_READERS_PREFER"),
        (Request(into_targets=True), {}, "into existing tensors: reads straight into them"),
        (Request(), {}, "the others are fallbacks"),
    ],
)
def test_the_weightiest_difference_is_the_reason(request_: Request, options: dict[str, Any], why: str) -> None:
    infos = {i.name: i for i in (BEST, WEAK)}
    first, second = rank({n: Accepted() for n in infos}, infos, request_, HERE, **options)
    assert why == why_before(first, second, request_, HERE)


def test_that_a_reader_is_made_for_such_places_alone_is_said() -> None:
    infos = {i.name: i for i in (STORES, PLAIN)}
    first, second = rank({n: Accepted() for n in infos}, infos, Request(schemes={"file"}), HERE)
    assert (
        why_before(first, second, Request(schemes={"file"}), HERE)
        == "made for local files alone, the others for other places too"
    )


def test_equals_are_told_apart_by_name_and_that_is_said() -> None:
    infos = {i.name: i for i in (PLAIN, OWNED)}
    first, second = rank({n: Accepted() for n in infos}, infos, Request(), HERE)
    said = why_before(first, second, Request(), HERE)
    assert said == "first by name among equals: WEIGHT_READERS_PREFER says otherwise"


@pytest.mark.parametrize("ours", ["safetensors", "threaded", "runai_streamer", "gguf", "pt"])
def test_a_reader_of_others_is_no_default_by_its_name(ours: str) -> None:
    readers = {name: info(name) for name in (ours, "aaa", "_")}
    first, second, third = rank(dict.fromkeys(readers, Accepted()), readers, Request(), HERE)
    assert (first.name, second.name, third.name) == (ours, "_", "aaa")
    assert why_before(first, second, Request(), HERE) == "a reader of this project before equals of others"


def test_a_reader_of_others_is_no_default_by_a_name_of_ours() -> None:
    readers = {name: info(name) for name in ("threaded", "safetensors")}
    given = {"threaded": "Weight_Readers.threaded", "safetensors": "acme-safetensors"}
    first, second = rank(dict.fromkeys(readers, Accepted()), readers, Request(), HERE, distributions=given)
    assert (first.name, second.name) == ("threaded", "safetensors")
    assert why_before(first, second, Request(), HERE) == "a reader of this project before equals of others"


def test_what_a_reader_declares_counts_more_than_whose_it_is() -> None:
    readers = {"safetensors": info("safetensors", fallback=True), "aaa": info("aaa")}
    first, second = rank(dict.fromkeys(readers, Accepted()), readers, Request(), HERE)
    assert (first.name, why_before(first, second, Request(), HERE)) == ("aaa", "the others are fallbacks")


# --- properties ------------------------------------------------------------------------------------------------


def _distinct() -> st.SearchStrategy[list[ReaderInfo]]:
    return st.lists(reader_infos(), max_size=5, unique_by=lambda i: i.name)


@given(reader_infos(), requests(), environments())
def test_decide_answers_for_every_reader_request_and_machine(
    reader: ReaderInfo, request_: Request, environment: Environment
) -> None:
    verdict = decide(reader, request_, environment)
    assert isinstance(verdict, Accepted) or (verdict.code and verdict.reason)


@given(reader_infos(), requests(), environments())
def test_an_accepted_reader_has_everything_that_was_asked_for(
    reader: ReaderInfo, request_: Request, environment: Environment
) -> None:
    if isinstance(decide(reader, request_, environment), Accepted):
        assert request_.needs <= reader.features
        assert request_.schemes <= reader.schemes
        assert set(request_.options) <= reader.options


@given(_distinct(), requests(), environments(), st.none() | READER_NAMES, st.lists(READER_NAMES), st.randoms())
def test_the_order_is_total_and_the_same_whatever_order_the_readers_come_in(
    readers: list[ReaderInfo],
    request_: Request,
    environment: Environment,
    requested: str | None,
    preferred: list[str],
    random: Any,
) -> None:
    shuffled = random.sample(readers, len(readers))
    options: dict[str, Any] = {"requested": requested, "environment_prefers": preferred}
    order = names(readers, request_, environment, **options)
    assert order == names(shuffled, request_, environment, **options)
    assert sorted(order) == sorted(i.name for i in readers)


@given(_distinct(), requests(), environments(), st.none() | READER_NAMES)
def test_no_rejected_reader_comes_before_an_accepted_one(
    readers: list[ReaderInfo], request_: Request, environment: Environment, requested: str | None
) -> None:
    verdicts = {i.name: decide(i, request_, environment) for i in readers}
    order = rank(verdicts, {i.name: i for i in readers}, request_, environment, requested=requested)
    rejected = [isinstance(verdicts[p.name], Rejected) for p in order]
    assert sorted(rejected) == rejected


@given(_distinct(), requests(), environments())
def test_there_is_a_reason_between_any_two(
    readers: list[ReaderInfo], request_: Request, environment: Environment
) -> None:
    verdicts = {i.name: decide(i, request_, environment) for i in readers}
    order: list[Precedence] = rank(verdicts, {i.name: i for i in readers}, request_, environment)
    for first, second in pairwise(order):
        assert why_before(first, second, request_, environment)


def test_a_scheme_that_a_reader_lacks_a_package_for_is_refused_with_the_command() -> None:
    stores = info("stores", more_schemes={"s3": 'pip install "stores[s3]"'})
    rejected = decide(stores, Request(schemes={"s3"}), HERE)
    assert isinstance(rejected, Rejected)
    assert rejected.fix == 'Install it: pip install "stores[s3]"'
