# SPDX-License-Identifier: Apache-2.0
"""A budget of host memory: told to the policy and to readers, refused before a tensor is read, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.commands import invoke
from support.measure import output_of

from weight_readers import BudgetInfeasibleError, ConfigError, Environment, ReaderFallbackWarning
from weight_readers_loader import open_checkpoint
from weight_readers_loader.budget import HostBudget, bounds
from weight_readers_loader.config import LoadConfig

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Five tensors: four of 2 MiB and one of 4 MiB."""
    sizes = {"a": 2, "b": 2, "large": 4, "c": 2, "d": 2}
    save_file(
        {name: torch.zeros(size * MIB, dtype=torch.uint8) for name, size in sizes.items()},
        tmp_path / "model.safetensors",
    )
    return tmp_path


def existing(model: Path) -> dict[str, torch.Tensor]:
    metas = open_checkpoint(model).tensors
    return {name: torch.ones(meta.shape, dtype=torch.uint8) for name, meta in metas.items()}


class TestWhatItIs:
    def test_as_asked_for_where_there_is_more(self) -> None:
        assert HostBudget.of(8 << 30, 9 << 30) == HostBudget(nbytes=8 << 30, said="8.00 GiB, as asked for")

    @pytest.mark.parametrize("asked", [8 << 30, "auto"])
    def test_never_more_than_is_left_and_that_is_said(self, asked: int | str) -> None:
        budget = HostBudget.of(asked, 2 << 30)  # type: ignore[arg-type]
        assert budget.nbytes == 2 << 30
        assert "left" in budget.said

    def test_as_asked_for_where_nothing_is_known(self) -> None:
        assert HostBudget.of(5, None).nbytes == 5

    def test_what_is_left_cannot_be_asked_for_where_it_is_not_known(self) -> None:
        with pytest.raises(ValueError, match="does not say how much memory is left"):
            HostBudget.of("auto", None)

    @pytest.mark.parametrize(
        ("budget", "largest", "in_flight", "window"),
        [(10, 4, 6, 4), (10, 3, 7, 4), (10, 5, 5, 5), (10, 8, 8, 8), (10, None, 10, 10), (1, 0, 1, 1)],
    )
    def test_a_reader_has_under_way_what_the_tensors_that_are_held_leave(
        self, budget: int, largest: int | None, in_flight: int, window: int
    ) -> None:
        assert bounds(budget, largest) == {"max_in_flight_bytes": in_flight, "memory_limit": window}

    def test_a_large_budget_leaves_readers_their_defaults(self) -> None:
        assert bounds(1 << 30, 4) == bounds(None, 4) == {}


class TestTheChoice:
    def test_tensors_that_are_kept_stay_mapped(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, host_budget="1MiB")
        checkpoint.state_dict()
        assert checkpoint.report is not None
        selection = checkpoint.report.selection
        assert (selection.chosen, selection.environment.host_memory_budget) == ("safetensors", MIB)
        threaded = selection.candidate("threaded")
        assert threaded is not None
        assert (threaded.code, threaded.reason) == (
            "over-budget",
            f"would hold {12 * MIB} bytes of host memory, and {MIB} are free",
        )
        assert "budget:     1.00 MiB of host memory" in str(checkpoint.report)

    def test_into_existing_tensors_no_memory_is_needed(self, model: Path) -> None:
        report = open_checkpoint(model, host_budget=1).load_into(existing(model))
        assert report.reader == "threaded"

    def test_a_reader_that_copies_is_told_how_much_may_be_under_way(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, host_budget=10 * MIB, reader="threaded")
        assert {name for name, _ in checkpoint.iter_weights()} == {"a", "b", "c", "d", "large"}
        cast = {name: tensor.float() for name, tensor in existing(model).items()}
        candidate = checkpoint.load_into(cast, cast=True).selection.candidate("threaded")
        assert candidate is not None
        assert candidate.settings["max_in_flight_bytes"] == 10 * MIB - 4 * MIB

    def test_a_named_reader_that_would_take_more_is_replaced_aloud(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, host_budget=MIB, reader="threaded")
        with pytest.warns(ReaderFallbackWarning, match="would hold"):
            checkpoint.state_dict()

    def test_explain_shows_it(self, model: Path) -> None:
        done = invoke("explain", model, "--host-budget", "1MiB")
        assert "  host budget: 1.00 MiB, as asked for" in done.stdout.splitlines()
        assert "rejected [over-budget]" in done.stdout
        document = json.loads(invoke("explain", model, "--host-budget", "auto", "--json").stdout)
        assert document["host_budget"] == document["selection"]["environment"]["host_memory_budget"] > MIB

    def test_by_default_the_limit_is_what_is_left_and_no_budget_is_told_of(self, model: Path) -> None:
        environment = open_checkpoint(model).selection.environment
        assert environment.host_memory_budget is None
        assert environment.host_memory_limit == environment.host_memory_free
        assert environment.host_memory_free is not None

    def test_off_is_no_limit(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, host_budget="off", environment=Environment(host_memory_free=MIB))
        assert checkpoint.selection.environment.host_memory_limit is None
        assert len(checkpoint.state_dict(owned=True)) == 5
        assert "host budget: off" in invoke("explain", model, "--host-budget", "off").stdout


class TestWhatIsInfeasible:
    def test_kept_and_owned_more_than_there_is(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, host_budget="10MiB")
        with pytest.raises(BudgetInfeasibleError) as raised:
            checkpoint.state_dict(owned=True)
        error = raised.value
        assert (error.needed, error.budget, error.largest_tensor) == (12 * MIB, 10 * MIB, 4 * MIB)
        assert str(error).startswith(
            f"the load needs {12 * MIB} bytes of host memory, and the budget has {10 * MIB}, "
            f"the largest tensor takes {4 * MIB}"
        )
        assert "owned=False" in str(error)
        assert isinstance(error, MemoryError)

    def test_by_default_more_than_there_is_left(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, environment=Environment(host_memory_free=10 * MIB))
        with pytest.raises(BudgetInfeasibleError, match=f"machine and cgroups have {10 * MIB} left"):
            checkpoint.state_dict(owned=True)
        checkpoint.state_dict()
        assert checkpoint.report is not None
        assert checkpoint.report.reader == "safetensors"

    def test_by_default_what_is_left_bounds_what_is_under_way(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, environment=Environment(host_memory_free=40 * MIB), reader="threaded")
        cast = {name: tensor.float() for name, tensor in existing(model).items()}
        candidate = checkpoint.load_into(cast, cast=True).selection.candidate("threaded")
        assert candidate is not None
        assert candidate.settings["max_in_flight_bytes"] == 32 * MIB - 4 * MIB  # in steps of 16 MiB

    def test_a_part_of_it_fits(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, host_budget="10MiB")
        assert set(checkpoint.state_dict(owned=True, key_filter={"a", "large"}.__contains__)) == {"a", "large"}

    def test_a_tensor_and_the_next_one_have_to_fit(self, model: Path) -> None:
        options = {"max_in_flight_bytes": MIB}
        checkpoint = open_checkpoint(model, host_budget=7 * MIB, reader_options=options)
        with pytest.raises(BudgetInfeasibleError) as raised:
            checkpoint.iter_weights()
        assert raised.value.needed == 8 * MIB

    def test_the_command_ends_with_1_before_a_tensor_is_read(self, model: Path) -> None:
        done = invoke("load", model, "--host-budget", "10MiB", "--owned")
        assert (done.exit_code, f"needs {12 * MIB} bytes of host memory" in done.stderr) == (1, True)


class TestWhatIsRefused:
    @pytest.mark.parametrize("given", [0, -1, "", "some", "1.5 elephants", True, 1.5])
    def test_what_is_no_size(self, given: object, model: Path) -> None:
        with pytest.raises(ConfigError, match="host_budget"):
            open_checkpoint(model, host_budget=given)  # type: ignore[arg-type]

    def test_more_under_way_than_the_whole_budget(self, model: Path) -> None:
        with pytest.raises(ConfigError, match=r"max_in_flight_bytes.* exclude each other"):
            open_checkpoint(model, host_budget=MIB, config=LoadConfig(max_in_flight_bytes=2 * MIB))

    def test_a_budget_given_twice(self, model: Path) -> None:
        with pytest.raises(ValueError, match="are one thing: give one of them"):
            open_checkpoint(model, host_budget=MIB, environment=Environment(host_memory_budget=MIB))

    def test_a_size_on_the_command_line_that_is_none(self) -> None:
        assert invoke("load", "no/such/place", "--host-budget", "lots").exit_code == 2


PEAK = """
import sys
import torch
from weight_readers_loader import open_checkpoint
from weight_readers_loader.process import PeakMemory, resident_bytes

folder, reader, budget = sys.argv[1], sys.argv[2], int(sys.argv[3])
targets = {name: torch.zeros(meta.shape, dtype=torch.float16) for name, meta in open_checkpoint(folder).tensors.items()}
for target in targets.values():
    target.fill_(1)
warm = {name: target for name, target in targets.items() if name == "t0"}
open_checkpoint(folder, reader=reader).load_into(warm, cast=True, strict=False)
before = resident_bytes()[0]
with PeakMemory(interval=0.001) as peak:
    open_checkpoint(folder, reader=reader, host_budget=budget).load_into(targets, cast=True)
print(peak.anon - before)
"""


@pytest.mark.parametrize("reader", ["threaded", "safetensors"])
def test_a_load_that_converts_stays_within_its_budget(reader: str, tmp_path: Path) -> None:
    save_file({f"t{n}": torch.zeros(2 * MIB) for n in range(16)}, tmp_path / "model.safetensors")
    budget = 32 * MIB
    assert int(output_of(PEAK, tmp_path, reader, budget)) <= budget * 1.05
