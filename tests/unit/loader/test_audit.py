# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from weight_readers import TargetMismatchError, TensorMeta
from weight_readers_loader.audit import Plan, audit
from weight_readers_loader.targets import Target


def meta(name: str, shape: tuple[int, ...] = (2,), dtype: str = "float32", **fields: Any) -> TensorMeta:
    given = {"source_dtype": "F32", "stored_shape": shape, "nbytes": 8, "file": "f", "offset": 0, **fields}
    return TensorMeta(name=name, dtype=dtype, shape=shape, **given)


def plan(
    held: list[TensorMeta],
    wanted: dict[str, torch.Tensor],
    *,
    tied: tuple[tuple[str, ...], ...] = (),
    aliases: dict[str, str] | None = None,
    resolve_aliases: bool = False,
    strict: bool = True,
    cast: bool = False,
) -> Plan:
    return audit(
        {m.name: m for m in held},
        {name: Target(name=name, tensor=tensor) for name, tensor in wanted.items()},
        tied=tied,
        aliases=aliases or {},
        resolve_aliases=resolve_aliases,
        strict=strict,
        cast=cast,
    )


def zeros(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(2) for name in names}


def test_equal_names_fill_each_other() -> None:
    found = plan([meta("a"), meta("b")], zeros("a", "b"))
    assert found.assignments == {"a": ("a",), "b": ("b",)}
    assert (found.missing, found.unexpected, found.cast, found.aliases) == ((), (), {}, {})


def test_names_that_are_missing_or_unexpected_are_an_error_only_if_strict() -> None:
    with pytest.raises(TargetMismatchError) as refused:
        plan([meta("a"), meta("x")], zeros("a", "b"))
    assert (refused.value.missing, refused.value.unexpected) == (("b",), ("x",))
    assert "strict=False (--partial) lets names differ" in str(refused.value)
    found = plan([meta("a"), meta("x")], zeros("a", "b"), strict=False)
    assert (found.assignments, found.missing, found.unexpected) == ({"a": ("a",)}, ("b",), ("x",))


def test_a_name_is_not_missing_while_one_tied_to_it_is_there() -> None:
    assert plan([meta("head")], zeros("embed", "head"), tied=(("embed", "head"),)).missing == ()


def test_tied_names_that_are_all_absent_are_all_missing() -> None:
    found = plan([], zeros("embed", "head"), tied=(("embed", "head"),), strict=False)
    assert found.missing == ("embed", "head")


def test_an_alias_is_used_only_when_asked_and_offered_when_not() -> None:
    with pytest.raises(TargetMismatchError, match=r"resolve_aliases=True \(--aliases\) finds head under another name"):
        plan([meta("embed")], zeros("embed", "head"), aliases={"head": "embed"})
    found = plan([meta("embed")], zeros("embed", "head"), aliases={"head": "embed"}, resolve_aliases=True)
    assert found.assignments == {"embed": ("embed", "head")}
    assert found.aliases == {"head": "embed"}


def test_an_alias_does_not_stand_in_for_a_tensor_that_is_there() -> None:
    found = plan([meta("a"), meta("b")], zeros("a", "b"), aliases={"b": "a"}, resolve_aliases=True)
    assert (found.assignments, found.aliases) == ({"a": ("a",), "b": ("b",)}, {})


def test_an_alias_of_a_tied_name_fills_both_from_one_tensor() -> None:
    found = plan(
        [meta("embed")],
        zeros("embed", "head"),
        tied=(("embed", "head"),),
        aliases={"head": "embed"},
        resolve_aliases=True,
    )
    assert found.assignments == {"embed": ("embed", "head")}


def test_shapes_are_never_let_through() -> None:
    with pytest.raises(TargetMismatchError, match=r"a \(checkpoint \[3\], target \[2\]\)") as refused:
        plan([meta("a", (3,))], zeros("a"), strict=False, cast=True)
    assert str(refused.value).endswith("Nothing was written")


def test_dtypes_are_let_through_and_counted_when_asked() -> None:
    held = [meta("a", dtype="bfloat16"), meta("b", dtype="bfloat16"), meta("c")]
    with pytest.raises(TargetMismatchError, match=r"cast=True \(--cast\) converts dtypes"):
        plan(held, zeros("a", "b", "c"))
    assert plan(held, zeros("a", "b", "c"), cast=True).cast == {"bfloat16 -> float32": 2}


def test_packed_weights_are_not_cast_since_their_elements_are_no_numbers() -> None:
    packed = meta("a", (4,), dtype="float4_e2m1fn_x2", stored_shape=(2,))
    with pytest.raises(TargetMismatchError) as refused:
        plan([packed], zeros("a"), cast=True)
    assert refused.value.dtypes == (("a", "float4_e2m1fn_x2", "float32"),)
    assert "cast=True" not in str(refused.value)
    quantized = meta("a", dtype="uint8", ggml_type=2)
    with pytest.raises(TargetMismatchError):
        plan([quantized], zeros("a"), cast=True)


def test_long_lists_of_names_are_cut_in_the_message_and_whole_in_the_error() -> None:
    names = [f"n{i}" for i in range(50)]
    with pytest.raises(TargetMismatchError, match="n9 and 40 more") as refused:
        plan([], zeros(*names))
    assert refused.value.missing == tuple(names)


def test_many_tensors_are_compared_in_no_time() -> None:
    """Compared name by name with every other, these would take minutes."""
    names = [f"layers.{i}.weight" for i in range(40_000)]
    tensor = torch.zeros(2)
    begun = time.monotonic()
    found = plan([meta(name) for name in names], dict.fromkeys(names, tensor))
    assert len(found.assignments) == 40_000
    assert time.monotonic() - begun < 20
