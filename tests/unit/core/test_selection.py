# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plugins import Plugin, environments, info, reader_infos, registry, requests

import weight_readers
from weight_readers import (
    Accepted,
    Candidate,
    Declined,
    Environment,
    Feature,
    Lifetime,
    NoSuitableReaderError,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    Registry,
    Rejected,
    Request,
    Requirement,
    Selection,
    UnknownReaderError,
    _catalogue,
    hookimpl,
    select_weight_reader,
)
from weight_readers.policy import decide
from weight_readers.selection import Standing, choose

HERE = Environment()


def standing(name: str, verdict: Accepted | Rejected | None = None, **fields: Any) -> Standing:
    return Standing(name=name, verdict=verdict or Accepted(), info=info(name, **fields), distribution="d", version="1")


CANNOT = Rejected(code="vetoed", reason="not today", fix="Wait")

# --- the reason of the outcome -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standings", "options", "chosen", "reason"),
    [
        ([], {}, None, "no installed reader fits"),
        ([standing("a", CANNOT)], {}, None, "no installed reader fits"),
        ([standing("a")], {}, "a", "the only reader that fits"),
        ([standing("a"), standing("b", CANNOT)], {}, "a", "the only reader that fits"),
        ([standing("a"), standing("b")], {"requested": "b"}, "b", "requested by name"),
        ([standing("b")], {"requested": "b"}, "b", "requested by name"),
        ([standing("a"), standing("b")], {"environment_prefers": ["b"]}, "b", "preferred by WEIGHT_READERS_PREFER"),
        ([standing("a"), standing("b")], {}, "a", "first by name among equals: WEIGHT_READERS_PREFER says otherwise"),
        ([standing("a", fallback=True), standing("b")], {}, "b", "the others are fallbacks"),
        (
            [standing("a", CANNOT), standing("b", fallback=True)],
            {"requested": "a"},
            "b",
            "the fallback: 'a' was requested and is not usable",
        ),
        ([standing("a", CANNOT), standing("b")], {"requested": "a"}, None, "'a' was requested and is not usable"),
        (
            [standing("a", CANNOT), standing("b", fallback=True)],
            {"requested": "a", "strict": True},
            None,
            "'a' was requested and is not usable",
        ),
    ],
)
def test_the_choice_and_its_reason(
    standings: list[Standing], options: dict[str, Any], chosen: str | None, reason: str
) -> None:
    selection = choose(standings, Request(), HERE, **options)
    assert (selection.chosen, selection.reason) == (chosen, reason)


def test_the_rule_that_decided_is_the_reason() -> None:
    mapped = standing("z", features={Feature.FILE_MAPPING}, lifetime=Lifetime.MAPPED)
    selection = choose([standing("a"), mapped], Request(kept_on_host=True), HERE)
    assert selection.chosen == "z"
    assert selection.reason == "tensors stay in host memory: maps the file: no copy, and the kernel can drop pages"


def test_the_stand_in_reads_the_format_of_the_reader_asked_for() -> None:
    standings = [standing("a", CANNOT, formats={"gguf"}), standing("b", fallback=True)]
    assert choose(standings, Request(), HERE, requested="a").chosen is None
    assert choose(standings, Request(format="safetensors"), HERE, requested="a").chosen == "b"


def test_the_stand_in_for_an_absent_reader_of_ours_reads_what_that_would_have_read() -> None:
    absent = Rejected(code="absent", reason="r")
    fallback = standing("b", fallback=True)
    for name, chosen in (("threaded", "b"), ("gguf", None)):
        selection = choose([Standing(name=name, verdict=absent), fallback], Request(), HERE, requested=name)
        assert selection.chosen == chosen


def test_no_other_than_a_fallback_stands_in() -> None:
    standings = [standing("a", CANNOT), standing("b"), standing("c", fallback=True)]
    selection = choose(standings, Request(), HERE, requested="a")
    assert (selection.chosen, selection.fallback) == ("c", True)


# --- everyone with a reason --------------------------------------------------------------------------------------


def test_explain_lists_every_candidate_the_chosen_one_first() -> None:
    class Vetoing(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request) -> Declined:
            return Declined(reason="no GPU here", fix="Buy one")

    lacking = Plugin("lacking", requires=[Requirement(module="no_such", distribution="no-such")])
    plugins = [Plugin("fits"), Plugin("other", formats={"gguf"}), Vetoing("vetoing"), lacking]
    given = registry(*plugins, torn=object(), environ={"WEIGHT_READERS_DISABLE": "off"}, off=Plugin("off"))
    assert given.explain(Request(format="safetensors")).explain().splitlines() == [
        "chosen: fits (the only reader that fits)",
        "  fits: accepted: fits the request",
        "  lacking: rejected [backend-missing]: needs the module 'no_such', which is not installed."
        " Install it: pip install no-such",
        "  vetoing: rejected [vetoed]: no GPU here. Buy one",
        "  off: rejected [disabled]: disabled by WEIGHT_READERS_DISABLE. Take it out of WEIGHT_READERS_DISABLE",
        "  torn: rejected [broken]: it has no weight_readers_create",
        "  for other formats: other",
    ]
    asked = given.explain(Request(format="safetensors"), requested="other").explain()
    assert "  other: rejected [format]: reads gguf, not safetensors" in asked


def test_a_selection_goes_through_json_and_pickle_unchanged() -> None:
    selection = registry(Plugin("a"), Plugin("b", formats={"gguf"})).explain(
        Request(format="safetensors", needs={Feature.SLICES}), environment=Environment(cpus=3), requested="b"
    )
    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection
    assert pickle.loads(pickle.dumps(selection)) == selection


@given(st.lists(reader_infos(), max_size=4, unique_by=lambda i: i.name), requests(), environments(), st.booleans())
def test_any_selection_lists_each_reader_once_and_goes_through_json(
    infos: list[weight_readers.ReaderInfo], request: Request, environment: Environment, strict: bool
) -> None:
    standings = [Standing(name=i.name, verdict=decide(i, request, environment), info=i) for i in infos]
    selection = choose(standings, request, environment, strict=strict)
    assert sorted(c.name for c in selection.candidates) == sorted(i.name for i in infos)
    assert (selection.chosen is None) == all(not c.accepted for c in selection.candidates)
    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection


def test_candidates_and_verdicts_go_through_json() -> None:
    for instance in (
        Candidate(name="a", accepted=True, reason="r", settings={"copy": True}),
        Accepted(reasons=("a", "b"), settings={"copy": True}),
        Rejected(code="c", reason="r", fix="f"),
    ):
        assert type(instance).from_json(json.loads(json.dumps(instance.to_json()))) == instance


# --- select ------------------------------------------------------------------------------------------------------

FALLBACK = Plugin("fallback", fallback=True)


def test_an_explicit_request_is_honoured_whatever_the_rules_say() -> None:
    given = registry(Plugin("a"), FALLBACK)
    reader = given.select(Request(prefer=["a"]), requested="fallback")
    assert reader.info.name == "fallback"
    assert reader.selection is not None
    assert reader.selection.reason == "requested by name"
    assert not reader.selection.fallback


def test_the_chosen_reader_carries_its_selection() -> None:
    reader = registry(Plugin("a"), Plugin("b")).select(Request(format="safetensors"))
    assert reader.selection is not None
    assert reader.selection.chosen == "a"
    assert [c.name for c in reader.selection.candidates] == ["a", "b"]


def test_an_unknown_name_is_a_value_error_that_names_what_is_available() -> None:
    with pytest.raises(ValueError, match=r"unknown weight reader 'x'; available: \['fallback'\]") as caught:
        registry(FALLBACK).select(requested="x")
    assert isinstance(caught.value, UnknownReaderError)


class Vetoing(Plugin):
    @hookimpl
    def weight_readers_check(self, request: Request) -> Declined:
        return Declined(reason="no GPU here", fix="Buy one")


class NoDescription(Plugin):
    @hookimpl
    def weight_readers_describe(self) -> Any:
        raise ValueError("torn")


UNUSABLE: list[tuple[str, dict[str, object], dict[str, str], Request, str, str]] = [
    ("threaded", {}, {}, Request(), "absent", "its plugin is not installed"),
    (
        "a",
        {"a": NoDescription("a")},
        {},
        Request(format="safetensors"),
        "broken",
        "describe hook raised ValueError: torn",
    ),
    ("a", {"a": Vetoing("a")}, {}, Request(), "vetoed", "no GPU here"),
    ("a", {"a": Plugin("a")}, {}, Request(needs={Feature.KEY_FILTER}), "key-filter", "cannot skip tensors"),
    ("a", {"a": Plugin("a", formats={"gguf"})}, {}, Request(format="safetensors"), "format", "reads gguf"),
    ("a", {"a": Plugin("a")}, {}, Request(options={"readonly": True}), "option", "has no option readonly"),
    (
        "a",
        {"a": Plugin("a")},
        {"WEIGHT_READERS_DISABLE": "a"},
        Request(format="safetensors"),
        "disabled",
        "disabled by WEIGHT_READERS_DISABLE",
    ),
    (
        "a",
        {"a": Plugin("a", requires=[Requirement(module="no_such", distribution="no-such")])},
        {},
        Request(),
        "backend-missing",
        "needs the module 'no_such'",
    ),
]
CAPABLE = Plugin("fallback", fallback=True, features={Feature.KEY_FILTER}, options={"readonly"})


@pytest.mark.parametrize(
    ("asked", "plugins", "environ", "request_", "code", "reason"), UNUSABLE, ids=[row[4] for row in UNUSABLE]
)
def test_a_named_reader_that_is_not_usable_falls_back_with_a_visible_warning(
    asked: str, plugins: dict[str, object], environ: dict[str, str], request_: Request, code: str, reason: str
) -> None:
    given = registry(CAPABLE, environ=environ, **plugins)
    with pytest.warns(ReaderFallbackWarning) as caught:
        reader = given.select(request_, requested=asked)
    assert reader.info.name == "fallback"
    (warning,) = [w.message for w in caught if isinstance(w.message, ReaderFallbackWarning)]
    assert (warning.asked, warning.used) == (asked, "fallback")
    assert reason in warning.reason
    assert reader.selection is not None
    assert reader.selection.fallback
    candidate = reader.selection.candidate(asked)
    assert candidate is not None
    assert (candidate.code, candidate.fix) == (code, warning.fix)


@pytest.mark.parametrize(
    ("asked", "plugins", "environ", "request_", "code", "reason"), UNUSABLE, ids=[row[4] for row in UNUSABLE]
)
def test_a_named_reader_that_is_not_usable_is_an_error_under_strict(
    asked: str, plugins: dict[str, object], environ: dict[str, str], request_: Request, code: str, reason: str
) -> None:
    given = registry(CAPABLE, environ=environ, **plugins)
    with pytest.raises(ReaderUnavailableError) as caught:
        given.select(request_, requested=asked, strict=True)
    assert (caught.value.name, caught.value.code) == (asked, code)
    assert reason in caught.value.what
    assert caught.value.selection is not None
    assert caught.value.selection.chosen is None


def test_a_named_reader_without_any_stand_in_is_an_error_that_says_why_not() -> None:
    given = registry(Vetoing("a"), FALLBACK, Plugin("other"))
    with pytest.raises(ReaderUnavailableError) as caught:
        given.select(Request(needs={Feature.SLICES}), requested="a")
    assert (
        caught.value.what == "reader 'a' cannot be used here: lacks slices (nor its stand-in 'fallback': lacks slices)"
    )


def test_a_named_reader_that_fails_to_start_falls_back_too() -> None:
    class Failing(Plugin):
        @hookimpl
        def weight_readers_create(self, options: object) -> Any:
            raise OSError("libcudart.so.12")

    given = registry(Failing("a"), FALLBACK)
    with pytest.warns(ReaderFallbackWarning, match="libcudart") as caught:
        assert given.select(requested="a").info.name == "fallback"
    assert len(caught) == 1
    with pytest.raises(ReaderUnavailableError, match="libcudart"):
        given.select(requested="a", strict=True)
    alone = registry(Failing("a"))
    with pytest.raises(ReaderUnavailableError, match="libcudart"):
        alone.select(requested="a")


def test_needs_key_filter_passes_over_a_reader_that_cannot() -> None:
    given = registry(Plugin("a"), CAPABLE)
    reader = select_weight_reader(registry=given, needs_key_filter=True, prefer=["a"])
    assert reader.info.name == "fallback"
    assert reader.selection is not None
    assert Feature.KEY_FILTER in reader.selection.request.needs


def test_a_choice_of_the_policy_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry(Plugin("a", formats={"gguf"}), FALLBACK).select(Request(format="safetensors"))


def test_the_warning_points_at_the_line_of_the_caller() -> None:
    given = registry(FALLBACK)
    for call in (
        lambda: given.select(requested="threaded"),
        lambda: select_weight_reader(registry=given, requested="threaded"),
    ):
        with pytest.warns(ReaderFallbackWarning) as caught:
            call()
        assert [(w.filename, w.lineno) for w in caught] == [(__file__, call.__code__.co_firstlineno)]


def test_a_reader_of_ours_that_core_has_no_extra_for_yet_names_no_command() -> None:
    offered = _catalogue.core_extras()
    with pytest.warns(ReaderFallbackWarning) as caught:
        registry(FALLBACK).select(requested="threaded")
    (warning,) = [w.message for w in caught if isinstance(w.message, ReaderFallbackWarning)]
    assert ("pip install" in (warning.fix or "")) == ("threaded" in offered)


# --- none fits -----------------------------------------------------------------------------------------------------


def none_fits(given: Registry, **needs: Any) -> NoSuitableReaderError:
    with pytest.raises(NoSuitableReaderError) as caught:
        given.select(Request(**needs))
    assert caught.value.selection.chosen is None
    assert given.explain(Request(**needs)).chosen is None
    return caught.value


def test_with_nothing_installed_the_error_says_what_to_install() -> None:
    error = none_fits(registry())
    assert str(error) == 'no weight reader is installed. Install it: pip install "weight-readers[mmap]"'


def test_with_nothing_installed_for_a_format_of_ours_the_error_says_so() -> None:
    error = none_fits(registry(), format="safetensors")
    assert error.what == "no weight reader is installed, and format 'safetensors' is asked for"
    assert error.fix == 'Install it: pip install "weight-readers[mmap]"'


def test_a_format_that_nobody_of_ours_reads_has_no_command() -> None:
    assert none_fits(registry(FALLBACK), format="onnx").fix is None


def test_an_absent_reader_of_another_format_is_not_to_be_installed() -> None:
    given = registry(a=Plugin("a", fallback=True))
    absent = given.explain(requested="pt", request=Request(format="safetensors")).candidate("pt")
    assert absent is not None
    assert (absent.fix, absent.reason) == (None, "its plugin is not installed, and reads pt, not safetensors")


def test_an_absent_reader_of_ours_that_is_named_for_a_store_is_installed_with_what_it_needs_there() -> None:
    request = Request(schemes=frozenset({"s3"}))
    selection = registry(a=Plugin("a")).explain(requested="runai_streamer", request=request)
    absent = selection.candidate("runai_streamer")
    assert absent is not None
    assert absent.fix == 'Install it: pip install "weight-readers-runai[s3]"'


def test_a_format_that_no_installed_reader_reads_suggests_one_that_does() -> None:
    error = none_fits(registry(Plugin("a", formats={"gguf"})), format="safetensors")
    assert error.fix == 'Install it: pip install "weight-readers[mmap]"'
    assert "a: reads gguf, not safetensors" in error.what


def test_what_is_installed_already_is_not_suggested() -> None:
    given = registry(Plugin("safetensors", fallback=True))
    assert "[mmap]" not in str(none_fits(given, format="safetensors", schemes={"s3"}))


def test_the_mend_of_a_candidate_is_the_mend_of_the_error() -> None:
    assert none_fits(registry(Vetoing("a"))).fix == "Buy one"


# --- the request out of keywords -----------------------------------------------------------------------------------


def test_keywords_come_on_top_of_a_request() -> None:
    request = Request(format="gguf", device="cpu")
    selection = weight_readers.explain_selection(registry=registry(), request=request, format="safetensors")
    assert (selection.request.format, selection.request.device) == ("safetensors", "cpu")


def test_a_keyword_that_is_no_field_is_refused_with_the_close_match() -> None:
    with pytest.raises(TypeError, match=r"'fromat' is no field of Request\. Did you mean 'format'\?"):
        select_weight_reader(registry=registry(FALLBACK), fromat="gguf")


def test_a_keyword_that_is_close_to_nothing_lists_the_fields() -> None:
    with pytest.raises(TypeError, match=r"'xyzzy' is no field of Request. Its fields: \['format'"):
        select_weight_reader(registry=registry(FALLBACK), xyzzy=1)


WRONG_ARGUMENTS: list[tuple[str, Any, str]] = [
    ("requested", 5, "requested must be the name of a reader or None, not 5"),
    ("requested", ["x"], r"requested must be the name of a reader or None, not \['x'\]"),
    ("request", 5, "request must be a Request or None, not 5"),
    ("request", {}, "request must be a Request or None, not {}"),
    ("environment", 5, "environment must be an Environment or None, not 5"),
    ("environment", {}, "environment must be an Environment or None, not {}"),
    ("strict", "x", "strict must be True, False or None, not 'x'"),
    ("strict", 0, "strict must be True, False or None, not 0"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG_ARGUMENTS)
def test_an_argument_of_another_type_is_refused_by_name_and_value(name: str, value: Any, said: str) -> None:
    a_registry = registry(FALLBACK)
    for call in (select_weight_reader, weight_readers.explain_selection):
        with pytest.raises(TypeError, match=said):
            call(registry=a_registry, **{name: value})
    for method in (a_registry.select, a_registry.explain):
        with pytest.raises(TypeError, match=said):
            method(**{name: value})


def test_needs_key_filter_of_another_type_is_refused_by_name_and_value() -> None:
    with pytest.raises(TypeError, match="needs_key_filter must be True, False or None, not 'no'"):
        select_weight_reader(registry=registry(FALLBACK), needs_key_filter="no")  # type: ignore[arg-type]


def test_a_registry_refuses_a_wrong_environment_and_a_name_that_is_no_text() -> None:
    with pytest.raises(TypeError, match="environment must be an Environment or None, not 5"):
        Registry(environment=5)  # type: ignore[arg-type]
    for name in (5, None):
        with pytest.raises(TypeError, match=f"name must be the name of a reader, not {name}"):
            registry(FALLBACK).describe_reader(name)  # type: ignore[arg-type]
