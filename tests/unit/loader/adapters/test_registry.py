# SPDX-License-Identifier: Apache-2.0
"""Adapters by name: ours, and those that other distributions add by an entry point, as for a quantization of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.commands import document, invoke
from support.plugins import Site

from weight_readers import ConfigError, DuplicateReaderError, PluginContractError, PluginLoadError
from weight_readers_loader import LoadConfig, open_checkpoint
from weight_readers_loader.adapters import adapter_named, available_adapters

OURS = ["concat", "dtype", "grouped_qkv", "prefix", "rename", "split"]

SCALED = """
from dataclasses import replace
import torch
from weight_readers import AdapterError
from weight_readers_loader.adapters import Adapter, Made

class Scaled(Adapter):
    '''Eight-bit floats and the scale of each row become bfloat16.'''

    def __init__(self, suffix="_scale"):
        self.suffix = suffix

    def plan(self, tensors):
        for name, meta in tensors.items():
            scale = tensors.get(name + self.suffix)
            if meta.dtype == "float8_e4m3fn":
                if scale is None:
                    raise AdapterError("its scale is missing", path=meta.file, tensor=name)
                new = replace(meta, dtype="bfloat16", nbytes=2 * meta.nbytes)
                yield Made(meta=new, sources=(name, scale.name), make=self.numbers)
            elif not name.endswith(self.suffix):
                yield Made(meta=meta, sources=(name,))

    def numbers(self, weight, scale):
        return (weight.float() * scale[:, None]).bfloat16()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    site.module("acme_scaled", SCALED)
    yield site
    site.forget_modules()


def add(site: Site, distribution: str, **entry_points: str) -> None:
    lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
    site.distribution(distribution, f"[weight_readers_adapters]\n{lines}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    save_file({"a.w": WEIGHT, "a.w_scale": SCALE, "b": torch.ones(1)}, tmp_path / "m" / "model.safetensors")
    return tmp_path / "m"


WEIGHT = torch.tensor([[1.0, -2.0], [0.5, 4.0]]).to(torch.float8_e4m3fn)
SCALE = torch.tensor([2.0, 0.25])
NUMBERS = torch.tensor([[2.0, -4.0], [0.125, 1.0]], dtype=torch.bfloat16)


def test_ours_are_there_without_any_other() -> None:
    assert list(available_adapters()) == OURS


@pytest.mark.parametrize("way", ["python", "config", "command"])
def test_an_adapter_of_another_distribution_is_found_by_name(
    site: Site, folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(site, "acme-scaled", acme="acme_scaled:Scaled")
    assert available_adapters()["acme"] == "acme-scaled"
    if way == "command":
        (site.folder / "shows.py").write_text("def shown(tensors):\n    return tensors['a.w'].tolist()\n")
        done = invoke("load", folder, "--adapter", 'acme={"suffix": "_scale"}', "--then", "shows:shown", "--json")
        assert done.exit_code == 0, done.stderr
        assert document(done)["result"] == str(NUMBERS.tolist())
        return
    given: dict[str, Any] = (
        {"adapters": [adapter_named("acme")]}
        if way == "python"
        else {"config": LoadConfig(adapters=({"name": "acme"},))}
    )
    found = open_checkpoint(folder, **given).state_dict()
    assert set(found) == {"a.w", "b"}
    assert torch.equal(found["a.w"], NUMBERS)


@pytest.mark.parametrize(("option", "fix"), [("strp", "Did you mean 'strip'?"), ("zz", "There is")])
def test_an_option_that_an_adapter_does_not_have_is_told_with_those_it_has(option: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"adapter 'prefix' has no option '{option}'") as caught:
        adapter_named("prefix", **{option: "x."})
    assert fix in str(caught.value)


def test_one_name_of_two_distributions_or_of_ours_is_an_error(site: Site) -> None:
    add(site, "acme-scaled", prefix="acme_scaled:Scaled")
    with pytest.raises(DuplicateReaderError, match="'prefix' is registered by more than one distribution"):
        adapter_named("prefix", add="a.")


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("acme_nowhere:Scaled", PluginLoadError, "adapter 'acme' of acme-scaled is broken: ModuleNotFoundError"),
        ("acme_scaled:Sclaed", PluginLoadError, "AttributeError"),
        ("builtins:dict", PluginContractError, "adapter 'acme' of acme-scaled is dict, not an Adapter"),
    ],
)
def test_a_broken_one_is_an_error_that_names_its_distribution(
    site: Site, value: str, error: type[Exception], words: str
) -> None:
    add(site, "acme-scaled", acme=value)
    assert "acme" in available_adapters()
    with pytest.raises(error, match=words):
        adapter_named("acme")
    assert adapter_named("prefix", add="a.") is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--adapter", "prefx"], "there is no adapter 'prefx'. Did you mean 'prefix'?"),
        (["--adapter", 'prefix={"ad": "a."}'], "adapter 'prefix' has no option 'ad'. Did you mean 'add'?"),
        (["--adapter", "prefix={"], "the options of 'prefix' are no JSON"),
        (["--adapter", "prefix=[]"], "is not NAME or NAME={JSON}"),
        (["--keep-dtype", "*.norm.*"], "keeps dtypes from nothing. Give dtype too"),
        (["--dtype", "int8"], "'int8' is not one of"),
    ],
)
@pytest.mark.parametrize("command", ["load", "explain"])
def test_what_is_wrong_with_the_words_ends_with_2(folder: Path, command: str, arguments: list[str], words: str) -> None:
    done = invoke(command, folder, *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("command", ["load", "explain"])
def test_an_adapter_that_does_not_fit_the_checkpoint_is_told_before_a_load_and_by_explain(
    folder: Path, command: str
) -> None:
    done = invoke(command, folder, "--adapter", 'split={"part": "qkv", "into": ["q", "k"]}')
    assert "Split is for 'qkv', and no name has that part" in done.stdout + done.stderr
    assert done.exit_code == 1
