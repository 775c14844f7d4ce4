# SPDX-License-Identifier: Apache-2.0
"""Every installed reader, in each of its modes, keeps the contract of the testkit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from contract import writers

import weight_readers
from weight_readers_testkit import Fault, ReaderContractTests, Stored

MIB = 1 << 20


class Safetensors(ReaderContractTests):
    dtypes = tuple(writers.SAFETENSORS_DTYPES)

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_safetensors_of(path, tensors)

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        writers.write_safetensors_listed(path, tensors, names)

    def faults(self) -> Mapping[str, Fault]:
        return writers.SAFETENSORS_FAULTS


class TestMapped(Safetensors):
    reader_name = "safetensors"


class TestMappedReadonly(TestMapped):
    options = {"readonly": True}


class TestMappedCopy(TestMapped):
    options = {"copy": True}


class TestMappedPrefetch(TestMapped):
    options = {"prefetch": 2}


class TestThreaded(Safetensors):
    reader_name = "threaded"
    bounded_options = {"max_in_flight_bytes": 4 * MIB}


class TestStreamer(Safetensors):
    reader_name = "runai_streamer"
    bounded_options = {"memory_limit": 4 * MIB}
    # The limit, a tensor more, and what the native library and its threads take: 11 to 15 MiB were seen.
    bulk, memory_bound = 48 * MIB, 24 * MIB


class TestGGUF(ReaderContractTests):
    reader_name = "gguf"
    dtypes = tuple(writers.GGUF_DTYPES)
    names = ("a", "ß.weight", "重み", "a\tb", 'quote"d', "back\\slash", "../up", "x" * 63)
    scalars = False
    packed = {name: block[1:] for name, block in writers.GGUF_BLOCKS.items()}

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_gguf_of(path, tensors)

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        writers.write_gguf_listed(path, tensors, names)

    def faults(self) -> Mapping[str, Fault]:
        return writers.GGUF_FAULTS


class TestGGUFReadonly(TestGGUF):
    options = {"readonly": True}


class TestGGUFCopy(TestGGUF):
    options = {"copy": True}


class TestGGUFPrefetch(TestGGUF):
    options = {"prefetch": 2}


class TestGGUFNumbers(TestGGUF):
    options = {"dequantize": "float32"}


class TestTorch(ReaderContractTests):
    reader_name = "pt"
    dtypes = tuple(writers.TORCH_DTYPES)
    no_tensors = False

    def write(self, path: Path, tensors: Mapping[str, Stored]) -> None:
        writers.write_torch(path, tensors)

    def write_listed(self, path: Path, tensors: Mapping[str, Stored], names: Sequence[str]) -> None:
        writers.write_torch_listed(path, tensors, names)

    def faults(self) -> Mapping[str, Fault]:
        return writers.TORCH_FAULTS


class TestTorchCopy(TestTorch):
    options = {"copy": True}


def test_every_installed_reader_is_held_to_the_contract() -> None:
    held = {each.reader_name for each in globals().values() if isinstance(each, type) and hasattr(each, "reader_name")}
    assert set(weight_readers.available_reader_names()) == held
