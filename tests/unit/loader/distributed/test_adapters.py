# SPDX-License-Identifier: Apache-2.0
"""Bytes travel as the files have them, and every rank adapts what has come: as a load of one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import rank_jobs
from support.files import write_tensors
from support.rank_jobs import Each
from support.ranks import Ranks, done
from support.tensors import contents, tensor

from weight_readers import AdapterError, PlanMismatchError, TensorSlice
from weight_readers_loader.adapters import Adapter, Concat, Dtype, GroupedQKV, Prefix, Rename, Split

pytest.importorskip("weight_readers_threaded")
WHOLE = ("broadcast", "partition")
HEADS, GROUPS, SIZE = 4, 2, 3
CHAIN: list[Adapter] = [
    Rename({"old.weight": "new.weight"}),
    GroupedQKV("qkv", heads=HEADS, kv_heads=GROUPS, head_dim=SIZE),
    Split("qkv", {"q": HEADS * SIZE, "k": GROUPS * SIZE, "v": GROUPS * SIZE}),
    Concat(["gate", "up"], "gate_up"),
    Dtype("float64", keep=["scalar"]),
    Prefix("model."),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = {"old.weight": (9, 4), "qkv.weight": ((HEADS + 2 * GROUPS) * SIZE, 5), "up.weight": (3, 4)}
    tensors = {name: tensor("I32", *shape, seed=name) for name, shape in shapes.items()}
    floats = {"norm.weight": (7,), "gate.weight": (2, 4), "scalar": ()}
    tensors |= {name: as_floats(*shape, seed=place) for place, (name, shape) in enumerate(floats.items())}
    tensors["up.weight"] = as_floats(3, 4, seed=9)
    return write_tensors(tmp_path_factory.mktemp("adapted") / "model.safetensors", tensors)


def as_floats(*shape: int, seed: int) -> tuple[str, list[int], bytes]:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return "F32", list(shape), values.numpy().tobytes()


def by_hand(path: Path) -> dict[str, torch.Tensor]:
    """What the chain is to make, with torch alone."""
    held = load_file(path)
    groups = held["qkv.weight"].split(SIZE)
    each = HEADS // GROUPS + 2
    queries = [part for place, part in enumerate(groups) if place % each < each - 2]
    parts = {"q": queries, "k": groups[each - 2 :: each], "v": groups[each - 1 :: each]}
    made = {f"model.{name}.weight": torch.cat(list(rows)) for name, rows in parts.items()}
    made["model.new.weight"] = held["old.weight"]
    made["model.gate_up.weight"] = torch.cat([held["gate.weight"], held["up.weight"]]).double()
    return made | {"model.norm.weight": held["norm.weight"].double(), "model.scalar": held["scalar"]}


@pytest.mark.parametrize("how", WHOLE)
def test_every_rank_has_what_the_adapters_make(four: Ranks, path: Path, how: str) -> None:
    expected = contents(sorted(by_hand(path).items()))
    results = done(four.run(rank_jobs.read, path, how, adapters=CHAIN, bucket_bytes=100))
    assert [dict(sorted(held.items())) for held, _, _ in results] == [expected] * 4
    assert results[0][1].cast == {"float32 -> float64": 1}
    assert sum(results[0][1].read_by_rank.values()) == sum(t.nbytes for t in load_file(path).values())


@pytest.mark.parametrize("how", [*WHOLE, "slices"])
def test_a_target_is_filled_through_adapters(four: Ranks, path: Path, how: str) -> None:
    expected = contents(by_hand(path).items())
    shapes = {name: (list(shape), str(dtype)) for name, (dtype, shape, _) in expected.items()}
    for held, report in done(four.run(rank_jobs.fill_adapted, path, how, shapes, adapters=CHAIN)):
        assert held == expected
        assert report.cast == {"float32 -> float64": 1}


def test_a_rank_without_files_adapts_too(four: Ranks, path: Path, tmp_path: Path) -> None:
    paths = Each([path, *[tmp_path / "nowhere"] * 3])
    results = done(four.run(rank_jobs.read, paths, "broadcast", config={"dtype": "bf16", "keep_dtype": ["norm*"]}))
    for held, _, _ in results:
        assert {name: each[0] for name, each in held.items()} == {
            **dict.fromkeys(("scalar", "gate.weight", "up.weight"), torch.bfloat16),
            **dict.fromkeys(("old.weight", "qkv.weight"), torch.int32),
            "norm.weight": torch.float32,
        }


def test_a_filter_goes_by_the_names_of_the_files(four: Ranks, path: Path) -> None:
    results = done(four.run(rank_jobs.read, path, "partition", adapters=[Prefix("a.")], key_filter="scalar".__eq__))
    assert [list(held) for held, _, _ in results] == [["a.scalar"]] * 4


def test_adapters_that_differ_are_named_on_all(two: Ranks, path: Path) -> None:
    adapters = Each([[Prefix("a.")], [Prefix("b.")]])
    results = two.run(rank_jobs.read, path, "broadcast", adapters=adapters)
    assert {type(result) for result in results} == {PlanMismatchError}
    assert all("rank 1 has adapters that make other tensors than rank 0" in str(result) for result in results)


@pytest.mark.parametrize("how", WHOLE)
def test_an_adapter_that_does_not_fit_is_an_error_of_all(two: Ranks, path: Path, how: str) -> None:
    results = two.run(rank_jobs.read, path, how, adapters=[Prefix(strip="none.")])
    assert {type(result) for result in results} == {AdapterError}


@pytest.mark.parametrize("how", WHOLE)
def test_a_number_that_an_adapter_refuses_ends_the_load_of_all(two: Ranks, tmp_path: Path, how: str) -> None:
    large = torch.full((64, 4), 1e30).numpy().tobytes()
    path = write_tensors(tmp_path / "m.safetensors", {f"t{n}": ("F32", [64, 4], large) for n in range(4)})
    results = two.run(rank_jobs.read, path, how, adapters=[Dtype("float16")], bucket_bytes=100)
    assert {type(result) for result in results} == {AdapterError}
    assert all("would become infinite" in str(result) for result in results)


def test_parts_of_what_an_adapter_makes_are_refused(two: Ranks, path: Path) -> None:
    options: dict[str, Any] = {
        "adapters": [Dtype("float64")],
        "slices": {"norm.weight": TensorSlice(dim=0, start=0, stop=2)},
    }
    for result in two.run(rank_jobs.read, path, "slices", **options):
        assert "adapters are for load_into" in str(result)
