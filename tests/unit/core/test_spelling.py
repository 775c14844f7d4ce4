# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from weight_readers.spelling import closest, did_you_mean


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("safetensor", "Did you mean 'safetensors'?"),
        ("SAFETENSORS", "Did you mean 'safetensors'?"),
        (" safetensors ", "Did you mean 'safetensors'?"),
        ("RUNAI-STREAMER", "Did you mean 'runai_streamer'?"),
        ("GGFU", "Did you mean 'gguf'?"),
        ("xyzzy", None),
    ],
)
def test_a_close_name_is_asked_for_whatever_its_case_and_blanks(name: str, said: str | None) -> None:
    assert said == did_you_mean(name, {"safetensors", "gguf", "runai_streamer"})


def test_of_names_that_differ_in_case_alone_the_first_is_meant() -> None:
    assert closest("a.Weight", ["a.weight", "a.WEIGHT"]) == "a.WEIGHT"


def test_how_close_a_name_has_to_be_is_said() -> None:
    assert (closest("thread", ["num_threads"]), closest("thread", ["num_threads"], 0.8)) == ("num_threads", None)
