# SPDX-License-Identifier: Apache-2.0
"""``explain --what-if``: what would be picked on another machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.commands import invoke

from weight_readers_loader.commands.what_if import spread


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({"w": torch.zeros(1 << 20)}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "flags", "chosen"),
    [
        ("residency=0 fs=ext4", "", "safetensors"),
        ("residency=0 fs=nfs budget=8GiB", "", "threaded"),
        ("fs=fuse.s3fs", "", "threaded"),
        ("fs=nfs budget=1MiB", "", "safetensors"),
        ("residency=100% cpus=1", "--into-existing", "threaded"),
        ("residency=0 fs=nfs budget=8GiB device=cuda", "", "threaded"),
    ],
)
def test_the_facts_of_another_machine_decide(words: str, flags: str, chosen: str, model: Path) -> None:
    done = invoke("explain", model, *flags.split(), "--what-if", *words.split())
    assert done.exit_code == 0, done.stderr
    assert f"chosen: {chosen} (" in done.stdout
    assert done.stdout.splitlines()[1].startswith("what if: ")


def test_settings_are_those_of_the_other_machine(model: Path) -> None:
    done = invoke("explain", model, "--what-if", "fs=nfs", "ranks=4", "--into-existing", "--json")
    assert json.loads(done.stdout)["made_with"] == {"num_threads": 2}
    assert json.loads(done.stdout)["what_if"] == ["4 ranks", "nfs"]


def test_what_would_not_fit_there_is_refused_as_a_load_would(model: Path) -> None:
    done = invoke("explain", model, "--owned", "--what-if", "budget=1MiB")
    assert (done.exit_code, f"needs {4 << 20} bytes of host memory" in done.stderr) == (1, True)


def test_a_device_is_where_the_tensors_would_go(model: Path) -> None:
    done = invoke("explain", model, "--what-if", "device=cuda:1", "--json")
    assert json.loads(done.stdout)["selection"]["request"]["device"] == "cuda:1"
    assert json.loads(done.stdout)["selection"]["request"]["kept_on_host"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("residncy=0", "there is no fact 'residncy'. Did you mean 'residency'?"),
        ("colour=red", "There is budget, cpus, device, fs, ranks, residency"),
        ("residency=1.5", "residency must be a fraction from 0 to 1 or a percentage, not '1.5'"),
        ("residency=lots", "residency must be a fraction"),
        ("residency=nan", "residency must be a fraction"),
        ("budget=lots", "budget must be a size, as 8GiB, not 'lots'"),
        ("cpus=0", "cpus must be a whole number of at least 1, not '0'"),
        ("ranks=1.5", "ranks must be a whole number"),
        ("fs=nsf", "fs must be a file system that the policy knows"),
        ("device=cda", "device must be a device that torch knows and that has memory, not 'cda'"),
        ("device=meta", "device must be a device that torch knows and that has memory, not 'meta'"),
        ("fs=nfs fs=ext4", "'fs' is given twice"),
        ("fs", "'fs' is not NAME=VALUE"),
    ],
)
def test_what_is_no_fact_is_refused_before_a_file_is_looked_at(words: str, message: str) -> None:
    done = invoke("explain", "no/such/place", "--what-if", *words.split())
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_two_devices_are_refused(model: Path) -> None:
    done = invoke("explain", model, "--device", "cpu", "--what-if", "device=cuda")
    assert (done.exit_code, "are one thing" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("m --what-if a=1 b=2 --json", "m --what-if a=1 --what-if b=2 --json"),
        ("--what-if a=1 b=2 m c=3", "--what-if a=1 --what-if b=2 m c=3"),
        ("m --what-if a=1 --what-if b=2", "m --what-if a=1 --what-if b=2"),
        ("m --what-if", "m --what-if"),
        ("m --option a=1 b=2", "m --option a=1 b=2"),
    ],
)
def test_one_flag_takes_the_words_that_follow_it(given: str, expected: str) -> None:
    assert spread(given.split()) == expected.split()
