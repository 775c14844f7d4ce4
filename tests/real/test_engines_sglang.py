# SPDX-License-Identifier: Apache-2.0
"""`examples/engines`: readers as SGLang calls them: its protocol as its text has it, and itself where installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import pytest
import torch
from safetensors.torch import save_file
from support.engines import run_with
from weight_readers_engines.sglang import reader_class, select_weight_reader

from weight_readers import ReaderFallbackWarning, UnknownReaderError

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}
READERS = ("runai_streamer", "safetensors", "threaded")


@runtime_checkable
class SGLangProtocol(Protocol):
    """Of sglang 0.5.23, ``multimodal_gen/runtime/loader/weight_readers/base.py``."""

    name: ClassVar[str]
    supports_key_filter: ClassVar[bool]
    retains_file_mapping: ClassVar[bool]

    @classmethod
    def is_available(cls) -> bool: ...

    def iter_weights(
        self,
        files: list[str],
        *,
        device: str,
        to_cpu: bool,
        key_filter: Callable[[str], bool] | None = None,
        clone_tensors: bool = True,
        show_progress: bool = True,
    ) -> Iterator[tuple[str, torch.Tensor]]: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", READERS)
def test_every_reader_is_what_the_protocol_says(name: str) -> None:
    made = reader_class(name)
    assert made.is_available()
    assert isinstance(made(), SGLangProtocol)
    expected, found = (inspect.signature(each.iter_weights) for each in (SGLangProtocol, made))
    assert [(p.name, p.kind, p.default) for p in expected.parameters.values()] == [
        (p.name, p.kind, p.default) for p in found.parameters.values()
    ]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("clone", [False, True])
def test_tensors_bound_for_the_host_stay_valid(name: str, clone: bool, file: Path) -> None:
    weights = reader_class(name)().iter_weights(
        [str(file)], device="cuda", to_cpu=True, clone_tensors=clone, show_progress=False
    )
    found = dict(weights)
    assert TENSORS.keys() == found.keys()
    assert all(torch.equal(TENSORS[tensor], found[tensor]) for tensor in TENSORS)


def test_a_key_filter_reaches_the_reader(file: Path) -> None:
    chosen = select_weight_reader(needs_key_filter=True)
    weights = chosen.iter_weights(
        [str(file)], device="cpu", to_cpu=True, key_filter="b.weight".__eq__, show_progress=False
    )
    assert [name for name, _ in weights] == ["b.weight"]


def test_progress_is_shown_as_asked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = reader_class("safetensors")()
    for shown in (False, True):
        list(reader.iter_weights([str(file)], device="cpu", to_cpu=True, show_progress=shown))
        assert ("32.0/32.0" in capsys.readouterr().err) is shown


def test_an_explicit_request_is_honoured_and_an_unknown_name_refused() -> None:
    assert select_weight_reader(requested="safetensors").name == "safetensors"
    with pytest.raises(UnknownReaderError, match="unknown weight reader"):
        select_weight_reader(requested="does_not_exist")


def test_a_stand_in_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHT_READERS_DISABLE", "threaded")
    import weight_readers

    weight_readers.refresh()
    try:
        with pytest.warns(ReaderFallbackWarning, match="threaded"):
            assert select_weight_reader(requested="threaded").name == "safetensors"
    finally:
        monkeypatch.undo()
        weight_readers.refresh()


def test_sglang_itself_takes_the_readers_and_loads_the_same_through_them(file: Path) -> None:
    script = """
import sys, torch
from sglang.multimodal_gen.runtime.loader import weight_readers as theirs, weight_utils
from weight_readers_engines import sglang as ours

assert all(isinstance(ours.reader_class(name)(), theirs.WeightReader) for name in ("safetensors", "threaded"))
before = dict(weight_utils.safetensors_weights_iterator([sys.argv[1]], to_cpu=True))
ours.install()
after = dict(weight_utils.safetensors_weights_iterator([sys.argv[1]], to_cpu=True))
print(sorted(before) == sorted(after) and all(torch.equal(before[n], after[n]) for n in before), len(before))
"""
    assert run_with("sglang", script, file) == "True 2"
