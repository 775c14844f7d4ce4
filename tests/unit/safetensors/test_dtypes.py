# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from support.files import entry, write_safetensors

from weight_readers.errors import UnknownDtypeError, UnsupportedDtypeError
from weight_readers_safetensors import DTYPES, dtype_of, torch_dtype


def library_names(folder: Path) -> list[str]:
    """The dtypes the library knows: its error for an unknown one lists them."""
    path = write_safetensors(folder / "x.safetensors", {"a": entry("Q9_9", [1], 0, 4)}, bytes(4))
    with pytest.raises(SafetensorError) as caught, safe_open(path, "pt"):
        pass
    return re.findall(r"`(\w+)`", str(caught.value).split("expected one of")[1])


def test_the_table_has_the_librarys_dtypes_in_its_order(tmp_path: Path) -> None:
    assert list(DTYPES) == library_names(tmp_path)


@pytest.mark.parametrize("name", DTYPES)
def test_the_library_agrees_on_the_size_of_each_dtype(name: str, tmp_path: Path) -> None:
    nbytes = DTYPES[name].bits  # eight elements

    write_safetensors(tmp_path / "right", {"a": entry(name, [8], 0, nbytes)}, bytes(nbytes))
    with safe_open(tmp_path / "right", "pt") as file:
        assert file.get_slice("a").get_dtype() == name

    write_safetensors(tmp_path / "wrong", {"a": entry(name, [8], 0, nbytes + 1)}, bytes(nbytes + 1))
    with pytest.raises(SafetensorError), safe_open(tmp_path / "wrong", "pt"):
        pass


@pytest.mark.parametrize("name", [name for name in DTYPES if not name.startswith("F6_")])
def test_the_library_yields_the_torch_dtype_of_the_table(name: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x", {"a": entry(name, [8], 0, DTYPES[name].bits)}, bytes(DTYPES[name].bits))
    with safe_open(tmp_path / "x", "pt") as file:
        tensor = file.get_tensor("a")

    assert tensor.dtype == torch_dtype(name, path="x")
    assert str(tensor.dtype) == f"torch.{DTYPES[name].torch_name}"
    assert tensor.numel() * DTYPES[name].packing == 8


@pytest.mark.parametrize("name", ["F6_E2M3", "F6_E3M2"])
def test_a_dtype_no_torch_has_is_unsupported_and_says_so(name: str) -> None:
    with pytest.raises(UnsupportedDtypeError) as caught:
        torch_dtype(name, path="m.safetensors", tensor="w")
    assert "No release of torch has it" in str(caught.value)
    assert torch.__version__ in str(caught.value)
    assert (caught.value.path, caught.value.tensor) == ("m.safetensors", "w")


def test_a_dtype_this_torch_lacks_is_looked_up_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    with pytest.raises(UnsupportedDtypeError, match="pip install --upgrade torch"):
        torch_dtype("F8_E8M0", path="m.safetensors")
    assert torch_dtype("F32", path="m.safetensors") is torch.float32


def test_an_unknown_dtype_names_file_tensor_and_the_known_ones() -> None:
    with pytest.raises(UnknownDtypeError) as caught:
        dtype_of("f32", path="m.safetensors", tensor="w")
    message = str(caught.value)
    assert "unknown dtype 'f32': m.safetensors, tensor 'w'" in message
    assert "BF16" in message
    assert "'F32'" in message


def test_units_are_the_elements_that_fill_whole_bytes() -> None:
    assert {name: dtype.unit for name, dtype in DTYPES.items() if dtype.unit != 1} == {
        "F4": 2,
        "F6_E2M3": 4,
        "F6_E3M2": 4,
    }
