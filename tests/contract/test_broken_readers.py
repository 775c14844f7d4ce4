# SPDX-License-Identifier: Apache-2.0
"""Each rule of the testkit finds the reader that breaks it, and no other rule does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from contract.broken.readers import READERS
from support.plugins import Site

from weight_readers_testkit import ReaderContractTests
from weight_readers_testkit.overrides import Overrides

HERE = Path(__file__).parent
RULES = sorted(name for name in dir(ReaderContractTests) if name.startswith("test_") and name != Overrides.NAME)
HEAVY = "test_importing_its_hook_module_adds_no_package_but_its_own"
TWICE = "test_one_distribution_registers_the_reader"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Broken reader -> the tests of the kit that failed of it."""
    folder = tmp_path_factory.mktemp("broken")
    report = folder / "report.xml"
    install(Site(folder / "site"))
    # Five thousand tests: what pytest does around each of them is half of the time.
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "logging", "hypothesispytest")]
    options = ["-q", "--tb=line", *without, f"--junitxml={report}", f"--basetemp={folder / 'tmp'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / "broken" / "suite.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(HERE.parent)])},
        timeout=600,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        reader = case.attrib["classname"].rpartition(".Test_")[2]
        if case.find("failure") is not None or case.find("error") is not None:
            failed.setdefault(reader, set()).add(case.attrib["name"].partition("[")[0])
    return failed


def install(site: Site) -> None:
    """A distribution that has all broken readers, and one that has one of them again."""
    points = {rule: f"contract.broken.hooks:{base}__{rule}" for rule, (base, _) in READERS.items()}
    site.distribution("broken-readers", {**points, HEAVY: "contract.broken.heavy:plugin"})
    site.distribution("broken-again", {TWICE: points[TWICE]})


def test_there_is_a_broken_reader_for_each_rule() -> None:
    assert sorted(READERS) == RULES


@pytest.mark.parametrize("rule", RULES)
def test_a_reader_that_breaks_a_rule_is_found_by_that_rule_alone(rule: str, found: dict[str, set[str]]) -> None:
    assert {rule} == found.get(rule, set())
