# SPDX-License-Identifier: Apache-2.0
"""What the plugin declares and makes."""

from __future__ import annotations

import inspect
import os

import pytest

from weight_readers import Environment, ReadsInto, Request, WeightReader
from weight_readers_threaded import plugin
from weight_readers_threaded.reader import ThreadedReader


def test_the_declared_options_are_those_of_the_constructor() -> None:
    assert plugin.INFO.options == set(inspect.signature(ThreadedReader).parameters)


def test_the_reader_is_made_with_its_options() -> None:
    reader = plugin.weight_readers_create({"num_threads": 2})
    assert isinstance(reader, WeightReader)
    assert isinstance(reader, ReadsInto)
    with pytest.raises(ValueError, match="num_threads"):
        plugin.weight_readers_create({"num_threads": 0})


def test_a_platform_without_preadv_is_declined_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin.weight_readers_check(Request(), Environment()) is None
    monkeypatch.delattr(os, "preadv")
    declined = plugin.weight_readers_check(Request(), Environment())
    assert declined is not None
    assert (declined.reason, declined.fix) == ("this platform has no preadv", "Use reader 'safetensors'")
