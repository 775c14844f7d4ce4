# SPDX-License-Identifier: Apache-2.0
"""Real ranks over gloo end with the very bytes that one process reads, and read no more than their share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import rank_jobs
from support.files import write_tensors
from support.rank_jobs import Each
from support.ranks import Ranks, done
from support.tensors import BITS, bits, contents, tensor

from weight_readers import TensorSlice
from weight_readers_loader.distributed.shares import PACKED

pytest.importorskip("weight_readers_threaded")
EVERY = ("broadcast", "partition", "slices")
WHOLE = ("broadcast", "partition")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every dtype that there is a tensor that no two or four ranks share evenly, one without dimensions and one
    without elements; and one of most of the bytes."""
    path = tmp_path_factory.mktemp("every")
    some = {f"{name}.w": tensor(name, 7, 6, seed=name) for name in BITS}
    some |= {f"{name}.none": tensor(name, 0, 4) for name in BITS}
    some |= {f"{name}.scalar": tensor(name, seed=name) for name, bits in BITS.items() if bits >= 8}
    write_tensors(path / "model-1.safetensors", {**some, "scalar": tensor("F32", seed=1)})
    more = {"empty": tensor("BF16", 0, 4), "large": tensor("F32", 101, 7, 3, seed=2), "row": tensor("F64", 1, 64)}
    write_tensors(path / "model-2.safetensors", more)
    return path


def expected(folder: Path) -> dict[str, Any]:
    """By the safetensors library."""
    return {name: held for path in sorted(folder.iterdir()) for name, held in contents(load_file(path).items()).items()}


@pytest.mark.parametrize("only", [(0, 1), None], ids=["two", "four"])
@pytest.mark.parametrize("how", WHOLE)
def test_every_rank_ends_with_the_bytes_of_every_dtype(
    four: Ranks, folder: Path, how: str, only: tuple[int, ...] | None
) -> None:
    results = four.run(rank_jobs.read, folder, how, bucket_bytes=1000, only=only)
    members = only or range(4)
    assert all(results[rank][0] == expected(folder) for rank in members)
    orders = [list(results[rank][0]) for rank in members]
    assert orders == [orders[0]] * len(orders)


@pytest.mark.parametrize("only", [(0, 1), None], ids=["two", "four"])
def test_slices_of_all_ranks_are_the_tensors(four: Ranks, folder: Path, only: tuple[int, ...] | None) -> None:
    results = four.run(rank_jobs.read, folder, "slices", only=only)
    parts = [result[0] for result in results if result is not None]
    for name, (dtype, shape, data) in expected(folder).items():
        held = [part[name] for part in parts]
        assert {each[0] for each in held} == {dtype}
        if shape:
            assert b"".join(each[2] for each in held) == data
            assert sum(each[1][0] for each in held) == shape[0]
        else:
            assert [each[2] for each in held] == [data] * len(parts)


@pytest.fixture(scope="module")
def megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 MiB, three quarters of them one tensor."""
    path = tmp_path_factory.mktemp("megabytes") / "model.safetensors"
    sizes = {"a": (256, 512), "table": (3001, 512), "b": (512, 512), "c": (3, 512, 100)}
    return write_tensors(path, {name: tensor("F32", *shape, seed=name) for name, shape in sizes.items()})


@pytest.mark.parametrize(("how", "most"), [("broadcast", [1.0, 0, 0, 0]), *((w, [0.25] * 4) for w in EVERY[1:])])
def test_a_rank_reads_its_share_and_no_more(four: Ranks, megabytes: Path, how: str, most: list[float]) -> None:
    total = sum(data.nbytes for data in load_file(megabytes).values())
    results = four.run(rank_jobs.read, megabytes, how, reader="threaded", bucket_bytes=1 << 20)
    slack = 0.02 * total
    for (_, report, read), share in zip(results, most, strict=True):
        # The kernel's count has the header and the store's messages on top.
        assert share * total - slack <= read <= share * total + slack + (1 << 16)
        assert report.bytes_read <= share * total + slack
        assert (report.reader is None) == (share == 0)
    reports = [report for _, report, _ in results]
    assert [report.read_by_rank for report in reports] == [reports[0].read_by_rank] * 4
    assert list(reports[0].read_by_rank.values()) == [report.bytes_read for report in reports]
    if how != "slices":
        assert sum(reports[0].read_by_rank.values()) == total


@pytest.mark.parametrize("how", WHOLE)
def test_large_and_small_tensors_of_one_bucket_are_those_of_the_file(four: Ranks, megabytes: Path, how: str) -> None:
    """A large one travels by itself, and small ones in one message."""
    stored = contents(load_file(megabytes).items())
    assert max(len(data) for _, _, data in stored.values()) > PACKED > min(len(data) for _, _, data in stored.values())
    assert [result[0] for result in four.run(rank_jobs.read, megabytes, how)] == [stored] * 4


def test_a_rank_that_is_sent_everything_needs_no_files(four: Ranks, folder: Path, tmp_path: Path) -> None:
    paths = Each([folder, *[tmp_path / "nowhere"] * 3])
    results = four.run(rank_jobs.read, paths, "broadcast")
    assert [result[0] for result in results] == [expected(folder)] * 4


@pytest.mark.parametrize("how", EVERY)
def test_a_filter_is_kept_by_all(four: Ranks, folder: Path, how: str) -> None:
    results = four.run(rank_jobs.read, folder, how, key_filter="scalar".__eq__)
    assert [list(result[0]) for result in results] == [["scalar"]] * 4


def test_each_rank_may_name_its_own_slices(four: Ranks, megabytes: Path) -> None:
    slices = Each([{"table": TensorSlice(dim=1, start=rank * 100, stop=rank * 100 + 7)} for rank in range(4)])
    results = four.run(rank_jobs.read, megabytes, "slices", slices=slices, key_filter="table".__eq__)
    table = load_file(megabytes)["table"]
    for rank, (held, _, _) in enumerate(results):
        assert held["table"][2] == bits(table[:, rank * 100 : rank * 100 + 7])


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tied") / "model.safetensors"
    shapes = {"embed.weight": (7, 6), "norm.weight": (6,), "norm.bias": (6,)}
    return write_tensors(
        path,
        {n: tensor("F32", *s, seed=n) for n, s in shapes.items()} | {"steps": tensor("I64", seed="steps")},
    )


@pytest.mark.parametrize("meta", [False, True], ids=["existing", "meta"])
@pytest.mark.parametrize("how", EVERY)
def test_a_module_is_filled_on_every_rank_and_stays_tied(four: Ranks, tied: Path, how: str, meta: bool) -> None:
    stored = contents(load_file(tied).items())
    for held, is_tied, report in four.run(rank_jobs.fill, tied, how, meta=meta):
        assert held == {**stored, "head.weight": stored["embed.weight"]}
        assert is_tied
        assert report.tied == (("embed.weight", "head.weight"),)


def test_tied_parameters_with_two_values_in_the_file_are_refused_on_all(four: Ranks, tied: Path) -> None:
    with_two = tied.parent / "two.safetensors"
    save_file({**load_file(tied), "head.weight": torch.ones(7, 6)}, with_two)
    for how in WHOLE:
        results = four.run(rank_jobs.fill, with_two, how, meta=False)
        assert {type(result).__name__ for result in results} == {"TiedWeightsError"}


@pytest.mark.parametrize("only", [(0, 1), None], ids=["two", "four"])
@pytest.mark.parametrize("how", EVERY)
def test_strided_targets_of_every_dtype_are_filled(
    four: Ranks, folder: Path, how: str, only: tuple[int, ...] | None
) -> None:
    results = four.run(rank_jobs.fill_strided, folder, how, only=only)
    stored = expected(folder)
    assert [results[rank] for rank in only or range(4)] == [stored] * len(only or range(4))


@pytest.mark.parametrize("only", [(0, 1), None], ids=["two", "four"])
@pytest.mark.parametrize("dim", [0, 1], ids=["rows", "columns"])
@pytest.mark.parametrize("how", EVERY)
def test_sharded_targets_of_every_dtype_are_filled(
    four: Ranks, folder: Path, how: str, dim: int, only: tuple[int, ...] | None
) -> None:
    members = only or range(4)
    results = done(four.run(rank_jobs.fill_placed, folder, how, dim, only=only))
    stored = {name: held for path in sorted(folder.iterdir()) for name, held in load_file(path).items()}
    for name, whole in stored.items():
        parts = [results[rank][0][name] for rank in members]
        assert parts == [contents([(name, part)])[name] for part in shards(whole, dim, len(members))], name
    if how == "slices":
        each = {name: whole.nbytes * (len(members) if whole.dim() <= dim else 1) for name, whole in stored.items()}
        assert sum(results[rank][1] for rank in members) == sum(each.values())


def shards(whole: torch.Tensor, dim: int, ranks: int) -> list[torch.Tensor]:
    """What each rank holds: as `torch.chunk` cuts, which leaves out what would be empty; all of what has no ``dim``."""
    if whole.dim() <= dim:
        return [whole] * ranks
    chunk = -(-whole.shape[dim] // ranks)
    starts = [min(whole.shape[dim], chunk * rank) for rank in range(ranks + 1)]
    return [whole.narrow(dim, start, stop - start) for start, stop in pairwise(starts)]
