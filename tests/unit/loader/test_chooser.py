# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.files import write_sharded
from support.plugins import Site

import weight_readers
from weight_readers import ReaderFallbackWarning, ReaderUnavailableError
from weight_readers_loader import open_checkpoint
from weight_readers_loader.chooser import Chooser

LAME = """
from weight_readers import Feature, Lifetime, ReaderInfo, hookimpl

INFO = ReaderInfo(
    name="lame", formats={"safetensors"}, lifetime=Lifetime.OWNED, features=frozenset({Feature.KEY_FILTER})
)

@hookimpl
def weight_readers_describe():
    return INFO

@hookimpl
def weight_readers_create(options):
    raise OSError("libfast.so: cannot open shared object file")
"""


@pytest.fixture
def lame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reader that policy prefers, and whose backend fails when it is started."""
    site = Site(tmp_path / "site")
    site.plugin("lame", LAME)
    monkeypatch.syspath_prepend(str(site.folder))
    monkeypatch.setenv("WEIGHT_READERS_PREFER", "lame,safetensors")
    weight_readers.refresh()
    yield
    monkeypatch.undo()
    site.forget_modules()
    weight_readers.refresh()


def load_in_every_way(folder: Path, reader: str | None) -> list[str]:
    """The warnings of one checkpoint, in the order they came."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = open_checkpoint(folder, reader=reader)
        checkpoint.state_dict()
        checkpoint.state_dict(owned=True)
        checkpoint.state_dict(key_filter=lambda name: name == "t1")
        assert checkpoint.report is not None
        assert checkpoint.report.reader == "safetensors"
        checkpoint.load_into({"t1": torch.zeros(2), "t2": torch.zeros(2)})
        assert len(dict(checkpoint.iter_weights(owned=True))) == 2
    assert {w.category for w in caught} <= {ReaderFallbackWarning}
    assert {w.filename for w in caught} <= {__file__}
    return [str(w.message) for w in caught]


def test_a_stand_in_for_the_reader_that_was_asked_for_is_announced_once(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (said,) = load_in_every_way(tmp_path, next(filter(_absent, ("threaded", "runai_streamer")), "pt"))
    assert said.startswith("weight reader 'safetensors' is used in place of")


def _absent(name: str) -> bool:
    return name not in weight_readers.available_reader_names()


def test_a_stand_in_for_a_reader_that_failed_to_start_is_announced_once(tmp_path: Path, lame: None) -> None:
    write_sharded(tmp_path / "m")
    (said,) = load_in_every_way(tmp_path / "m", None)
    assert "in place of 'lame'" in said
    assert "libfast.so" in said


def test_the_selection_of_each_operation_says_why_the_stand_in_reads(tmp_path: Path, lame: None) -> None:
    write_sharded(tmp_path / "m")
    with pytest.warns(ReaderFallbackWarning):
        checkpoint = open_checkpoint(tmp_path / "m")
    checkpoint.state_dict(owned=True)
    assert checkpoint.report is not None
    selection = checkpoint.report.selection
    lame_one = selection.candidate("lame")
    assert lame_one is not None
    assert (selection.chosen, lame_one.accepted, "libfast.so" in lame_one.reason) == ("safetensors", False, True)
    assert selection.request.owned


def test_strict_raises_in_place_of_a_warning(tmp_path: Path, lame: None) -> None:
    write_sharded(tmp_path / "m")
    with pytest.raises(ReaderUnavailableError, match=r"libfast\.so"):
        open_checkpoint(tmp_path / "m", strict=True)


def test_equal_needs_share_a_reader_and_other_settings_have_their_own() -> None:
    chooser = Chooser(format="safetensors", reader="safetensors")
    one, first = chooser.pick()
    two, second = chooser.pick(kept_on_host=True, device="cpu")
    owned, _ = chooser.pick(owned=True)
    assert one is two
    assert owned is not one
    assert (first.request.kept_on_host, second.request.kept_on_host) == (False, True)
    assert chooser.pick(owned=True)[0] is owned


def test_explaining_makes_no_reader(lame: None) -> None:
    chooser = Chooser(format="safetensors", reader="lame")
    assert chooser.explain().chosen == "lame"


def test_looking_at_the_selection_of_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    first = checkpoint.selection
    checkpoint.state_dict(owned=True)
    assert checkpoint.selection is first
    assert checkpoint.report is not None
    assert checkpoint.report.selection.request.owned
