# SPDX-License-Identifier: Apache-2.0
"""One contract class for each broken reader. Run by test_broken_readers in a process where those are installed."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from contract import writers
from contract.broken import hooks, readers

from weight_readers import Registry, Request, WeightReader
from weight_readers_testkit import ReaderContractTests, Stored

NEED_AN_INTERPRETER = {
    "test_importing_its_hook_module_adds_no_package_but_its_own",
    "test_describing_it_imports_no_backend",
}
"""One for each of seventy readers takes as long as all the rest: only for the two readers that break them."""

COSTLY = {
    "test_a_large_tensor_has_every_byte",
    "test_thousands_of_tensors_come_whole",
    "test_listing_the_tensors_reads_none_of_them",
    "test_a_filter_skips_tensors_before_they_are_read",
    "test_a_slice_reads_its_own_part",
    "test_slices_of_several_dimensions_read_what_they_have_in_common",
    "test_targets_of_every_dtype_hold_every_byte",
    "test_views_of_the_file_are_yielded_where_declared_and_nowhere_else",
    "test_memory_is_bounded",
    "test_memory_is_bounded_while_targets_are_filled",
    "test_direct_reads_leave_the_page_cache_alone",
    "test_one_reader_serves_several_passes_at_once",
    "test_threads_read_for_it_only_where_that_is_declared",
    "test_slices_agree_with_indexing_in_torch_or_are_refused",
    "test_slices_of_several_dimensions_agree_with_indexing_in_torch_or_are_refused",
    "test_what_is_done_to_a_file_meanwhile_is_an_error_or_has_no_part_in_targets",
    "test_an_error_in_the_midst_names_the_targets_that_were_written_to",
    "test_what_a_write_does_is_declared",
    "test_a_spawned_process_reads",
    "test_a_forked_child_reads_and_keeps_what_its_parent_read",
    "test_a_thread_that_outlives_the_main_one_reads",
}
"""They take longer than all others together: only for the readers that break a rule of the same theme."""


FAULTS = "test_a_broken_file_has_one_error_from_every_entrance_before_the_first_tensor"
FEW_FAULTS = frozenset({"empty", "missing", "cut in half"})
"""Files that are wrong, of which there are a dozen: all for the readers that break a rule of the same theme."""


def is_run(test: str, case: str, rule: str) -> bool:
    """Whether the test, with the ``case`` it is parametrised by, is run on the reader that breaks the rule."""
    if test in NEED_AN_INTERPRETER:
        return test == rule
    if _theme(test) is _theme(rule):
        return True
    return test not in COSTLY and (test != FAULTS or case in FEW_FAULTS)


def _theme(rule: str) -> type:
    return next(base for base in ReaderContractTests.__mro__ if rule in vars(base))


@pytest.fixture(scope="class", autouse=True)
def _little_to_collect() -> None:
    """Tests collect garbage; without this each collection looks at all that torch has made, and at every test."""
    gc.freeze()


@cache
def _alone(rule: str) -> Registry:
    """The one reader: the policy would look at seventy others each time."""
    plugin = hooks.Hooks(rule, readers.READERS[rule][0])
    return Registry(plugins={rule: plugin}, distributions=(), environ={})


class Small(ReaderContractTests):
    """As little of everything as shows the fault."""

    dtypes = ("float32", "bfloat16", "uint8")
    bulk = 6 << 20
    memory_bound = 3 << 20
    many = 500

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_safetensors_of(path, tensors)

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        writers.write_safetensors_listed(path, tensors, names)

    @classmethod
    def make(cls, options: Mapping[str, Any] | None = None) -> WeightReader:
        request = Request(format=cls.format(), options=dict(options or {}))
        return _alone(cls.reader_name).select(request, requested=cls.reader_name, strict=True)

    @pytest.fixture(autouse=True)
    def _concerned(self, request: pytest.FixtureRequest) -> None:
        case = request.node.name.partition("[")[2].rstrip("]")
        if not is_run(request.node.originalname, case, self.reader_name):
            pytest.skip("only for readers that break it, or a rule of its theme")


class SmallGGUF(Small):
    dtypes = ("float32", "bfloat16")
    names = ("a", "a\tb")
    scalars = False
    packed = {name: block[1:] for name, block in writers.GGUF_BLOCKS.items()}

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_gguf_of(path, tensors)

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        writers.write_gguf_listed(path, tensors, names)

    def faults(self) -> Mapping[str, object]:  # type: ignore[override]
        return writers.GGUF_FAULTS


for _rule, (_base, _) in readers.READERS.items():
    _kind = SmallGGUF if _base == "packed" else Small
    globals()[f"Test_{_rule}"] = type(f"Test_{_rule}", (_kind,), {"reader_name": _rule, "__module__": __name__})
