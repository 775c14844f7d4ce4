# SPDX-License-Identifier: Apache-2.0
"""One contract class for each broken reader. Run by test_broken_readers in a process where those are installed."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from contract import broken_hooks, broken_readers, writers

from weight_readers import Registry, Request, WeightReader
from weight_readers_testkit import ReaderContractTests, Stored

NEED_AN_INTERPRETER = {
    "test_importing_its_hook_module_adds_no_package_but_its_own",
    "test_describing_it_imports_no_backend",
}


@pytest.fixture(scope="session", autouse=True)
def _little_to_collect() -> None:
    """Tests collect garbage; without this each collection looks at all that torch has made, and at every test."""
    gc.freeze()


class Small(ReaderContractTests):
    """As little of everything as shows the fault."""

    dtypes = ("float32", "bfloat16", "uint8")
    bulk = 6 << 20
    memory_bound = 3 << 20
    many = 500

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_safetensors_of(path, tensors)

    @classmethod
    def make(cls, options: Mapping[str, Any] | None = None) -> WeightReader:
        """Out of itself alone: the policy would look at seventy others each time."""
        rule = cls.reader_name
        plugin = broken_hooks.Hooks(rule, broken_readers.READERS[rule][0])
        registry = Registry(plugins={rule: plugin}, distributions=(), environ={})
        return registry.select(Request(format=cls.format(), options=dict(options or {})), requested=rule, strict=True)

    @pytest.fixture(autouse=True)
    def _once(self, request: pytest.FixtureRequest) -> None:
        """An interpreter of its own for each of seventy readers takes as long as all the rest."""
        if request.node.name in NEED_AN_INTERPRETER - {self.reader_name}:
            pytest.skip("only for the reader that breaks it")


class SmallGGUF(Small):
    dtypes = ("float32", "bfloat16")
    names = ("a", "a\tb")
    scalars = False
    packed = {name: block[1:] for name, block in writers.GGUF_BLOCKS.items()}

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_gguf_of(path, tensors)

    def faults(self) -> Mapping[str, object]:  # type: ignore[override]
        return writers.GGUF_FAULTS


for _rule, (_base, _) in broken_readers.READERS.items():
    _kind = SmallGGUF if _base == "packed" else Small
    globals()[f"Test_{_rule}"] = type(f"Test_{_rule}", (_kind,), {"reader_name": _rule, "__module__": __name__})
