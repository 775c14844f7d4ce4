# SPDX-License-Identifier: Apache-2.0
"""Whatever a pickle says, nothing of it is imported and nothing of it runs."""

from __future__ import annotations

import io
import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.pt.torch_files import Bomb, dumped, legacy, one_tensor, save, zipped

from weight_readers import CheckpointError, UnsafePickleError
from weight_readers_pt.header import scan_header
from weight_readers_pt.stand_ins import STAND_INS, Call
from weight_readers_pt.unpickling import Bounded, InertUnpickler, Malformed, load_inert

GLOBAL, REDUCE, STOP = b"c", b"R", b"."


def error_of(path: Path) -> CheckpointError:
    header, (error,) = scan_header(str(path))
    assert dict(header.tensors) == {}
    return error


def inert(pickled: bytes) -> Any:
    value, seen = load_inert(Bounded(io.BytesIO(pickled)))
    return value, list(seen.unknown)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda bomb: bomb,
    "beside a tensor": lambda bomb: {"w": torch.ones(2), "x": bomb},
    "in a nested state dict": lambda bomb: {"state_dict": {"w": torch.ones(2)}, "args": [{"x": (bomb,)}]},
}


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED.keys())
def test_a_bomb_in_a_torch_file_is_named_and_does_not_go_off(
    tmp_path: Path, marker: Path, wrapped: Callable[[Any], Any], is_legacy: bool
) -> None:
    error = error_of(save(tmp_path / "x.bin", wrapped(Bomb(marker)), legacy=is_legacy))
    assert isinstance(error, UnsafePickleError)
    assert "posix.system" in str(error)
    assert "no code was run" in str(error)
    assert "weights_only" not in str(error)
    assert not marker.exists()


def test_the_bomb_is_one(tmp_path: Path, marker: Path) -> None:
    pickle.loads(dumped(Bomb(marker)))
    assert marker.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_bomb_in_a_bare_pickle_of_any_protocol_does_not_go_off(tmp_path: Path, marker: Path, protocol: int) -> None:
    (tmp_path / "x.pt").write_bytes(dumped(Bomb(marker), protocol))
    assert isinstance(error_of(tmp_path / "x.pt"), CheckpointError)
    path = zipped(tmp_path / "y.pt", dumped(Bomb(marker), protocol))
    assert isinstance(error_of(path), UnsafePickleError)
    assert not marker.exists()


def test_every_name_that_is_asked_for_is_listed_in_order() -> None:
    names = [b"cposix\nsystem\n0", b"cbuiltins\nexec\n0", b"\x8c\x02os\x8c\x05popen\x930", b"cposix\nsystem\n0"]
    assert inert(b"".join(names) + b"N.") == (None, ["posix.system", "builtins.exec", "os.popen"])


@pytest.mark.parametrize(
    "pickled",
    [
        b"(S'touch it-ran'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch it-ran'\no.",
        b"cos\nsystem\n(S'touch it-ran'\ntR.",
        b"\x80\x02cos\nsystem\nU\x0ctouch it-ran\x85\x81.",
        b"\x80\x04cos\nsystem\nU\x0ctouch it-ran\x85}\x92.",
        b"\x80\x02cos\nsystem\n)\x81}U\x0ctouch it-ranNsb.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}U\x08__code__Nsb.",
        b"\x80\x02ctorch\nSize\n}U\x08__call__cos\nsystem\nsbU\x0ctouch it-ran\x85R.",
    ],
    ids=[
        "INST",
        "OBJ",
        "REDUCE",
        "NEWOBJ",
        "NEWOBJ_EX",
        "BUILD",
        "BUILD of a stand-in",
        "a call of a stand-in changed",
    ],
)
def test_every_opcode_that_calls_finds_nothing_to_call(
    pickled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(STAND_INS)
    with_error = None
    try:
        _, unknown = inert(pickled)
    except Malformed as error:
        with_error = error
    assert with_error is not None or set(unknown) <= {"os.system"}
    assert list(tmp_path.iterdir()) == []
    assert before == STAND_INS


def test_no_stand_in_can_be_changed_by_a_file() -> None:
    for name, stand_in in STAND_INS.items():
        assert isinstance(stand_in, tuple), name
        with pytest.raises(AttributeError):
            stand_in.anything = 1


def test_what_can_be_called_gives_records_and_plain_values_only() -> None:
    torch_names = {name for name, stand_in in STAND_INS.items() if isinstance(stand_in, Call)}
    assert not any(name.startswith(("os.", "posix.", "subprocess.", "importlib.")) for name in torch_names)


def test_extension_codes_are_refused() -> None:
    with pytest.raises(Malformed, match="extension registry"):
        inert(b"\x80\x02\x82\x01.")


def test_the_opcodes_that_call_or_set_state_or_claim_memory_are_replaced_and_no_others() -> None:
    ours = {chr(code) for code, method in InertUnpickler.dispatch.items() if method.__module__ != "pickle"}
    names = {op.name for op in pickletools.opcodes if op.code in ours}
    assert names == {"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BYTEARRAY8"}


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (b"", "ends early"),
        (b"\x80\x02", "ends early"),
        (b"\x80\x09.", "unsupported pickle protocol"),
        (b"\x80\x02]b.", "IndexError"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f", "asks for more than"),
        (b"\x80\x02B" + b"\xff\xff\xff\x7f", "asks for more than"),
        (b"\x80\x05\x96" + b"\xff" * 5 + b"\x00" * 3, "asks for more than"),
        (b"\x80\x02X" + b"\xff\xff\xff\xff" + b"abc.", "asks for more than"),
        (b"\x80\x02K\x01K\x02R.", "nothing to call"),
        (b"\x80\x02X\x01\x00\x00\x00aQ.", "no storage"),
    ],
)
def test_a_broken_pickle_is_one_error(pickled: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        inert(pickled)


def test_a_memo_number_takes_no_memory() -> None:
    # The unpickler in C makes a table of that many entries: 32 GiB.
    assert inert(b"\x80\x02Nr\xff\xff\xff\xff.") == (None, [])


def test_many_mappings_of_one_list_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weight_readers_pt.unpickling.MAX_PICKLE_BYTES", 64 * 1000)
    pairs = b"](" + b"".join(b"K%cN\x86" % number for number in range(100)) + b"eq\x00"
    calls = b"ccollections\nOrderedDict\nh\x00\x85R0" * 11
    with pytest.raises(Malformed, match="too many mappings"):
        inert(b"\x80\x02" + pairs + calls + b"N.")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
@example(b"\x80\x02cos\nsystem\n)R.")
def test_any_bytes_are_a_value_or_one_error(pickled: bytes) -> None:
    with suppress(Malformed):
        inert(pickled)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_torch_pickle_with_a_few_bytes_changed_is_a_value_or_one_error(data: st.DataObject) -> None:
    pickled = bytearray(one_tensor())
    for _ in range(data.draw(st.integers(1, 3))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        inert(bytes(pickled))


def test_the_modules_that_take_files_apart_import_no_torch() -> None:
    code = "import sys, weight_readers_pt.header, weight_readers_pt.meta; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "False\n"


def test_the_arguments_of_a_training_run_are_called_that(tmp_path: Path) -> None:
    pickled = b"\x80\x02ctransformers.training_args\nTrainingArguments\n)\x81}X\x01\x00\x00\x00aNsb."
    error = error_of(zipped(tmp_path / "training_args.bin", pickled))
    assert isinstance(error, UnsafePickleError)
    assert "arguments of a training run, not weights" in str(error)
    assert "transformers.training_args.TrainingArguments" in str(error)


def test_a_legacy_file_is_refused_for_its_imports_before_its_storages_are_looked_at(
    tmp_path: Path, marker: Path
) -> None:
    error = error_of(legacy(tmp_path / "x.pt", dumped({"x": Bomb(marker)}), rest=b"garbage"))
    assert isinstance(error, UnsafePickleError)
    assert not marker.exists()
