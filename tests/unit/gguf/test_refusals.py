# SPDX-License-Identifier: Apache-2.0
"""What is refused before a download: each combination with its own reason, in one order, and nothing opened."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import weight_readers
from weight_readers import Environment, Request
from weight_readers_gguf.refusals import declined

IN_ORDER: list[tuple[dict[str, Any], str]] = [
    ({"engine": {"quantization": "gguf"}}, "selected by the checkpoint itself"),
    ({"engine": {"quantization": "fp8"}}, "'fp8'"),
    ({"engine": {"svdquant": "w.safetensors"}}, "svdquant"),
    ({"device": "xpu:1"}, "'xpu'"),
    ({"engine": {"fsdp": True}}, "FSDP"),
    ({"engine": {"lora": ["a.safetensors"]}}, "LoRA"),
    ({"engine": {"adaln_online": True}}, "adaln_online"),
    ({"engine": {"adaln_cache_path": "cache.pt"}}, "adaln_cache_path"),
]


def verdict(**request: Any) -> Any:
    return declined(Request(format="gguf", **request), Environment())


def together(*requests: dict[str, Any]) -> dict[str, Any]:
    """All of them in one request; of two values for one key that of the first."""
    joined: dict[str, Any] = {}
    for request in reversed(requests):
        joined |= {**request, "engine": {**joined.get("engine", {}), **request.get("engine", {})}}
    return joined


@pytest.mark.parametrize(("request_", "words"), IN_ORDER, ids=lambda value: value if isinstance(value, str) else "")
def test_each_combination_is_refused_with_its_own_reason_and_a_remedy(request_: dict[str, Any], words: str) -> None:
    refused = verdict(**request_)
    assert words in refused.reason
    assert refused.fix


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_of_several_reasons_the_first_in_the_order_is_given(first: int) -> None:
    refused = verdict(**together(*(request for request, _ in IN_ORDER[first:])))
    assert IN_ORDER[first][1] in refused.reason


def test_nunchaku_is_the_second_source_of_weights_too() -> None:
    assert "nunchaku" in verdict(engine={"nunchaku": True}).reason


@pytest.mark.parametrize("device", [None, "cpu", "cuda", "cuda:3"])
def test_devices_with_an_implementation_are_taken(device: str | None) -> None:
    assert verdict(device=device) is None


def test_fsdp_of_other_components_is_no_obstacle_to_an_offloaded_one() -> None:
    assert verdict(engine={"fsdp": True, "offloaded": True}) is None


@pytest.mark.parametrize("nothing", [None, False, "", [], ()])
def test_what_says_nothing_is_not_asked_for(nothing: Any) -> None:
    keys = ("quantization", "svdquant", "nunchaku", "fsdp", "lora", "adaln_online", "adaln_cache_path")
    assert verdict(engine=dict.fromkeys(keys, nothing)) is None


@pytest.mark.parametrize("where", ["options", "settings"])
def test_weights_that_are_dequantized_while_they_are_read_are_held_to_no_rule_of_packed_ones(where: str) -> None:
    engine = {"fsdp": True, "lora": ["a.safetensors"]}
    assert verdict(device="xpu", engine=engine, **{where: {"dequantize": "bfloat16"}}) is None
    assert verdict(engine={"quantization": "fp8"}, **{where: {"dequantize": "bfloat16"}}) is not None


def test_a_selection_says_the_refusal() -> None:
    selection = weight_readers.explain_selection(
        requested="gguf", format="gguf", engine={"lora": ["a.safetensors"]}, strict=True
    )
    refused = selection.candidate("gguf")
    assert refused is not None
    assert (selection.chosen, refused.code) == (None, "vetoed")
    assert "LoRA" in refused.reason


def test_refusals_are_decided_without_torch_and_without_a_file_being_opened() -> None:
    code = """
import sys
from weight_readers import Environment, Request
from weight_readers_gguf.refusals import declined
opened = []
sys.addaudithook(lambda event, _: opened.append(event) if event in ("open", "socket.connect") else None)
refused = declined(Request(format="gguf", device="xpu", engine={"lora": ["a.safetensors"]}), Environment())
loaded = {"torch", "numpy", "gguf"} & set(sys.modules)
sys.exit(0 if refused and not opened and not loaded else f"{refused} {opened} {loaded}")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
