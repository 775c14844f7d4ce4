# SPDX-License-Identifier: Apache-2.0
"""A LoRA that would be merged into packed weights is refused by the names of parameters, before anything changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weight_readers import TargetMismatchError
from weight_readers_gguf.model import reject_lora_on_packed_weights


def packed() -> nn.Module:
    """A layer as engines leave it while it is offloaded: placeholders of one element."""
    layer = nn.Module()
    layer.qweight = nn.Parameter(torch.empty(1, dtype=torch.uint8), requires_grad=False)
    return layer


@pytest.fixture
def model() -> nn.Module:
    return nn.ModuleDict({"qkv": packed(), "norm": nn.LayerNorm(4), "out": nn.Linear(4, 4)})


def test_a_target_with_packed_weights_is_refused_by_its_name(model: nn.Module) -> None:
    with pytest.raises(TargetMismatchError, match=r"1 of its target layers hold some: qkv\. Nothing was changed"):
        reject_lora_on_packed_weights(model, lambda name: name in ("qkv", "out"))


def test_plain_targets_beside_packed_layers_are_let_through(model: nn.Module) -> None:
    reject_lora_on_packed_weights(model, lambda name: name == "out")


def test_a_layer_that_has_its_plain_weight_too_can_take_a_lora(model: nn.Module) -> None:
    model["qkv"].weight = nn.Parameter(torch.zeros(1))
    reject_lora_on_packed_weights(model, lambda name: True)


def test_a_root_that_is_itself_packed_is_found() -> None:
    with pytest.raises(TargetMismatchError):
        reject_lora_on_packed_weights(packed(), lambda name: name == "")


def test_every_layer_of_a_shared_packed_weight_is_named(model: nn.Module) -> None:
    model["tied"] = packed()
    model["tied"].qweight = model["qkv"].qweight
    with pytest.raises(TargetMismatchError) as caught:
        reject_lora_on_packed_weights(model, lambda name: True)
    assert caught.value.unexpected == ("qkv", "tied")


def test_a_refusal_leaves_the_model_as_it_was(model: nn.Module) -> None:
    before = {name: (type(m), dict(m._parameters)) for name, m in model.named_modules()}
    with pytest.raises(TargetMismatchError):
        reject_lora_on_packed_weights(model, lambda name: True)
    assert before == {name: (type(m), dict(m._parameters)) for name, m in model.named_modules()}


def test_what_is_no_model_or_no_function_is_refused(model: nn.Module) -> None:
    with pytest.raises(
        TypeError, match="module must be a torch module and is_target a function, not ModuleDict and str"
    ):
        reject_lora_on_packed_weights(model, "qkv")  # type: ignore[arg-type]
