# SPDX-License-Identifier: Apache-2.0
"""The rule by which the weights are found in what training code saved."""

from __future__ import annotations

from typing import Any

import pytest

from weight_readers import ForeignContentError
from weight_readers_pt.records import Dense, Storage
from weight_readers_pt.weights import WRAPPERS, find_weights

W = Dense(Storage("0", "float32", 4), "float32", 0, (1,), (1,))
FLAT = {"a.weight": W, "a.bias": W}


@pytest.mark.parametrize(
    ("root", "under"),
    [
        (FLAT, ()),
        ({"state_dict": FLAT}, ("state_dict",)),
        ({"model": FLAT, "optimizer": {"state": {0: {"m": W}}, "param_groups": []}}, ("model",)),
        ({"module": FLAT, "step": 3}, ("module",)),
        ({"model": {"state_dict": FLAT}}, ("model", "state_dict")),
        ({"model": {"module": {"state_dict": FLAT}}}, ("model", "module", "state_dict")),
        # A step that is a tensor does not make the dict around it a state dict.
        ({"step": W, "model": FLAT}, ("model",)),
        ({"params": FLAT, "params_ema": FLAT}, ("params_ema",)),
        ({"model": FLAT, "state_dict": FLAT}, ("state_dict",)),
        # A module that is named like a wrapper.
        ({"model": W, "state_dict": W}, ()),
        ({"model": {"note": "x"}, "w": W}, ()),
        # The state of an optimizer is never taken for weights, whatever is in it.
        ({"state_dict": {"state": {"model": FLAT}, "param_groups": [], "model": FLAT}, "w": W}, ()),
    ],
)
def test_the_way_to_the_weights(root: dict[str, Any], under: tuple[str, ...]) -> None:
    found = find_weights(root, "x.bin")
    assert found.under == under
    assert all(tensor is W for tensor in found.tensors.values())


def test_what_is_not_followed_is_listed_at_every_level() -> None:
    found = find_weights({"epoch": 1, "model": {"state_dict": {**FLAT, "n": 3, 7: W}, "args": {}}}, "x.bin")
    assert found.others == ("epoch", "args", "n", "7")


@pytest.mark.parametrize("root", [None, [], "x", 3, W, [W], {"a": [W]}, {"a": {"b": {"c": W}}}, {0: W}])
def test_an_object_without_a_state_dict_is_refused_with_what_it_is(root: Any) -> None:
    with pytest.raises(ForeignContentError) as caught:
        find_weights(root, "x.bin")
    assert all(wrapper in str(caught.value) for wrapper in WRAPPERS)


def test_deep_nesting_ends() -> None:
    root: dict[str, Any] = dict(FLAT)
    for _ in range(100):
        root = {"model": root}
    with pytest.raises(ForeignContentError):
        find_weights(root, "x.bin")
