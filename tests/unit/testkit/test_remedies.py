# SPDX-License-Identifier: Apache-2.0
"""Beside each failure of the kit stands which hook, method or declaration to mend."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from weight_readers_testkit import ReaderContractTests

RULES = sorted(name for name in dir(ReaderContractTests) if name.startswith("test_"))
MODULES = {"devices": "weight_readers_files", "sets": "weight_readers_files", "slices": "weight_readers"}
MODULES |= {"targets": "weight_readers_files", "threads": "weight_readers_files"}
CONTRACT = """
    import pytest
    from weight_readers_testkit import ReaderContractTests

    class TestAcme(ReaderContractTests):
        reader_name = "acme"
        dtypes = ()

        def make(self, options=None):
            return None

        @pytest.mark.xfail(reason="a known one")
        def test_scalars_keep_their_shape(self):
            assert False

    def test_beside_the_contract():
        "No rule of the kit."
        assert False
"""


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_says_what_to_mend_by_names_that_exist(rule: str) -> None:
    said = getattr(ReaderContractTests, rule).__doc__
    assert re.search(r"`\w+|pyproject\.toml|contract class", said)
    for module, name in re.findall(r"`(?:weight_readers_files\.)?([a-z]+)\.([a-z_]+|Pool)`", said):
        if module in MODULES:
            assert hasattr(import_module(f"{MODULES[module]}.{module}"), name)


def test_a_failure_shows_what_to_mend_and_one_that_is_no_rule_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_acme.py").write_text(dedent(CONTRACT))
    names = "declared_dtypes or scalars or beside_the_contract"
    command = [sys.executable, "-m", "pytest", "-q", "-k", names, "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert all(count in done.stdout for count in ("2 failed", "1 xfailed"))
    assert done.stdout.count("what to mend") == 1
    assert "`dtypes` of the contract class has float32" in done.stdout
