# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn

from weight_readers_loader.targets import meta_buffers, targets_of, tied_groups


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.same = self.layer
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("table", torch.zeros(3), persistent=False)
        self.register_buffer("absent", None)
        self.register_parameter("none", None)


def test_parameters_and_persistent_buffers_are_targets_under_all_their_names() -> None:
    assert set(targets_of(Model())) == {"layer.weight", "layer.bias", "same.weight", "same.bias", "mean"}


def test_the_targets_of_a_module_are_the_keys_of_its_state_dict() -> None:
    model = nn.Sequential(Model(), nn.BatchNorm1d(3), nn.Embedding(4, 2))
    assert set(targets_of(model)) == set(model.state_dict())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_shared_module_makes_tied_names(device: str) -> None:
    with torch.device(device):
        model = Model()
    assert tied_groups(targets_of(model)) == [("layer.weight", "same.weight"), ("layer.bias", "same.bias")]


def test_tensors_of_equal_values_are_not_tied() -> None:
    assert tied_groups(targets_of({"a": torch.zeros(2), "b": torch.zeros(2)})) == []


def test_views_of_one_memory_are_tied_where_they_are_the_same_view() -> None:
    whole = torch.zeros(4)
    targets = targets_of({"whole": whole, "again": whole.view(4), "half": whole[:2]})
    assert tied_groups(targets) == [("whole", "again")]


def test_empty_tensors_are_not_tied_to_each_other() -> None:
    assert tied_groups(targets_of({"a": torch.zeros(0), "b": torch.zeros(0)})) == []


def test_writing_converts_and_leaves_no_gradient_history() -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    targets_of({"a": parameter})["a"].write(torch.tensor([1.5, 2.5]))
    assert parameter.tolist() == [1.5, 2.5]
    assert parameter.is_leaf
    assert parameter.requires_grad


def test_a_meta_parameter_stays_what_it_was() -> None:
    class Special(nn.Parameter):
        pass

    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(2, device="meta"), requires_grad=False)
    module.weight.__class__ = Special
    module.weight.output_dim = 1
    target = targets_of(module)["weight"]
    target.replace(target.materialised(torch.tensor([1.0, 2.0])))
    assert type(module.weight) is Special
    assert (module.weight.output_dim, module.weight.requires_grad, module.weight.tolist()) == (1, False, [1.0, 2.0])


def test_non_persistent_meta_buffers_are_named() -> None:
    with torch.device("meta"):
        model = Model()
    assert meta_buffers(model) == ("table",)
    assert meta_buffers(Model()) == ()
    assert meta_buffers({"a": torch.zeros(1)}) == ()


def test_a_lazy_module_has_no_shape_to_load_into() -> None:
    with pytest.raises(TypeError, match="'weight' has no shape yet"):
        targets_of(nn.LazyLinear(3))


@pytest.mark.parametrize("target", [{"a": 1}, {"a": None}, {"a": [1.0]}])
def test_what_is_no_tensor_is_named(target: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="target 'a' is"):
        targets_of(target)  # type: ignore[arg-type]
