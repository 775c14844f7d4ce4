# SPDX-License-Identifier: Apache-2.0
"""Adapters on the way into a model: the plan is checked first, and what they leave alone is still read into place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.plugins import Site
from torch import nn

import weight_readers
from weight_readers import TargetMismatchError
from weight_readers_loader import LoadConfig, open_checkpoint
from weight_readers_loader.adapters import Concat, Dtype, GroupedQKV, Prefix, Rename, Split

TELLING = """
import json
from dataclasses import replace
from pathlib import Path
from weight_readers import hookimpl
from weight_readers_threaded.plugin import INFO
from weight_readers_threaded.reader import ThreadedReader

HEARD = Path({heard!r})

def note(how, names):
    told = json.loads(HEARD.read_text())
    HEARD.write_text(json.dumps(told + [[how, sorted(names)]]))

class Telling(ThreadedReader):
    def read_into(self, files, targets, **options):
        note("into", targets)
        return super().read_into(files, targets, **options)

    def iter_weights(self, files, **options):
        for name, tensor in super().iter_weights(files, **options):
            note("tensor", [name])
            yield name, tensor

@hookimpl
def weight_readers_describe():
    return replace(INFO, name="telling")

@hookimpl
def weight_readers_create(options):
    reader = Telling(**options)
    reader.info = weight_readers_describe()
    return reader
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 4) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(4, 6, dtype=torch.bfloat16)


def fused(model: Model) -> dict[str, torch.Tensor]:
    """The state of ``model`` as a checkpoint that is grouped, fused, of other names and in float32."""
    state = {f"net.{name}": tensor.float() for name, tensor in model.state_dict().items() if name[1] != "."}
    for kind in ("weight", "bias"):
        q, k, v = (getattr(getattr(model, part), kind).detach() for part in "qkv")
        # Two heads of two rows, each a group of its own.
        state[f"net.qkv.{kind}"] = torch.cat([q[:2], k[:2], v[:2], q[2:], k[2:], v[2:]])
    return state


ADAPTERS = [
    Prefix(strip="net."),
    GroupedQKV("qkv", heads=2, head_dim=2),
    Split("qkv", ["q", "k", "v"]),
    Dtype("bfloat16", only=["out.*"]),
]


@pytest.fixture
def source() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def folder(tmp_path: Path, source: Model) -> Path:
    (tmp_path / "m").mkdir()
    save_file(fused(source), tmp_path / "m" / "model.safetensors")
    return tmp_path / "m"


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Any]]]:
    path, site = tmp_path / "heard.json", Site(tmp_path / "site")
    path.write_text("[]")
    site.plugin("telling", TELLING.format(heard=str(path)))
    monkeypatch.syspath_prepend(str(site.folder))
    weight_readers.refresh()
    yield lambda: json.loads(path.read_text())
    monkeypatch.undo()
    site.forget_modules()
    weight_readers.refresh()


def assert_equal(found: nn.Module, expected: nn.Module) -> None:
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
        assert found.state_dict()[name].dtype == tensor.dtype


@pytest.mark.parametrize("reader", ["safetensors", "threaded", None])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_fused_checkpoint_fills_a_model(folder: Path, source: Model, reader: str | None, device: str) -> None:
    with torch.device(device):
        model = Model()
    report = open_checkpoint(folder, reader=reader, adapters=ADAPTERS).load_into(model)
    assert_equal(model, source)
    assert report.cast == {"float32 -> bfloat16": 2}
    assert (report.missing, report.unexpected) == ((), ())


def test_what_no_adapter_changes_is_read_into_place_and_everything_is_read_once(
    folder: Path, source: Model, heard: Callable[[], list[Any]]
) -> None:
    model, checkpoint = Model(), open_checkpoint(folder, reader="telling", adapters=ADAPTERS)
    report = checkpoint.load_into(model)
    assert_equal(model, source)
    assert heard() == [
        ["into", ["net.norm.bias", "net.norm.weight"]],
        *[["tensor", [name]] for name in checkpoint.tensors if ".norm." not in name],
    ]
    nbytes = sum(tensor.nbytes for tensor in fused(source).values())
    assert (report.tensors, report.bytes_read, report.bytes_wanted) == (6, nbytes, nbytes)


def test_renamed_alone_it_is_all_read_into_place(folder: Path, heard: Callable[[], list[Any]], source: Model) -> None:
    target = {name.removeprefix("net."): torch.zeros_like(t) for name, t in fused(source).items()}
    open_checkpoint(folder, reader="telling", adapters=[Prefix(strip="net.")]).load_into(target)
    assert [how for how, _ in heard()] == ["into"]
    assert all(torch.equal(target[name.removeprefix("net.")], t) for name, t in fused(source).items())


def test_only_what_the_model_wants_is_read(folder: Path, heard: Callable[[], list[Any]], source: Model) -> None:
    target = {"k.weight": torch.zeros(4, 6)}
    report = open_checkpoint(folder, reader="telling", adapters=ADAPTERS).load_into(target, strict=False)
    assert heard() == [["tensor", ["net.qkv.weight"]]]
    assert torch.equal(target["k.weight"], source.k.weight)
    assert report.bytes_read == 12 * 6 * 4


def test_the_plan_is_checked_against_the_model_before_anything_is_read(
    folder: Path, heard: Callable[[], list[Any]]
) -> None:
    model = Model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chain = [*ADAPTERS[:2], Split("qkv", ["q", "k"]), Rename({"norm.weight": "norm.scale"})]
    with pytest.raises(TargetMismatchError) as caught:
        open_checkpoint(folder, reader="telling", adapters=chain).load_into(model)
    assert set(caught.value.missing) == {"v.weight", "v.bias", "norm.weight"}
    assert caught.value.unexpected == ("norm.scale",)
    assert {name: (found, wanted) for name, found, wanted in caught.value.shapes} == {
        "q.weight": ("[6, 6]", "[4, 6]"),
        "k.weight": ("[6, 6]", "[4, 6]"),
        "q.bias": ("[6]", "[4]"),
        "k.bias": ("[6]", "[4]"),
    }
    assert {name for name, _, _ in caught.value.dtypes} == {"out.weight", "out.bias"}
    assert heard() == []
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_tied_names_are_compared_as_they_are_after_the_adapters(tmp_path: Path) -> None:
    save_file({"a.w": torch.ones(2, 3), "b.w": torch.ones(2, 3).clone()}, tmp_path / "model.safetensors")
    model = nn.Module()
    model.a, model.b = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    model.b.weight = model.a.weight
    renaming = Rename(patterns=[(r"\.w$", ".weight")])
    report = open_checkpoint(tmp_path, adapters=[renaming]).load_into(model)
    assert torch.equal(model.a.weight, torch.ones(2, 3))
    assert report.tied == (("a.weight", "b.weight"),)


def test_the_dtypes_of_a_configuration_are_converted_after_the_adapters(folder: Path) -> None:
    tables = [{"name": "concat", "parts": ["norm", "missing"], "into": "x", "only": ["*.nothing"]}]
    config = LoadConfig(dtype="float16", keep_dtype=("a.norm.*",))
    found = open_checkpoint(folder, adapters=[Prefix("a.", strip="net.")], config=config).state_dict()
    assert found["a.norm.weight"].dtype is torch.float32
    assert found["a.qkv.weight"].dtype is torch.float16
    with pytest.raises(weight_readers.AdapterError, match="Concat is for 'norm', and no name has that part"):
        open_checkpoint(folder, config=LoadConfig(adapters=tables))  # type: ignore[arg-type]


def test_components_of_a_pipeline_have_a_namespace_each(tmp_path: Path) -> None:
    pipeline = nn.ModuleDict({name: nn.Linear(2, size) for size, name in enumerate(("unet", "text_encoder", "vae"), 1)})
    for name, component in pipeline.items():
        (tmp_path / name).mkdir()
        save_file({k: t.detach() for k, t in component.state_dict().items()}, tmp_path / name / "model.safetensors")
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "P", **{n: ["x", "Y"] for n in pipeline}}))
    found: dict[str, torch.Tensor] = {}
    for name in pipeline:
        found.update(open_checkpoint(tmp_path, subfolder=name, adapters=[Prefix(f"{name}.")]).iter_weights())
    assert found.keys() == pipeline.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in pipeline.state_dict().items())
    fresh = nn.ModuleDict({name: nn.Linear(2, size) for size, name in enumerate(pipeline, 1)})
    for name in pipeline:
        report = open_checkpoint(tmp_path, subfolder=name, adapters=[Prefix(f"{name}.")]).load_into(fresh, strict=False)
        assert report.unexpected == ()
    assert all(torch.equal(fresh.state_dict()[name], tensor) for name, tensor in pipeline.state_dict().items())


def test_joined_parts_are_written_into_the_model_that_has_them_as_one(tmp_path: Path) -> None:
    parts = {f"{part}.weight": torch.full((rows, 3), float(rows)) for part, rows in (("q", 2), ("k", 1), ("v", 1))}
    save_file(parts, tmp_path / "model.safetensors")
    model = nn.ModuleDict({"qkv": nn.Linear(3, 4, bias=False)})
    open_checkpoint(tmp_path, adapters=[Concat(["q", "k", "v"], into="qkv")]).load_into(model)
    assert model["qkv"].weight.tolist() == [[2.0] * 3, [2.0] * 3, [1.0] * 3, [1.0] * 3]
