# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from weight_readers import Environment, Request, Selection, errors
from weight_readers.errors import (
    BudgetInfeasibleError,
    CheckpointError,
    CheckpointProblems,
    ConfigError,
    DistributedError,
    DuplicateReaderError,
    EmptyFileError,
    FormatConflictError,
    HeaderError,
    LfsPointerError,
    NoSuitableQuantMethodError,
    NoSuitableReaderError,
    PluginContractError,
    PluginLoadError,
    PluginVersionError,
    ReaderFallbackWarning,
    ReaderUnavailableError,
    ShapeError,
    TargetMismatchError,
    TensorLayoutError,
    TrailingBytesError,
    TruncatedFileError,
    UnknownReaderError,
    WeightReadersError,
)

NONE_FITS = Selection(request=Request(format="gguf"), environment=Environment(cpus=2))

CHECKPOINT_ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CheckpointError) and kind is not CheckpointProblems
]

ONE_OF_EACH = [
    UnknownReaderError("x", available=["safetensors"], fix="Did you mean 'y'?"),
    ConfigError("w", option="prefetch", source="engine", fix="f"),
    DuplicateReaderError("x", distributions=["a 1.0", "b 2.0"], fix="pip uninstall b"),
    FormatConflictError("w", claims=["a", "b"], fix="f"),
    NoSuitableReaderError("none", selection=NONE_FITS, fix="f"),
    BudgetInfeasibleError("b", selection=NONE_FITS, needed=3, budget=2, largest_tensor=1, fix="f"),
    NoSuitableQuantMethodError("Q4_K", "cuda", available=["gguf on cpu"], fix="f"),
    *(
        kind("w", name="x", fix="f", code="broken", distribution="d", selection=NONE_FITS)
        for kind in (ReaderUnavailableError, PluginLoadError, PluginContractError, PluginVersionError)
    ),
    *(kind("w", rank=1, fix="f") for kind in (DistributedError, *DistributedError.__subclasses__())),
    TargetMismatchError("w", fix="f", missing=["a"], unexpected=["b"], shapes=[("c", "[1]", "[2]")]),
    *(kind("w", path="p", tensor="t", expected=1, found=2, fix="f") for kind in CHECKPOINT_ERRORS),
    CheckpointProblems([TruncatedFileError("short", path="a"), LfsPointerError("pointer", path="b")], path="p"),
    ReaderFallbackWarning(asked="a", used="b", reason="r", fix="f"),
]


def _drawn_tree() -> dict[str, tuple[str, str | None]]:
    """Name -> (parent, builtin) as the text on top of the module draws it."""
    drawn: dict[str, tuple[str, str | None]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name, _, rest = line.lstrip("│├└─ ").partition(" ")
        if not name.isidentifier() or not hasattr(errors, name):
            continue
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        above[depth:] = [name]
        builtin = rest.strip().partition(")")[0][1:] if rest.strip().startswith("(") else None
        drawn[name] = (above[depth - 1] if depth else "", builtin)
    return drawn


TREE = _drawn_tree()


def test_the_tree_on_top_of_the_module_draws_every_class() -> None:
    public = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, BaseException) and kind.__module__.startswith("weight_readers.")
    }
    assert public == set(TREE)


@pytest.mark.parametrize(("name", "place"), TREE.items())
def test_a_class_is_where_the_tree_draws_it(name: str, place: tuple[str, str | None]) -> None:
    parent, builtin = place
    bases = [kind.__name__ for kind in getattr(errors, name).__mro__]
    assert {parent, builtin} - {"", None} <= set(bases)


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in TREE if name != "WeightReadersError"])
def test_every_error_can_be_caught_as_a_builtin(kind: type[BaseException]) -> None:
    plain = {Exception, BaseException, object}
    assert [base for base in kind.__mro__ if base.__module__ == "builtins" and base not in plain]


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_an_error_pickles_with_its_fields(error: Any) -> None:
    clone = pickle.loads(pickle.dumps(error))
    assert type(error) is type(clone)
    assert str(error) == str(clone)
    assert error.args == clone.args
    assert _fields(error) == _fields(clone)


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_a_copied_error_keeps_its_fields(error: Any) -> None:
    assert _fields(error) == _fields(copy.copy(error))


def _fields(error: Any) -> dict[str, Any]:
    names = {name for name in [*vars(error), "name"] if hasattr(error, name)}
    fields = {name: getattr(error, name) for name in names}
    return {name: str(value) if name == "_problems" else value for name, value in fields.items()}


@pytest.mark.parametrize("kind", CHECKPOINT_ERRORS)
def test_a_checkpoint_error_says_what_where_expected_found_and_the_mend_in_that_order(
    kind: type[CheckpointError],
) -> None:
    error = kind("the file ends early", path="a/b", tensor="t", expected="8 bytes", found="4", fix="Fetch it again")
    assert str(error) == "the file ends early: a/b, tensor 't' (expected 8 bytes, found 4). Fetch it again"


def test_what_is_not_known_is_not_said() -> None:
    assert str(CheckpointError("the file is empty", path="a/b")) == "the file is empty: a/b"


def test_a_zero_is_said() -> None:
    assert str(CheckpointError("w", path="p", expected=0, found=1)) == "w: p (expected 0, found 1)"


def test_any_other_error_says_what_and_the_mend() -> None:
    assert str(WeightReadersError("w")) == "w"
    assert str(WeightReadersError("w", fix="Do that")) == "w. Do that"


def test_an_unknown_reader_names_what_is_available() -> None:
    error = UnknownReaderError("x", available=["gguf", "safetensors"])
    assert str(error) == "unknown weight reader 'x'; available: ['gguf', 'safetensors']"


def test_a_duplicate_names_all_claimants_and_a_mend() -> None:
    said = str(DuplicateReaderError("x", distributions=["a 1.0", "b 2.0"]))
    assert "the name 'x' is registered by more than one distribution: a 1.0 and b 2.0" in said
    assert said.endswith("Uninstall all but one of them")


def test_a_fallback_warning_says_used_asked_reason_and_mend() -> None:
    warning = ReaderFallbackWarning(asked="threaded", used="safetensors", reason="it is absent", fix="Install it")
    assert str(warning) == "weight reader 'safetensors' is used in place of 'threaded': it is absent. Install it"


def test_no_problem_raises_nothing() -> None:
    CheckpointProblems.raise_any([], path="p")


def test_one_problem_is_raised_as_itself() -> None:
    problem = LfsPointerError("pointer", path="b")
    with pytest.raises(LfsPointerError) as caught:
        CheckpointProblems.raise_any([problem], path="p")
    assert problem is caught.value


AGAIN = "Download the file again, or write it again with the tool that made it"


@pytest.mark.parametrize(
    "kind", [EmptyFileError, HeaderError, ShapeError, TensorLayoutError, TrailingBytesError, TruncatedFileError]
)
def test_damage_is_mended_by_a_sound_file_where_nothing_better_is_known(kind: type[CheckpointError]) -> None:
    assert kind("damaged", path="a").fix == AGAIN
    assert kind("damaged", path="a", fix="Do this").fix == "Do this"


def test_several_problems_are_raised_together_and_each_is_said() -> None:
    with pytest.raises(CheckpointProblems) as caught:
        CheckpointProblems.raise_any([LfsPointerError("one", path="a"), TruncatedFileError("two", path="b")], path="p")
    assert str(caught.value).splitlines() == ["2 problems: p", "  - one: a", f"  - two: b. {AGAIN}"]


def test_a_single_error_lists_itself_as_its_problems() -> None:
    error = LfsPointerError("one", path="a")
    assert (error,) == error.problems


def test_a_checkpoint_error_goes_to_json_as_plain_data() -> None:
    error = TruncatedFileError("short", path="a", tensor="t", expected=[1, 2], found=3)
    assert error.to_json() == {
        "error": "TruncatedFileError",
        "what": "short",
        "path": "a",
        "tensor": "t",
        "expected": "[1, 2]",
        "found": 3,
        "fix": AGAIN,
    }
