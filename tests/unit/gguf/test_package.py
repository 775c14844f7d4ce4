# SPDX-License-Identifier: Apache-2.0
"""The names that the package offers."""

from __future__ import annotations

import pytest

import weight_readers_gguf


def test_what_is_offered_is_sorted_and_there() -> None:
    assert sorted(weight_readers_gguf.__all__) == weight_readers_gguf.__all__
    for name in weight_readers_gguf.__all__:
        assert getattr(weight_readers_gguf, name).__name__ == name
        assert name in dir(weight_readers_gguf)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = weight_readers_gguf.nothing
