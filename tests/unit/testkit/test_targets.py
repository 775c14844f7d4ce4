# SPDX-License-Identifier: Apache-2.0
"""What the rules about `read_into` leave to a reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.writers import write_safetensors_of

from weight_readers import Feature, ReadStats, WeightReader
from weight_readers_testkit import ReaderContractTests, Stored
from weight_readers_threaded.reader import ThreadedReader


class WholeTensors(ThreadedReader):
    """Declares no slices, and refuses them."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, features=self.info.features - {Feature.SLICES, Feature.MULTI_SLICES})

    def read_into(self, files: Any, targets: Any, *, slices: Any = None, **arguments: Any) -> ReadStats:
        if slices:
            raise ValueError("whole tensors only")
        return super().read_into(files, targets, **arguments)


class RefusesDeclared(WholeTensors):
    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, features=self.info.features | {Feature.SLICES})


def kit(reader: type[ThreadedReader]) -> ReaderContractTests:
    class Kit(ReaderContractTests):
        reader_name = "threaded"
        dtypes = ("float32",)

        def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
            write_safetensors_of(path, tensors)

        @classmethod
        def make(cls, options: Mapping[str, Any] | None = None) -> WeightReader:
            return reader()

    return Kit()


def test_slices_into_targets_may_be_refused_where_none_are_declared(tmp_path: Path) -> None:
    kit(WholeTensors).test_slices_fill_their_targets(tmp_path)


def test_slices_into_targets_may_not_be_refused_where_they_are_declared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole tensors only"):
        kit(RefusesDeclared).test_slices_fill_their_targets(tmp_path)
