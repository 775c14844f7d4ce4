# SPDX-License-Identifier: Apache-2.0
"""All that a reader has to keep, in one class."""

from __future__ import annotations

from weight_readers_testkit.changes import ChangeTests
from weight_readers_testkit.declaration import DeclarationTests
from weight_readers_testkit.into import IntoTests
from weight_readers_testkit.memory import MemoryTests
from weight_readers_testkit.overrides import Overrides
from weight_readers_testkit.parts import PartTests
from weight_readers_testkit.processes import ProcessTests
from weight_readers_testkit.refusals import RefusalTests
from weight_readers_testkit.values import ValueTests


class ReaderContractTests(
    DeclarationTests, ValueTests, PartTests, IntoTests, ChangeTests, MemoryTests, ProcessTests, RefusalTests, Overrides
):
    """Subclass it as ``class TestAcme(ReaderContractTests)``; `Subject` says what the subclass has to give.

    The docstring of each test says what to mend in the reader, its declaration or the subclass; pytest shows it beside
    a failure. A test that a reader cannot keep is overridden, marked ``@pytest.mark.xfail(reason=...)``, and calls its
    original.
    """
