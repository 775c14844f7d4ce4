# SPDX-License-Identifier: Apache-2.0
"""The device that a caller names: one that can be used here, or one error with those that can."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from weight_readers import ConfigError, available_reader_names, select_weight_reader
from weight_readers.devices import devices_here, known_device, usable_device


@pytest.mark.parametrize("name", available_reader_names())
@pytest.mark.parametrize("device", ["cuda:99", "hpu", "nonsense", "cpu:3", 5, torch.device("xpu", 99)])
def test_every_reader_refuses_a_device_that_is_not_here_before_it_looks_at_a_file(name: str, device: object) -> None:
    reader = select_weight_reader(requested=name)
    with pytest.raises(ConfigError, match=r"^device=.* is no device that can be used here; there is 'cpu'"):
        reader.iter_weights(["no/such/file"], device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", available_reader_names())
def test_every_reader_refuses_the_meta_device_before_it_looks_at_a_file(name: str) -> None:
    with pytest.raises(ValueError, match=r"^device='meta' has no memory for values"):
        select_weight_reader(requested=name).iter_weights(["no/such/file"], device="meta")


def test_a_device_of_another_machine_is_known_and_cannot_be_used() -> None:
    assert torch.device("cuda", 99) == known_device("cuda:99", torch)
    with pytest.raises(ConfigError) as caught:
        usable_device("cuda:99", torch, source="--device")
    assert (caught.value.option, caught.value.source) == ("device", "--device")
    assert str(caught.value).startswith(
        "device='cuda:99' (--device) is no device that can be used here; there is 'cpu'"
    )
    assert str(caught.value).endswith(". Pass device='cpu' (--device cpu), or another of those")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cpu:0"])
def test_the_host_can_always_be_used(device: object) -> None:
    assert usable_device(device, torch).type == "cpu"


def test_the_devices_that_are_here_are_the_host_and_what_torch_counts() -> None:
    two, none = SimpleNamespace(device_count=lambda: 2), SimpleNamespace(device_count=lambda: 0)
    assert devices_here(SimpleNamespace(cuda=two, mps=none)) == ["cpu", "cuda:0", "cuda:1"]
