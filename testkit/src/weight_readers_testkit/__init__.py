# SPDX-License-Identifier: Apache-2.0
"""The contract of a weight reader, as tests.

    from weight_readers_testkit import ReaderContractTests, Stored

    class TestAcme(ReaderContractTests):
        reader_name = "acme"
        dtypes = ("float32", "uint8")

        def write(self, path, tensors):
            ...  # the file format, without the reader

Nothing here imports torch before a test module asks for one of the names: pytest imports this package in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weight_readers_testkit.contract import ReaderContractTests
    from weight_readers_testkit.faults import Fault
    from weight_readers_testkit.tensors import Stored

__all__ = ["Fault", "ReaderContractTests", "Stored"]

_MODULES = {"Fault": "faults", "ReaderContractTests": "contract", "Stored": "tensors"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
