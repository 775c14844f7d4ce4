# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.files import floats, write_tensors
from torch import nn

from weight_readers import ConfigError, FileChangedError, TargetMismatchError, TiedWeightsError
from weight_readers_loader import open_checkpoint, placement


def save(folder: Path, **tensors: list[float]) -> Path:
    return write_tensors(folder / "model.safetensors", {n: ("F32", [len(v)], floats(*v)) for n, v in tensors.items()})


class Tied(nn.Module):
    """``head`` and ``embed`` are one parameter of two elements."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(2))
        self.head = self.embed


def test_names_shapes_and_dtypes_that_differ_are_all_said_and_nothing_is_written(tmp_path: Path) -> None:
    save(tmp_path, a=[1, 2], b=[3], c=[4], extra=[5])
    target = {
        "a": torch.zeros(3),
        "b": torch.zeros(1, dtype=torch.float16),
        "c": torch.zeros(1),
        "absent": torch.zeros(1),
    }
    with pytest.raises(TargetMismatchError) as caught:
        open_checkpoint(tmp_path).load_into(target)
    error = caught.value
    assert error.missing == ("absent",)
    assert error.unexpected == ("extra",)
    assert error.shapes == (("a", "[2]", "[3]"),)
    assert error.dtypes == (("b", "float32", "float16"),)
    assert all(not tensor.any() for tensor in target.values())


def test_shapes_that_differ_are_refused_without_strict_too(tmp_path: Path) -> None:
    save(tmp_path, a=[1, 2])
    with pytest.raises(TargetMismatchError, match=r"a \(checkpoint \[2\], target \[3\]\)"):
        open_checkpoint(tmp_path).load_into({"a": torch.zeros(3)}, strict=False)


def test_cast_converts_and_counts(tmp_path: Path) -> None:
    save(tmp_path, a=[1.5, -2], b=[3])
    target = {"a": torch.zeros(2, dtype=torch.bfloat16), "b": torch.zeros(1)}
    report = open_checkpoint(tmp_path).load_into(target, cast=True)
    assert target["a"].tolist() == [1.5, -2.0]
    assert report.cast == {"float32 -> bfloat16": 1}


def test_what_is_converted_on_the_way_is_taken_from_views_and_the_rest_read_straight_into_place(tmp_path: Path) -> None:
    save(tmp_path, a=[1.5, -2])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.load_into({"a": torch.zeros(2, dtype=torch.bfloat16)}, cast=True).reader == "safetensors"
    assert checkpoint.load_into({"a": torch.zeros(2)}).reader == "threaded"


def test_cast_materialises_a_meta_parameter_in_the_dtype_the_model_declared(tmp_path: Path) -> None:
    save(tmp_path, weight=[1.5, -2])
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(2, dtype=torch.bfloat16, device="meta"))
    open_checkpoint(tmp_path).load_into(module, cast=True)
    assert torch.bfloat16 == module.weight.dtype
    assert module.weight.tolist() == [1.5, -2.0]


def test_strict_false_reports_what_is_missing_and_unexpected(tmp_path: Path) -> None:
    save(tmp_path, a=[1], extra=[2])
    target = {"a": torch.zeros(1), "absent": torch.full((1,), 9.0)}
    report = open_checkpoint(tmp_path).load_into(target, strict=False)
    assert (report.missing, report.unexpected) == (("absent",), ("extra",))
    assert (target["a"].tolist(), target["absent"].tolist()) == ([1.0], [9.0])


def test_a_tied_name_is_not_missing(tmp_path: Path) -> None:
    save(tmp_path, embed=[1, 2])
    model = Tied()
    report = open_checkpoint(tmp_path).load_into(model)
    assert model.head.tolist() == [1.0, 2.0]
    assert report.tied == (("embed", "head"),)


def test_a_tied_meta_parameter_stays_tied(tmp_path: Path) -> None:
    save(tmp_path, head=[1, 2])
    with torch.device("meta"):
        model = Tied()
    open_checkpoint(tmp_path).load_into(model)
    assert model.embed is model.head
    assert model.embed.tolist() == [1.0, 2.0]


def test_tied_names_with_equal_bytes_load_and_with_other_bytes_are_refused(tmp_path: Path) -> None:
    save(tmp_path, embed=[1, float("nan")], head=[1, float("nan")])
    model = Tied()
    open_checkpoint(tmp_path).load_into(model)
    assert model.head[0] == 1.0
    save(tmp_path, embed=[1, 2], head=[1, 3])
    model = Tied()
    with pytest.raises(TiedWeightsError, match="'head'"):
        open_checkpoint(tmp_path).load_into(model)
    assert not model.embed.any()


def test_buffers_are_loaded_and_non_persistent_ones_left_on_meta_are_said(tmp_path: Path) -> None:
    save(tmp_path, mean=[1, 2])
    with torch.device("meta"):
        module = nn.Module()
        module.register_buffer("mean", torch.zeros(2))
        module.register_buffer("table", torch.zeros(2), persistent=False)
    report = open_checkpoint(tmp_path).load_into(module)
    assert module.mean.tolist() == [1.0, 2.0]
    assert not isinstance(module.mean, nn.Parameter)
    assert report.left_on_meta == ("table",)


def test_a_meta_parameter_keeps_what_an_engine_hung_on_it(tmp_path: Path) -> None:
    save(tmp_path, weight=[1, 2])
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(2, device="meta"), requires_grad=False)
    module.weight.output_dim = 0
    open_checkpoint(tmp_path).load_into(module)
    assert module.weight.output_dim == 0
    assert not module.weight.requires_grad


def test_a_meta_tensor_in_a_mapping_is_refused(tmp_path: Path) -> None:
    save(tmp_path, a=[1])
    with pytest.raises(TypeError, match="'a' is a meta tensor"):
        open_checkpoint(tmp_path).load_into({"a": torch.empty(1, device="meta")})


def test_something_that_is_no_target_is_refused(tmp_path: Path) -> None:
    save(tmp_path, a=[1])
    with pytest.raises(TypeError, match="not list"):
        open_checkpoint(tmp_path).load_into([torch.zeros(1)])  # type: ignore[arg-type]


def test_a_failure_on_the_way_names_what_was_written_and_leaves_a_meta_module_alone(tmp_path: Path) -> None:
    class Growing(dict[str, torch.Tensor]):
        """A target whose second tensor appears when the first was written: there the file changes."""

    path = save(tmp_path, a=[1], b=[2])

    class Trap(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.Tensor.copy_:
                with path.open("ab") as file:
                    file.write(b"!")
            return super().__torch_function__(func, types, args, kwargs or {})

    target = {"a": torch.zeros(1).as_subclass(Trap), "b": torch.zeros(1)}
    with pytest.raises(FileChangedError, match="1 targets were written") as caught:
        open_checkpoint(path, reader="safetensors").load_into(target)
    assert caught.value.written == ("a",)


def test_aliases_fill_a_missing_name_only_when_asked(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"embed": ("F32", [1], floats(7))}, head="embed", format="pt")
    target = {"embed": torch.zeros(1), "head": torch.zeros(1)}
    with pytest.raises(TargetMismatchError, match="head"):
        open_checkpoint(tmp_path).load_into(target)
    report = open_checkpoint(tmp_path).load_into(target, resolve_aliases=True)
    assert target["head"].tolist() == [7.0]
    assert report.aliases == {"head": "embed"}


def meta_module(*names: str) -> nn.Module:
    module = nn.Module()
    for name in names:
        module.register_parameter(name, nn.Parameter(torch.empty(1, device="meta")))
    return module


def test_one_tensor_that_fills_two_untied_parameters_is_not_shared_by_them(tmp_path: Path) -> None:
    """Training one would change the other."""
    write_tensors(tmp_path / "model.safetensors", {"embed": ("F32", [1], floats(7))}, head="embed")
    module = meta_module("embed", "head")
    open_checkpoint(tmp_path).load_into(module, resolve_aliases=True)
    with torch.no_grad():
        module.embed.add_(1)
    assert (module.embed.item(), module.head.item()) == (8, 7)


def test_a_module_that_is_half_on_meta_is_filled_in_both_ways(tmp_path: Path) -> None:
    save(tmp_path, a=[1], b=[2])
    module = meta_module("a")
    module.b = nn.Parameter(torch.zeros(1))
    kept = module.b
    report = open_checkpoint(tmp_path).load_into(module)
    assert module.b is kept
    assert (module.a.item(), module.b.item()) == (1, 2)
    assert not report.selection.request.into_targets


def test_a_meta_module_is_filled_by_owned_tensors_when_asked(tmp_path: Path) -> None:
    path = save(tmp_path, a=[1])
    module = meta_module("a")
    open_checkpoint(tmp_path).load_into(module, owned=True)
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert module.a.item() == 1


def test_names_left_out_of_a_meta_module_stay_on_meta_and_are_said(tmp_path: Path) -> None:
    save(tmp_path, a=[1])
    module = meta_module("a", "b")
    report = open_checkpoint(tmp_path).load_into(module, strict=False)
    assert (module.a.item(), module.b.is_meta, report.missing) == (1, True, ("b",))


def test_a_device_that_the_target_is_not_on_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, a=[1])
    target = {"a": torch.zeros(1)}
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device='cuda' is no device that can be used here"):
            open_checkpoint(tmp_path).load_into(target, device="cuda")
        monkeypatch.setattr(placement, "device_of", str)  # as a machine that has one answers
    with pytest.raises(ValueError, match="'a' has memory on 'cpu' already"):
        open_checkpoint(tmp_path).load_into(target, device="cuda")
    with pytest.raises(ValueError, match="no values on the meta device"):
        open_checkpoint(tmp_path).load_into(target, device="meta")
    assert target["a"].item() == 0
    open_checkpoint(tmp_path).load_into(target, device="cpu")
    assert target["a"].item() == 1


def test_a_shared_module_is_filled_once_under_whichever_name_was_saved(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"right.weight": ("F32", [1, 1], floats(5))})
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = nn.Module()
            model.left = model.right = nn.Linear(1, 1, bias=False)
        open_checkpoint(tmp_path).load_into(model)
        assert model.left.weight.item() == 5
        assert model.left.weight is model.right.weight


DTYPES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4,
    "U64": 8, "BOOL": 1, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_written_in_place_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    data = bytes(i % 2 for i in range(4 * DTYPES[dtype]))
    write_tensors(tmp_path / "model.safetensors", {"w": (dtype, [4], data)})
    checkpoint = open_checkpoint(tmp_path)
    target = {"w": torch.zeros_like(checkpoint.get_tensor("w"))}
    report = checkpoint.load_into(target)
    assert data == bytes(target["w"].view(torch.uint8).tolist())
    assert report.cast == {}


def test_a_filter_that_remembers_is_asked_once_about_each_name(tmp_path: Path) -> None:
    save(tmp_path, a=[1], b=[2], c=[3])
    left = ["a", "c"]

    def once(name: str) -> bool:
        return name in left and bool(left.pop(left.index(name)))

    assert set(open_checkpoint(tmp_path).state_dict(key_filter=once)) == {"a", "c"}


class Transposed(nn.Module):
    """``wide`` and ``tall`` are one memory, seen in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.zeros(2, 3))
        self.tall = nn.Parameter(self.wide.data.t())


@pytest.mark.parametrize("agree", [True, False])
def test_targets_that_overlap_in_memory_hold_what_the_checkpoint_has_or_it_is_said(agree: bool, tmp_path: Path) -> None:
    tall = [0, 3, 1, 4, 2, 5] if agree else range(6)
    wide = ("F32", [2, 3], floats(*range(6)))
    write_tensors(tmp_path / "model.safetensors", {"wide": wide, "tall": ("F32", [3, 2], floats(*tall))})
    model = Transposed()
    if agree:
        open_checkpoint(tmp_path).load_into(model)
        assert model.wide.tolist() == [[0, 1, 2], [3, 4, 5]]
    else:
        with pytest.raises(TiedWeightsError, match="shares memory with another one"):
            open_checkpoint(tmp_path).load_into(model)


def test_neighbours_in_one_memory_are_filled_each(tmp_path: Path) -> None:
    """Views of one fused weight, by rows and by columns: their spans overlap, their elements do not."""
    save(tmp_path, rows=[1, 2], more=[3, 4])
    fused = torch.zeros(4)
    open_checkpoint(tmp_path).load_into({"rows": fused[0::2], "more": fused[1::2]})
    assert fused.tolist() == [1, 3, 2, 4]


def test_an_expanded_target_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    save(tmp_path, a=[1], b=[2, 3])
    target = {"a": torch.zeros(1), "b": torch.zeros(1).expand(2)}
    with pytest.raises(TypeError, match="target 'b' is expanded"):
        open_checkpoint(tmp_path).load_into(target)
    assert target["a"].item() == 0
