# SPDX-License-Identifier: Apache-2.0
"""The contract over S3: the tests of local files again, with the reader pointed at the same files through a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# Bound here, where their fixture `reader` is the one below.
from contract.test_memory import (  # noqa: F401
    test_every_tensor_stays_as_it_was_when_all_are_kept,
    test_tensors_outlive_generator_reader_and_file_name,
    test_two_passes_do_not_share_what_is_written,
    test_unaligned_tensors_have_the_right_values_and_an_aligned_address,
    unaligned,
)
from contract.test_parts import *  # noqa: F403
from contract.test_processes import (  # noqa: F401
    test_eight_threads_share_one_reader,
    test_threads_may_read_different_files,
    test_two_passes_may_be_interleaved,
)
from contract.test_refusals import (  # noqa: F401
    CORPUS,
    test_a_file_that_was_replaced_is_read_anew,
    test_a_filter_does_not_hide_a_broken_file,
    test_a_name_in_two_files_is_refused,
    test_a_reader_recovers_once_the_file_is_mended,
    test_all_broken_files_are_named_at_once,
    test_errors_survive_the_way_to_another_process,
    test_no_files_at_all_are_refused,
)
from contract.test_values import *  # noqa: F403
from support.object_server import only_loopback
from support.rclone import served
from support.tensors import write_shards

import weight_readers
from weight_readers import CheckpointError, CheckpointMeta, FileMeta, TensorMeta, WeightReader

LOCAL_ONLY = {"a dangling link", "a folder", "a link to itself", "a named pipe"}
"""A server shows no links and no pipes."""
RUNS = 100


class OverS3:
    """A reader of ``s3://`` for tests that name local files: paths go in as URIs and come out as paths."""

    def __init__(self, reader: WeightReader, root: Path) -> None:
        self._reader = reader
        self._root = root
        self.info, self.selection = reader.info, reader.selection

    def read_meta(self, files: Sequence[str | Path]) -> CheckpointMeta:
        try:
            meta = self._reader.read_meta(self._uris(files))
        except CheckpointError as error:
            raise self._local(error) from None
        tensors: dict[str, TensorMeta] = {n: replace(each, file=self._path(each.file)) for n, each in meta.items()}
        held: tuple[FileMeta, ...] = tuple(replace(each, path=self._path(each.path)) for each in meta.files)
        return CheckpointMeta(tensors, held)

    def iter_weights(self, files: Sequence[str | Path], **asked: Any) -> Iterator[tuple[str, Any]]:
        try:
            weights = self._reader.iter_weights(self._uris(files), **asked)
        except CheckpointError as error:
            raise self._local(error) from None
        return self._passed_on(weights)

    def _passed_on(self, weights: Any) -> Iterator[tuple[str, Any]]:
        try:
            yield from weights
        except CheckpointError as error:
            raise self._local(error) from None

    def _uris(self, files: Sequence[str | Path]) -> list[str]:
        return [f"s3://{Path(file).resolve().relative_to(self._root).as_posix()}" for file in files]

    def _path(self, uri: str) -> str:
        return str(self._root / uri.removeprefix("s3://"))

    def _local(self, error: CheckpointError) -> CheckpointError:
        for each in (error, *error.problems):
            each.path = self._path(each.path) if each.path and each.path.startswith("s3://") else each.path
        return error


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp().resolve()


@pytest.fixture(scope="module")
def endpoint(root: Path) -> Iterator[str]:
    with served(root) as running:
        yield running


@pytest.fixture
def reader(root: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> WeightReader:
    if "s3" not in weight_readers.describe_reader("runai_streamer").schemes:
        pytest.skip("the vendor's package for S3 is not installed")
    only_loopback(monkeypatch, endpoint)
    made = weight_readers.select_weight_reader(format="safetensors", schemes={"s3"}, strict=True)
    return OverS3(made, root)


@pytest.mark.parametrize("name", sorted(CORPUS.keys() - LOCAL_ONLY))
def test_a_broken_object_has_the_error_of_the_broken_file(reader: WeightReader, tmp_path: Path, name: str) -> None:
    kind, make = CORPUS[name]
    path = tmp_path / "model-1.safetensors"
    make(path)
    for enter in (reader.read_meta, lambda files: next(iter(reader.iter_weights(files)))):
        with pytest.raises(CheckpointError) as caught:
            enter([path])
        assert (kind, str(path)) == (type(caught.value), caught.value.path)


@pytest.mark.parametrize("place", ["local", "s3"])
def test_the_order_is_the_same_in_every_run(reader: WeightReader, tmp_path: Path, place: str) -> None:
    shards = write_shards(tmp_path, 2, tensors=20)
    if place == "local":
        reader = weight_readers.select_weight_reader(requested="runai_streamer", format="safetensors", strict=True)
    expected = [f"s{shard}.t{number}" for shard in (1, 2) for number in range(20)]
    orders = {tuple(name for name, _ in reader.iter_weights(shards)) for _ in range(RUNS)}
    assert {tuple(expected)} == orders
