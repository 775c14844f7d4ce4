# SPDX-License-Identifier: Apache-2.0
"""Which backend dequantizes, and what becomes of one that is installed and broken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from weight_readers_gguf.dequant import backends
from weight_readers_gguf.dequant.installed import is_installed
from weight_readers_gguf.types import BY_NAME, GGMLType


def fake(
    answer: float,
    *,
    absent: str | None = None,
    supported: Iterable[str] = ("Q4_0",),
    start: Callable[[GGMLType], None] = lambda kind: None,
) -> Any:
    def dequantize_into(packed: torch.Tensor, kind: GGMLType, out: torch.Tensor) -> None:
        out.fill_(answer)

    return SimpleNamespace(
        SUPPORTED=frozenset(supported), absent=lambda: absent, start=start, dequantize_into=dequantize_into
    )


def use(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    known = {"triton": fake(3), "compiled": fake(2), "torch": fake(1), **modules}
    monkeypatch.setattr(backends, "_module", known.__getitem__)
    monkeypatch.setattr(backends, "_absent", lambda name: known[name].absent())
    monkeypatch.setattr(backends, "_starts", backends._Starts())


def picked(device: str, name: str | None = None) -> Any:
    kind, out = BY_NAME["Q4_0"], torch.zeros(1)
    backends.pick_backend(kind, torch.device(device), name).dequantize_into(out, kind, out)
    return out.item()


def test_the_fastest_backend_of_the_device_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    assert [picked(device) for device in ("cuda", "cpu", "xpu", "mps")] == [3, 2, 1, 1]


def test_a_backend_that_is_absent_or_lacks_the_type_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, triton=fake(3, absent="no triton"), compiled=fake(2, supported=["Q4_K"]))
    assert [picked("cuda"), picked("cpu")] == [1, 1]


def test_a_named_backend_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    assert [picked("cuda", "torch"), picked("cpu", "torch"), picked("cpu", "compiled")] == [1, 1, 2]


def test_a_named_backend_that_cannot_do_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, compiled=fake(2, absent="numba is not installed"), torch=fake(1, supported=["Q4_K"]))
    with pytest.raises(ValueError, match=r"unknown backend 'numba' .*\['compiled', 'torch', 'triton'\]"):
        picked("cpu", "numba")
    with pytest.raises(ValueError, match="backend 'triton' runs on cuda, and the packed tensor is on cpu"):
        picked("cpu", "triton")
    with pytest.raises(RuntimeError, match="'compiled' cannot dequantize here: numba is not installed"):
        picked("cpu", "compiled")
    with pytest.raises(ValueError, match=r"backend 'torch' has no Q4_0; it has \['Q4_K'\]"):
        picked("cpu", "torch")


def test_on_a_cpu_the_compiled_backend_is_picked_where_numba_is_installed() -> None:
    module = backends.pick_backend(BY_NAME["Q4_K"], torch.device("cpu"))
    expected = "compiled" if find_spec("numba") else "torch"
    assert module is backends.pick_backend(BY_NAME["Q4_K"], torch.device("cpu"), expected)


def test_the_torch_backend_is_there_for_every_device() -> None:
    module = backends.pick_backend(BY_NAME["IQ1_M"], torch.device("mps"))
    assert module.absent() is None
    assert "IQ1_M" in module.SUPPORTED


# Broken ones


def broken(kind: GGMLType) -> None:
    raise AttributeError("module 'numpy' has no attribute 'long'")


def test_a_broken_backend_is_passed_over_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, compiled=fake(2, start=broken))
    with pytest.warns(
        RuntimeWarning, match="'compiled' is installed and cannot .* AttributeError: module 'numpy'"
    ) as told:
        assert [picked("cpu"), picked("cpu")] == [1, 1]
    assert len(told) == 1


def test_a_broken_triton_is_passed_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, triton=fake(3, start=broken))
    with pytest.warns(RuntimeWarning, match="'triton' is installed and cannot"):
        assert picked("cuda") == 1


def test_a_broken_backend_that_is_named_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, compiled=fake(2, start=broken))
    with pytest.raises(RuntimeError, match="'compiled' cannot dequantize here: AttributeError: module") as caught:
        picked("cpu", "compiled")
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_backend_is_started_once_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    use(monkeypatch, compiled=fake(2, start=lambda kind: started.append(kind.name)))
    assert [picked("cpu"), picked("cpu")] == [2, 2]
    assert started == ["Q4_0"]


def test_want_of_memory_is_no_fault_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(kind: GGMLType) -> None:
        raise MemoryError

    use(monkeypatch, compiled=fake(2, start=start))
    with pytest.raises(MemoryError):
        picked("cpu")


PROGRAM = """
import sys, types, warnings
if sys.argv[1] == "stub":
    sys.modules["numba"] = types.ModuleType("numba")
import torch
from weight_readers_gguf.dequant import dequantize, dispatch
dispatch._compiling = dispatch._Compiling(elements=0)
block = torch.tensor([0, 60] + [1] * 16, dtype=torch.uint8)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for name in ("Q4_0", "IQ4_NL"):
        dequantize(block, name)
print(dequantize(block, "Q4_0").tolist() == [-7.0] * 16 + [-8.0] * 16)
print(*(f"{each.category.__name__} {each.message}" for each in told), sep="\\n")
"""


@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise ImportError('Numba needs NumPy 2.0 or less')", "Numba needs NumPy 2.0 or less"),
        ("import sys; sys.no_such_thing", "no attribute 'no_such_thing'"),
        ("stub", "numba"),
        ("NUMBA_DISABLE_JIT", "NUMBA_DISABLE_JIT is set"),
    ],
)
def test_with_a_broken_numba_torch_dequantizes_and_the_cause_is_told(tmp_path: Path, how: str, said: str) -> None:
    environment = {**os.environ}
    if how == "NUMBA_DISABLE_JIT":
        environment[how] = "1"
    elif how != "stub":
        (tmp_path / "numba.py").write_text(how)
        environment["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    right, *told = done.stdout.splitlines()
    assert right == "True"
    assert len(told) == 1
    assert told[0].startswith("RuntimeWarning")
    assert said in told[0]


def test_a_module_without_a_specification_is_taken_for_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", ModuleType("numba"))
    assert is_installed("numba")
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not is_installed("numba")


def test_triton_by_name_takes_a_cpu_where_it_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert [picked("cpu", "triton"), picked("cpu")] == [3, 2]
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="'triton' runs on cuda"):
        picked("cpu", "triton")
