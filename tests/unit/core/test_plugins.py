# SPDX-License-Identifier: Apache-2.0
"""One plugin at a time: what can be wrong with it, and what is said then."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from support.plugins import PLUGIN, Plugin, Reader, Site, info, installed, registry

from weight_readers import (
    API_VERSION,
    Declined,
    Environment,
    Feature,
    Lifetime,
    NoSuitableReaderError,
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    QuantMethodInfo,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    Registry,
    Request,
    Requirement,
    UnknownReaderError,
    hookimpl,
)


class Panic(BaseException):
    """Like that of pyo3, which is no Exception."""


class Mute(Exception):
    """An exception that cannot be put into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unprintable:
    """An answer that cannot be put into text, nor asked for its class or its members."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no member")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


FOREIGN_ERRORS = [(Panic("at lib.rs"), "Panic: at lib.rs"), (Mute(), "Mute: <unprintable>")]
FOREIGN_IDS = ["panic", "mute"]


def broken(given: Registry, name: str = "acme") -> ReaderUnavailableError:
    """The error of a plugin that has to be listed as broken, with its cause, while the others go on."""
    assert name not in given.available_reader_names()
    assert name in given.report()["broken"]
    with pytest.raises(ReaderUnavailableError) as caught:
        given.describe_reader(name)
    assert caught.value.name == name
    assert caught.value.code == "broken"
    return caught.value


# --- import ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('no licence')", "importing it raised ImportError: no licence"),
        ("raise ValueError('numpy.dtype size changed')", "importing it raised ValueError: numpy.dtype size changed"),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3"),
        ("import sys; sys.exit()", "importing it raised SystemExit"),
        ("def oops(:\n", "importing it raised SyntaxError: "),
        ("import ctypes; ctypes.CDLL('libnot-there.so.1')", "importing it raised OSError: libnot-there.so.1"),
        ("from json import no_such_thing", "importing it raised ImportError: cannot import name 'no_such_thing'"),
        ("import no_such_backend", "it imports 'no_such_backend', which is not installed"),
        ("import no_such.backend", "it imports 'no_such', which is not installed"),
        ("import xml.no_such_part", "it imports 'xml.no_such_part', which is not installed"),
        ("raise RecursionError", "importing it raised RecursionError"),
    ],
)
def test_a_plugin_that_raises_on_import_is_broken_and_says_how(site: Site, source: str, said: str) -> None:
    site.plugin("acme", source)
    site.plugin("healthy")
    given = installed(site)
    error = broken(given)
    assert isinstance(error, PluginLoadError)
    assert said in error.what
    assert given.available_reader_names() == ["healthy"]


def test_the_plugins_own_module_missing_is_told_from_something_missing_in_it(site: Site) -> None:
    site.distribution("acme-dist", {"acme": "acme_gone.plugin"})
    assert "its own module 'acme_gone' is not there" in broken(installed(site)).what


def test_a_submodule_missing_in_the_plugins_package_is_its_own_module(site: Site) -> None:
    site.module("acme_pkg.__init__", "VALUE = 1\n")
    site.distribution("acme-dist", {"acme": "acme_pkg.plugin"})
    assert "its own module 'acme_pkg.plugin' is not there" in broken(installed(site)).what


def test_an_attribute_missing_in_the_plugins_module_is_said(site: Site) -> None:
    site.module("acme_attr", "VALUE = 1\n")
    site.distribution("acme-dist", {"acme": "acme_attr:PLUGIN"})
    assert "AttributeError: module 'acme_attr' has no attribute 'PLUGIN'" in broken(installed(site)).what


def test_an_entry_point_may_name_an_object_of_the_module(site: Site) -> None:
    site.module("acme_object", PLUGIN.format(name="acme") + "\nimport sys\nPLUGIN = sys.modules[__name__]\n")
    site.distribution("acme-dist", {"acme": "acme_object:PLUGIN"})
    assert installed(site).available_reader_names() == ["acme"]


@pytest.mark.parametrize("value", ["not a module!", ":", "9lives", "."])
def test_an_entry_point_that_is_no_reference_is_listed_and_hurts_nobody(site: Site, value: str) -> None:
    where = site.distribution("acme-dist", {"acme": value})
    site.plugin("healthy")
    given = installed(site)
    assert given.available_reader_names() == ["healthy"]
    report = given.report()
    # importlib_metadata checks values when it parses them, or when it loads, according to its version.
    assert list(report["broken"]) == ["acme"] or [str(where)] == [item["location"] for item in report["unreadable"]]


def test_the_error_names_distribution_version_and_a_command(site: Site) -> None:
    site.plugin("acme", "raise ValueError('x')", distribution="acme-dist")
    error = broken(installed(site))
    assert "reader 'acme' of acme-dist 1.0 is broken" in error.what
    assert error.fix == "Mend or remove it: pip install --force-reinstall acme-dist"
    assert error.distribution == "acme-dist"


def test_a_plugin_that_wants_a_name_of_a_newer_core_says_upgrade_core(site: Site) -> None:
    site.plugin("acme", "from weight_readers import FromTheFuture\n")
    assert broken(installed(site)).fix == "Upgrade core: pip install --upgrade weight-readers"


def test_a_broken_plugin_is_listed_with_its_traceback(site: Site) -> None:
    site.plugin("acme", "def go():\n    raise ValueError('deep')\ngo()\n")
    listed = installed(site).report()["broken"]["acme"]
    assert (listed["distribution"], listed["version"], listed["error"]) == ("acme-dist", "1.0", "PluginLoadError")
    assert "acme_plugin.py" in listed["traceback"]
    assert "in go" in listed["traceback"]
    assert "ValueError: deep" in listed["traceback"]


def test_each_raise_is_a_fresh_error_with_the_cause(site: Site) -> None:
    site.plugin("acme", "raise ValueError('x')")
    given = installed(site)
    first, second = broken(given), broken(given)
    assert first is not second
    assert isinstance(second.__cause__, ValueError)
    depth, trace = 0, second.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 6


PANIC = "class Panic(BaseException):\n    pass\nraise Panic('at src/lib.rs')\n"
UNPRINTABLE = "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Mute\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (PANIC, "importing it raised Panic: at src/lib.rs"),
        (UNPRINTABLE, "importing it raised Mute: <unprintable>"),
        ("import asyncio; raise asyncio.CancelledError", "importing it raised CancelledError"),
        ("raise ImportError('x', name=7)", "importing it raised ImportError: x"),
        ("raise ModuleNotFoundError('x', name=object())", "importing it raised ModuleNotFoundError: x"),
        ("raise ValueError('\\udcff')", "importing it raised ValueError: \\udcff"),
    ],
)
def test_whatever_an_import_raises_breaks_that_plugin_alone(site: Site, source: str, said: str) -> None:
    site.plugin("acme", source)
    site.plugin("healthy")
    given = installed(site)
    assert said in broken(given).what
    assert given.available_reader_names() == ["healthy"]
    json.dumps(given.report(), ensure_ascii=False).encode()


def test_a_message_without_end_is_cut(site: Site) -> None:
    site.plugin("acme", "raise ValueError('x' * 10**6)")
    given = installed(site)
    assert len(broken(given).what) < 1200
    assert "(1000000 characters)" in broken(given).what
    assert len(given.report()["broken"]["acme"]["traceback"]) < 21_000


def test_an_interrupt_is_not_taken_for_a_broken_plugin(site: Site) -> None:
    site.plugin("acme", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        installed(site).available_reader_names()


# --- hooks -----------------------------------------------------------------------------------------------------


def test_a_misspelt_hook_is_a_broken_plugin() -> None:
    class Misspelt(Plugin):
        @hookimpl
        def weight_readers_chek(self, request: Request, environment: Environment) -> None: ...

    error = broken(registry(Misspelt()))
    assert isinstance(error, PluginContractError)
    assert "unknown hook 'weight_readers_chek'" in error.what


def test_a_hook_with_wrong_arguments_is_a_broken_plugin() -> None:
    class Wrong(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request, machine: Environment) -> None: ...

    error = broken(registry(Wrong()))
    assert isinstance(error, PluginContractError)
    assert "machine" in error.what


def test_a_hook_may_take_fewer_arguments() -> None:
    class Fewer(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request) -> Declined | None:
            return Declined(reason="no") if request.format else None

    given = registry(Fewer())
    assert given.explain().chosen == "acme"
    assert given.explain(Request(format="safetensors")).chosen is None


@pytest.mark.parametrize("hook", ["weight_readers_describe", "weight_readers_create", "weight_readers_check"])
def test_a_hook_without_its_marker_is_a_broken_plugin(hook: str) -> None:
    def forgotten(self: object, **arguments: object) -> None: ...

    kind = type("Forgotten", (Plugin,), {hook: forgotten})
    error = broken(registry(kind()))
    assert isinstance(error, PluginContractError)
    assert f"its {hook} lacks @weight_readers.hookimpl" in error.what


@pytest.mark.parametrize("missing", ["weight_readers_describe", "weight_readers_create"])
def test_a_plugin_without_a_hook_that_it_must_have_is_broken(site: Site, missing: str) -> None:
    source = PLUGIN.format(name="acme").replace(f"@hookimpl\ndef {missing}", "def unrelated")
    site.plugin("acme", source)
    error = broken(installed(site))
    assert isinstance(error, PluginContractError)
    assert f"it has no {missing}" in error.what
    assert error.fix == "Mend or remove it: pip install --upgrade acme-dist"


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:///home/me/my%20reader", "/home/me/my reader"),
        ("https://example.org/acme-1.0.tar.gz", None),
        ("file:///tmp/acme_dist-1.0-py3-none-any.whl", None),
    ],
)
def test_an_author_is_told_to_mend_the_folder_and_not_to_upgrade(site: Site, url: str, folder: str | None) -> None:
    """What pip writes of an install that is no release (PEP 610)."""
    metadata = site.plugin("acme", "from weight_readers import hookimpl")
    (metadata / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    fix = broken(installed(site)).fix
    if folder is None:
        assert fix == "Mend or remove it: pip install --upgrade acme-dist"
    else:
        assert fix == f"Mend it in {folder}, from which it was installed, or remove it: pip uninstall acme-dist"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_record_of_an_install_that_says_nothing_is_no_error(site: Site, text: str) -> None:
    metadata = site.plugin("acme", "from weight_readers import hookimpl")
    (metadata / "direct_url.json").write_text(text)
    assert broken(installed(site)).fix == "Mend or remove it: pip install --upgrade acme-dist"


def test_an_object_that_is_no_plugin_at_all_is_broken() -> None:
    assert "it has no weight_readers_" in broken(registry(acme=object())).what


def test_hooks_of_two_plugins_are_never_mixed() -> None:
    class Vetoing(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request) -> Declined:
            return Declined(reason="never")

    given = registry(Vetoing("a"), Plugin("b"))
    assert given.available_reader_names() == ["b"]
    assert [given.describe_reader(name).name for name in "ab"] == ["a", "b"]
    assert given.select().info.name == "b"


def test_one_object_may_serve_two_registries() -> None:
    plugin = Plugin()
    assert registry(plugin).available_reader_names() == registry(plugin).available_reader_names() == ["acme"]


# --- describe --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rubbish", [None, {}, "acme", object, 7])
def test_a_description_that_is_no_reader_info_is_a_broken_plugin(rubbish: object) -> None:
    class Rubbish(Plugin):
        @hookimpl
        def weight_readers_describe(self) -> Any:
            return rubbish

    error = broken(registry(acme=Rubbish()))
    assert isinstance(error, PluginContractError)
    assert f"its describe hook returned {rubbish!r}, not a ReaderInfo" in error.what


@pytest.mark.parametrize("raised", [ValueError("bad"), SystemExit(2), TypeError("unexpected keyword")])
def test_a_description_that_raises_is_a_broken_plugin(raised: BaseException) -> None:
    class Raising(Plugin):
        @hookimpl
        def weight_readers_describe(self) -> Any:
            raise raised

    assert f"its describe hook raised {type(raised).__name__}: {raised}" in broken(registry(acme=Raising())).what


@pytest.mark.parametrize(("raised", "said"), FOREIGN_ERRORS, ids=FOREIGN_IDS)
def test_whatever_a_description_raises_breaks_that_plugin_alone(raised: BaseException, said: str) -> None:
    class Raising(Plugin):
        @hookimpl
        def weight_readers_describe(self) -> Any:
            raise raised

    given = registry(Plugin("healthy"), acme=Raising())
    assert f"its describe hook raised {said}" in broken(given).what
    assert given.available_reader_names() == ["healthy"]


def test_a_description_that_cannot_be_put_into_text_is_a_broken_plugin() -> None:
    class Answering(Plugin):
        @hookimpl
        def weight_readers_describe(self) -> Any:
            return Unprintable()

    assert "returned <unprintable Unprintable>, not a ReaderInfo" in broken(registry(acme=Answering())).what


def test_a_plugin_object_that_cannot_be_looked_at_is_broken() -> None:
    assert "registering it raised RuntimeError" in broken(registry(acme=Unprintable())).what


def test_a_plugin_that_describes_another_name_is_broken() -> None:
    error = broken(registry(acme=Plugin("other")))
    assert isinstance(error, PluginContractError)
    assert "it describes itself as 'other'" in error.what


def test_a_plugin_of_a_newer_api_is_refused_and_core_is_what_to_upgrade() -> None:
    error = broken(registry(Plugin("acme", api_version=API_VERSION + 1)))
    assert isinstance(error, PluginVersionError)
    assert f"written for API version {API_VERSION + 1}, and this core speaks {API_VERSION}" in error.what
    assert error.fix == "Upgrade core: pip install --upgrade weight-readers"


# --- check -----------------------------------------------------------------------------------------------------


def candidate_after_check(answer: Any) -> Any:
    class Checking(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request, environment: Environment) -> Any:
            return answer(request, environment)

    return registry(Checking()).explain(Request(engine={"lora": True}), environment=Environment(cpus=3)).candidates[0]


def test_a_veto_is_a_rejection_with_its_reason_and_mend() -> None:
    candidate = candidate_after_check(lambda request, environment: Declined(reason="no lora", fix="Merge it"))
    assert (candidate.code, candidate.reason, candidate.fix) == ("vetoed", "no lora", "Merge it")


def test_a_check_sees_request_and_machine() -> None:
    candidate = candidate_after_check(lambda request, machine: Declined(reason=f"{request.engine} {machine.cpus}"))
    assert candidate.reason == "{'lora': True} 3"


@pytest.mark.parametrize("raised", [RuntimeError("oops"), SystemExit("oops")])
def test_a_check_that_raises_is_a_veto_that_says_so(raised: BaseException) -> None:
    def check(request: Request, environment: Environment) -> None:
        raise raised

    candidate = candidate_after_check(check)
    assert candidate.code == "check-failed"
    assert candidate.reason == f"its check raised {type(raised).__name__}: oops"


@pytest.mark.parametrize(("raised", "said"), FOREIGN_ERRORS, ids=FOREIGN_IDS)
def test_whatever_a_check_raises_is_a_veto(raised: BaseException, said: str) -> None:
    def check(request: Request, environment: Environment) -> None:
        raise raised

    candidate = candidate_after_check(check)
    assert (candidate.code, candidate.reason) == ("check-failed", f"its check raised {said}")


def test_a_check_whose_answer_cannot_be_put_into_text_is_a_veto() -> None:
    candidate = candidate_after_check(lambda request, environment: Unprintable())
    assert candidate.reason == "its check returned <unprintable Unprintable>, not Declined or None"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_in_a_hook_or_in_a_text_is_let_through(stop: type[BaseException]) -> None:
    class Stopping(Exception):
        def __str__(self) -> str:
            raise stop

    for raised in (stop(), Stopping()):

        def check(request: Request, environment: Environment, raised: BaseException = raised) -> None:
            raise raised

        with pytest.raises(stop):
            candidate_after_check(check)


def test_a_check_that_answers_rubbish_is_a_veto_that_says_so() -> None:
    candidate = candidate_after_check(lambda request, environment: False)
    assert (candidate.code, candidate.reason) == ("check-failed", "its check returned False, not Declined or None")


def test_a_check_is_not_asked_where_the_declaration_says_no_already() -> None:
    class Asked(Plugin):
        @hookimpl
        def weight_readers_check(self, request: Request) -> None:
            assert request.format != "gguf"

    candidate = registry(Asked()).explain(Request(format="gguf")).candidates[0]
    assert candidate.code == "format"


# --- requires --------------------------------------------------------------------------------------------------


def test_a_reader_whose_backend_is_not_installed_is_rejected_with_the_command() -> None:
    needs = [Requirement(module="json", distribution="x"), Requirement(module="no_such.part", distribution="no-such")]
    given = registry(Plugin("acme", requires=needs))
    assert given.available_reader_names() == []
    candidate = given.explain().candidates[0]
    assert candidate.code == "backend-missing"
    assert candidate.reason == "needs the module 'no_such.part', which is not installed"
    assert candidate.fix == "Install it: pip install no-such"


def test_a_backend_is_no_remedy_for_a_reader_of_another_format() -> None:
    needs = [Requirement(module="no_such", distribution="no-such")]
    (candidate,) = registry(Plugin("acme", requires=needs)).explain(Request(format="gguf")).candidates
    assert (candidate.code, candidate.fix) == ("format", None)


def test_looking_for_a_backend_imports_nothing(site: Site) -> None:
    site.module("heavy_backend.__init__", "raise SystemExit('imported')")
    site.module("heavy_backend.part", "raise SystemExit('imported')")
    needs = [Requirement(module="heavy_backend.part", distribution="heavy")]
    assert registry(Plugin("acme", requires=needs)).available_reader_names() == ["acme"]


def test_a_backend_that_is_imported_already_without_a_spec_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_in_memory")
    monkeypatch.setitem(sys.modules, "made_in_memory", module)
    needs = [Requirement(module="made_in_memory", distribution="x")]
    assert registry(Plugin("acme", requires=needs)).available_reader_names() == ["acme"]


def test_a_finder_that_fails_on_a_backends_name_does_not_end_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "no_such":
                raise RuntimeError("a broken finder")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    given = registry(Plugin("acme", requires=[Requirement(module="no_such", distribution="x")]), Plugin("healthy"))
    assert given.available_reader_names() == ["healthy"]


def test_the_callers_word_on_modules_counts() -> None:
    given = registry(Plugin("acme", requires=[Requirement(module="json", distribution="x")]))
    without = Environment(has_module=lambda name: False)
    assert given.explain(environment=without).candidates[0].code == "backend-missing"


# --- create ----------------------------------------------------------------------------------------------------


class Creating(Plugin):
    """A plugin whose create hook does as it is told."""

    def __init__(self, name: str, create: Any, **fields: Any) -> None:
        super().__init__(name, **fields)
        self.create = create

    @hookimpl
    def weight_readers_create(self, options: Mapping[str, Any]) -> Any:
        return self.create(options)


def raising(error: BaseException) -> Any:
    def create(options: Mapping[str, Any]) -> Any:
        raise error

    return create


BACKEND_ERRORS = [ImportError("libcudart.so.12"), OSError("x"), RuntimeError("x"), SystemExit(1), ValueError("abi")]


@pytest.mark.parametrize("error", BACKEND_ERRORS, ids=repr)
def test_a_pick_whose_backend_fails_is_replaced_with_a_visible_warning(error: BaseException) -> None:
    given = registry(Creating("a", raising(error)), Plugin("b", fallback=True))
    with pytest.warns(ReaderFallbackWarning, match="'b' is used in place of 'a'") as caught:
        reader = given.select()
    assert reader.info.name == "b"
    (warning,) = [w.message for w in caught if isinstance(w.message, ReaderFallbackWarning)]
    assert (warning.asked, warning.used) == ("a", "b")
    assert f"its backend raised {type(error).__name__}" in warning.reason
    assert reader.selection is not None
    failed = reader.selection.candidate("a")
    assert failed is not None
    assert failed.code == "failed"


@pytest.mark.parametrize("error", BACKEND_ERRORS, ids=repr)
def test_a_pick_whose_backend_fails_is_an_error_under_strict(error: BaseException) -> None:
    given = registry(Creating("a", raising(error)), Plugin("b", fallback=True))
    with pytest.raises(PluginLoadError) as caught:
        given.select(strict=True)
    assert caught.value.__cause__ is error
    assert caught.value.selection is not None
    assert caught.value.selection.chosen == "a"


def test_a_failure_to_start_is_not_remembered() -> None:
    class Passing(Plugin):
        attempts = 0

        @hookimpl
        def weight_readers_create(self, options: Mapping[str, Any]) -> Any:
            self.attempts += 1
            if self.attempts == 1:
                raise RuntimeError("no credentials yet")
            return Reader(self.info)

    given = registry(Passing("a"), Plugin("b", fallback=True))
    with pytest.warns(ReaderFallbackWarning):
        assert given.select().info.name == "b"
    assert given.select().info.name == "a"


def test_where_every_backend_fails_the_error_lists_all() -> None:
    given = registry(Creating("a", raising(OSError("one"))), Creating("b", raising(OSError("two"))))
    with pytest.raises(NoSuitableReaderError, match=r"a: .*OSError: one.*b: .*OSError: two") as caught:
        given.select()
    assert isinstance(caught.value.__cause__, PluginLoadError)


def test_a_bad_value_of_an_option_goes_to_the_caller() -> None:
    error = ValueError("num_threads must be at least 1, not 0")
    given = registry(Creating("a", raising(error), options={"num_threads"}), Plugin("b", options={"num_threads"}))
    with pytest.raises(ValueError, match="num_threads must be at least 1") as caught:
        given.select(Request(options={"num_threads": 0}))
    assert caught.value is error


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_a_bad_value_of_a_setting_goes_to_the_caller(kind: type[Exception]) -> None:
    error = kind("num_threads must be at most 1024, not 1000000000")
    given = registry(Creating("a", raising(error), options={"num_threads"}), Plugin("b", fallback=True))
    with pytest.raises(kind, match="num_threads must be at most") as caught:
        given.select(Request(settings={"num_threads": 10**9}))
    assert caught.value is error


def test_a_setting_that_the_reader_does_not_take_is_no_cause_of_its_failure() -> None:
    given = registry(Creating("a", raising(ValueError("abi"))), Plugin("b", fallback=True))
    with pytest.warns(ReaderFallbackWarning, match="its backend raised ValueError: abi"):
        assert given.select(Request(settings={"num_threads": 2})).info.name == "b"


def test_an_option_that_policy_set_is_no_cause_of_a_failure() -> None:
    mapped = Creating("a", raising(ValueError("abi")), lifetime=Lifetime.MAPPED, options={"copy"})
    for settings in ({}, {"copy": False}):  # which policy overrules
        with pytest.warns(ReaderFallbackWarning, match="its backend raised ValueError: abi"):
            reader = registry(mapped, Plugin("b", fallback=True)).select(Request(owned=True, settings=settings))
        assert reader.info.name == "b"


@pytest.mark.parametrize(("raised", "said"), FOREIGN_ERRORS, ids=FOREIGN_IDS)
def test_whatever_create_raises_is_a_backend_that_fails(raised: BaseException, said: str) -> None:
    given = registry(Creating("a", raising(raised)), Plugin("b", fallback=True))
    with pytest.warns(ReaderFallbackWarning, match=f"its backend raised {said}"):
        assert given.select().info.name == "b"


def test_a_reader_that_cannot_be_looked_at_is_replaced() -> None:
    given = registry(Creating("a", lambda options: Unprintable()), Plugin("b", fallback=True))
    with pytest.warns(ReaderFallbackWarning, match="looking at its reader raised RuntimeError: no member"):
        assert given.select().info.name == "b"


def test_a_reader_whose_description_cannot_be_put_into_text_is_replaced() -> None:
    reader = Reader(info("a"))
    reader.info = type("Odd", (), {"__repr__": Unprintable.__repr__})()
    given = registry(Creating("a", lambda options: reader), Plugin("b", fallback=True))
    with pytest.warns(ReaderFallbackWarning, match="Reader, described as <unprintable Odd>"):
        assert given.select().info.name == "b"


def test_options_reach_the_reader() -> None:
    reader: Any = registry(Plugin("a", options={"num_threads"})).select(Request(options={"num_threads": 2}))
    assert reader.options == {"num_threads": 2}


def test_owned_tensors_reach_a_mapped_reader_as_its_option() -> None:
    given = registry(Plugin("a", lifetime=Lifetime.MAPPED, options={"copy"}))
    reader: Any = given.select(Request(owned=True))
    assert reader.options == {"copy": True}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "NoneType, which lacks info, selection, read_meta, iter_weights"),
        (type("Half", (), {"info": info("a"), "selection": None})(), "Half, which lacks read_meta, iter_weights"),
        (Reader(info("other")), "Reader, described as ReaderInfo(name='other'"),
        (Reader(info("a", features={Feature.READ_INTO})), "Reader, which declares read_into and lacks it"),
    ],
)
def test_what_create_returns_has_to_be_the_reader(returned: object, said: str) -> None:
    with pytest.raises(PluginContractError) as caught:
        registry(Creating("a", lambda options: returned)).select(strict=True)
    assert f"its create hook returned {said}" in caught.value.what


def test_a_reader_that_comes_without_what_it_promised_is_replaced() -> None:
    promised = {"features": {Feature.SLICES}}
    given = registry(Creating("a", lambda options: Reader(info("a")), **promised), Plugin("b", **promised))
    with pytest.warns(ReaderFallbackWarning, match="it promised slices and its reader came without"):
        assert given.select(Request(needs={Feature.SLICES})).info.name == "b"


def test_a_reader_that_takes_no_selection_breaks_the_contract() -> None:
    class Frozen(Reader):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "selection" and value is not None:
                raise AttributeError("frozen")
            super().__setattr__(name, value)

    with pytest.raises(PluginContractError, match="takes no selection: AttributeError: frozen"):
        registry(Creating("a", lambda options: Frozen(info("a")))).select(strict=True)


# --- quant methods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"), [(["gguf"], "its quant-method hook listed 'gguf'"), (7, "its quant-method hook raised Type")]
)
def test_quant_methods_that_are_none_break_the_contract(answer: object, said: str) -> None:
    class Listing(Plugin):
        @hookimpl
        def weight_readers_quant_methods(self) -> Any:
            return answer

    assert said in broken(registry(Listing())).what


@pytest.mark.parametrize(("raised", "said"), FOREIGN_ERRORS, ids=FOREIGN_IDS)
def test_whatever_the_quant_method_hook_raises_breaks_that_plugin_alone(raised: BaseException, said: str) -> None:
    class Listing(Plugin):
        @hookimpl
        def weight_readers_quant_methods(self) -> Any:
            raise raised

    given = registry(Listing(), Plugin("healthy"))
    assert f"its quant-method hook raised {said}" in broken(given).what
    assert given.available_reader_names() == ["healthy"]


def test_a_quant_method_that_cannot_be_put_into_text_breaks_the_contract() -> None:
    class Listing(Plugin):
        @hookimpl
        def weight_readers_quant_methods(self) -> Any:
            return [Unprintable()]

    assert "its quant-method hook listed <unprintable Unprintable>" in broken(registry(Listing())).what


def test_quant_methods_may_come_from_a_generator() -> None:
    class Listing(Plugin):
        @hookimpl
        def weight_readers_quant_methods(self) -> Any:
            yield QuantMethodInfo(name="q", weight_types={"Q4_K"}, device_types={"cpu"}, factory="m:f")

    assert [method.name for method in registry(Listing()).available_quant_methods()] == ["q"]


def test_an_unknown_name_is_no_broken_plugin() -> None:
    with pytest.raises(UnknownReaderError):
        registry(Plugin()).describe_reader("xyzzy")
