# SPDX-License-Identifier: Apache-2.0
"""The page on what can go wrong with a store names a test for every case, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "object-storage.md").read_text(encoding="utf-8")
CASES = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:40])
def test_the_test_of_a_case_exists(case: list[str]) -> None:
    path, _, name = case[-1].strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_report_on_stores_has_a_case() -> None:
    told = set(re.findall(r"B1\d\d", PAGE))
    assert {"B102", "B104", "B105", "B107", "B109", "B110", "B114", "B116", "B117", "B119"} <= told
