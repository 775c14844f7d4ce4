# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from support.plugins import Plugin, registry

from weight_readers import DuplicateReaderError, NoSuitableQuantMethodError, QuantMethodInfo, hookimpl


def method(name: str, weight_type: str, *devices: str) -> QuantMethodInfo:
    return QuantMethodInfo(name=name, weight_types={weight_type}, device_types=devices, factory="collections:Counter")


class Quantizing(Plugin):
    def __init__(self, name: str, *methods: QuantMethodInfo, **fields: Any) -> None:
        super().__init__(name, **fields)
        self.methods = methods

    @hookimpl
    def weight_readers_quant_methods(self) -> Any:
        return self.methods


CPU, CUDA = method("on_cpu", "Q4_K", "cpu"), method("on_cuda", "Q4_K", "cuda")


def test_methods_are_listed_by_name_over_all_plugins() -> None:
    given = registry(Quantizing("b", CUDA), Quantizing("a", method("zed", "Q8_0", "cpu"), CPU), Plugin("c"))
    assert [m.name for m in given.available_quant_methods()] == ["on_cpu", "on_cuda", "zed"]


@pytest.mark.parametrize(("device", "chosen"), [("cpu", CPU), ("cuda", CUDA)])
def test_the_method_is_that_of_the_device(device: str, chosen: QuantMethodInfo) -> None:
    assert registry(Quantizing("a", CPU, CUDA)).select_quant_method("Q4_K", device) == chosen


@pytest.mark.parametrize(("weight_type", "device"), [("Q4_K", "xpu"), ("Q2_K", "cpu")])
def test_no_method_of_another_device_or_type_stands_in(weight_type: str, device: str) -> None:
    with pytest.raises(NoSuitableQuantMethodError) as caught:
        registry(Quantizing("a", CPU, CUDA)).select_quant_method(weight_type, device)
    assert caught.value.available == ("on_cpu on cpu", "on_cuda on cuda")
    assert (caught.value.weight_type, caught.value.device_type) == (weight_type, device)
    assert caught.value.fix in (None, f"Weight types on {device}: Q4_K")


@pytest.mark.parametrize("asked", ["q4_k", "Q4_K_M", "q4_k_s"])
def test_the_type_that_was_meant_is_said(asked: str) -> None:
    with pytest.raises(NoSuitableQuantMethodError, match="Did you mean 'Q4_K'"):
        registry(Quantizing("a", CPU)).select_quant_method(asked, "cpu")


def test_the_index_of_a_device_does_not_matter() -> None:
    assert registry(Quantizing("a", CUDA)).select_quant_method("Q4_K", "cuda:1").name == "on_cuda"


@pytest.mark.parametrize(("weight_type", "device"), [(12, "cpu"), ("Q4_K", None)])
def test_what_is_no_text_is_a_type_error(weight_type: Any, device: Any) -> None:
    with pytest.raises(TypeError, match="must be text, not"):
        registry(Quantizing("a", CPU)).select_quant_method(weight_type, device)


def test_with_no_method_at_all_the_error_says_what_would_bring_one() -> None:
    with pytest.raises(NoSuitableQuantMethodError, match="none is installed") as caught:
        registry(Plugin()).select_quant_method("Q4_K", "cpu")
    assert caught.value.fix


def test_two_methods_for_one_type_and_device_are_an_error_that_names_both() -> None:
    given = registry(Quantizing("a", CPU), Quantizing("b", method("other", "Q4_K", "cpu")))
    with pytest.raises(DuplicateReaderError, match="Q4_K on cpu") as caught:
        given.select_quant_method("Q4_K", "cpu")
    assert [owner.split(" of ")[0] for owner in caught.value.distributions] == ["on_cpu", "other"]
    assert caught.value.fix == "Disable all but one of their readers: WEIGHT_READERS_DISABLE=b"


@pytest.mark.parametrize(
    ("fields", "environ"),
    [({"api_version": 99}, {}), ({}, {"WEIGHT_READERS_DISABLE": "a"})],
    ids=["broken", "disabled"],
)
def test_the_methods_of_a_reader_that_is_not_usable_are_not_offered(
    fields: dict[str, Any], environ: dict[str, str]
) -> None:
    assert registry(Quantizing("a", CPU, **fields), environ=environ).available_quant_methods() == []
