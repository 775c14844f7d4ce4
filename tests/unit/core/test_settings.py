# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings

import pytest
from support.plugins import Plugin, registry

from weight_readers import ReaderFallbackWarning, ReaderUnavailableError, Registry, Request
from weight_readers._settings import Settings


def test_names_are_separated_by_commas_and_blanks_do_not_count() -> None:
    settings = Settings.of({"WEIGHT_READERS_DISABLE": " a, ,b,", "WEIGHT_READERS_PREFER": ""})
    assert (settings.disable, settings.prefer) == (("a", "b"), ())


@pytest.mark.parametrize(
    ("value", "strict"),
    [("1", True), ("true", True), (" YES ", True), ("on", True), ("0", False), ("No", False), ("", False)],
)
def test_strict_is_read_from_the_environment(value: str, strict: bool) -> None:
    assert strict is Settings.of({"WEIGHT_READERS_STRICT": value}).strict(None)


def test_a_bad_value_of_strict_is_named_when_it_is_needed() -> None:
    with pytest.raises(ValueError, match="WEIGHT_READERS_STRICT must be 1 or 0, not 'maybe'"):
        registry(Plugin(), environ={"WEIGHT_READERS_STRICT": "maybe"}).select()


def test_a_bad_value_of_strict_does_not_break_listings() -> None:
    given = registry(Plugin("acme"), environ={"WEIGHT_READERS_STRICT": "maybe"})
    assert given.available_reader_names() == ["acme"]
    assert given.report()["settings"]["WEIGHT_READERS_STRICT"] == "maybe"


@pytest.mark.parametrize("value", ["maybe", "0"])
def test_the_argument_strict_beats_the_environment(value: str) -> None:
    given = registry(Plugin("acme", fallback=True), environ={"WEIGHT_READERS_STRICT": value})
    with pytest.raises(ReaderUnavailableError):
        given.select(requested="threaded", strict=True)


def test_the_argument_lenient_beats_a_strict_environment() -> None:
    given = registry(Plugin("acme", fallback=True), environ={"WEIGHT_READERS_STRICT": "1"})
    with pytest.warns(ReaderFallbackWarning):
        assert given.select(requested="threaded", strict=False).info.name == "acme"


def test_the_environment_makes_it_strict_where_no_argument_says_otherwise() -> None:
    given = registry(Plugin("acme", fallback=True), environ={"WEIGHT_READERS_STRICT": "1"})
    with pytest.raises(ReaderUnavailableError):
        given.select(requested="threaded")


def test_a_preference_of_the_environment_decides_when_nothing_is_requested() -> None:
    given = registry(Plugin("a"), Plugin("b"), environ={"WEIGHT_READERS_PREFER": "gguf,b"})
    selection = given.explain()
    assert (selection.chosen, selection.reason) == ("b", "preferred by WEIGHT_READERS_PREFER")


def test_the_preference_of_the_call_beats_that_of_the_environment() -> None:
    given = registry(Plugin("a"), Plugin("b"), environ={"WEIGHT_READERS_PREFER": "b"})
    assert given.explain(Request(prefer=["a"])).chosen == "a"


def test_a_disabled_reader_is_listed_as_such_and_not_used() -> None:
    given = registry(Plugin("a"), Plugin("b"), environ={"WEIGHT_READERS_DISABLE": "a"})
    assert given.available_reader_names() == ["b"]
    assert list(given.report()["disabled"]) == ["a"]
    candidate = given.explain().candidate("a")
    assert candidate is not None
    assert (candidate.code, candidate.fix) == ("disabled", "Take it out of WEIGHT_READERS_DISABLE")


def test_a_disabled_plugin_is_not_even_imported() -> None:
    class Exploding(Plugin):
        def __getattribute__(self, name: str) -> object:
            if name.startswith("weight_readers"):
                raise AssertionError("it was touched")
            return super().__getattribute__(name)

    given = registry(Plugin("b"), a=Exploding("a"), environ={"WEIGHT_READERS_DISABLE": "a"})
    assert given.available_reader_names() == ["b"]
    assert given.report()["broken"] == {}


def test_describing_a_disabled_reader_says_that_it_is_disabled() -> None:
    given = registry(Plugin("a"), environ={"WEIGHT_READERS_DISABLE": "a"})
    with pytest.raises(ReaderUnavailableError, match="disabled by WEIGHT_READERS_DISABLE") as caught:
        given.describe_reader("a")
    assert (caught.value.name, caught.value.code) == ("a", "disabled")


@pytest.mark.parametrize("variable", ["WEIGHT_READERS_DISABLE", "WEIGHT_READERS_PREFER"])
def test_an_unknown_name_in_the_environment_warns_with_the_close_match(variable: str) -> None:
    given = registry(Plugin("acme"), environ={variable: "acne"})
    with pytest.warns(UserWarning, match=f"{variable} names 'acne', which is no weight reader. Did you mean 'acme'"):
        given.available_reader_names()


def test_an_unknown_name_without_a_close_match_lists_the_known_ones() -> None:
    given = registry(Plugin("acme"), environ={"WEIGHT_READERS_PREFER": "xyzzy"})
    with pytest.warns(UserWarning, match=r"Known: \['acme', 'gguf', 'pt', 'runai_streamer', 'safetensors', 'threaded'"):
        given.available_reader_names()


def test_the_names_of_our_readers_are_known_whether_installed_or_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry(environ={"WEIGHT_READERS_PREFER": "threaded,gguf"}).available_reader_names()


def test_an_unknown_name_in_the_preference_of_the_call_warns_too() -> None:
    with pytest.warns(UserWarning, match="Request.prefer names 'acne', which is no weight reader. Did you mean 'acme'"):
        registry(Plugin("acme")).explain(Request(prefer=["acne"]))


def test_the_warning_points_at_the_line_that_asked() -> None:
    given = registry(Plugin("acme"), environ={"WEIGHT_READERS_PREFER": "acne"})
    with pytest.warns(UserWarning, match="acne") as caught:
        given.report()
    assert [__file__] == [warning.filename for warning in caught]


def test_the_process_environment_is_read_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Registry(plugins={"a": Plugin("a")}, distributions=())
    monkeypatch.setenv("WEIGHT_READERS_DISABLE", "a")
    assert given.available_reader_names() == []
