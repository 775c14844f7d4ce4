# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md: its messages are those that the commands give, word for word."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.commands import invoke
from support.files import write_sharded, write_tensors
from support.hub_models import quantized_repository
from support.hub_server import only_loopback
from unit.pt.torch_files import Bomb, save

DOCUMENT = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
ENTRY = re.compile(r"^\$ weight-readers (?P<command>[^\n]+)\n(?P<said>Error: .+?)^```$", re.MULTILINE | re.DOTALL)


def entries() -> dict[str, str]:
    """Command -> what the document says that it says."""
    return {match["command"]: match["said"] for match in ENTRY.finditer(DOCUMENT.read_text())}


def missing_shard() -> None:
    write_sharded(Path("llama"))[1].unlink()


def mistyped_path() -> None:
    write_sharded(Path("llama"))


def cut_short() -> None:
    path = write_tensors(Path("cut.safetensors"), {"w": ("F32", [4], bytes(16))})
    path.write_bytes(path.read_bytes()[:-6])


def pointer() -> None:
    Path("lfs").mkdir()
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"
    Path("lfs/model.safetensors").write_text(text)


def quantized() -> None:
    for name, data in quantized_repository().items():
        if "/" not in name:
            Path("quants").mkdir(exist_ok=True)
            Path("quants", name).write_bytes(data)


def pipeline() -> None:
    for name in ("text_encoder", "transformer", "vae"):
        write_tensors(Path("flux", name, "model.safetensors"), {"w": ("F32", [1], bytes(4))})
    Path("flux/model_index.json").write_text("{}")


def two_models() -> None:
    write_sharded(Path("mixed"), index=False)
    write_tensors(Path("mixed/model.safetensors"), {"w": ("F32", [1], bytes(4))})


def other_names() -> None:
    write_tensors(Path("net.safetensors"), {"model.weight": ("F32", [2, 3], bytes(24))})
    Path("troubled.py").write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(3, 2, bias=False)\n")


def pickled() -> None:
    save(Path("trained.bin"), {"w": torch.ones(2), "x": Bomb(Path("it-ran"))})


CASES: dict[str, Callable[[], None]] = {
    "load ./lama": mistyped_path,
    "load own/model": mistyped_path,
    "load llama": missing_shard,
    "load cut.safetensors": cut_short,
    "load lfs": pointer,
    "load quants": quantized,
    "load flux": pipeline,
    "load mixed": two_models,
    "load net.safetensors --into troubled:build": other_names,
    "load trained.bin": pickled,
}


@pytest.mark.parametrize("command", CASES)
def test_the_command_says_what_the_document_says(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    only_loopback(monkeypatch, "http://127.0.0.1:9", "~/.cache/huggingface/hub", offline=True)
    CASES[command]()
    done = invoke(*command.split(), "--no-progress")
    assert done.exit_code == 1
    assert done.stderr == entries()[command]


def test_the_table_explains_each_message_by_a_part_of_it() -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")][1:]
    messages = list(entries().values())
    assert len(rows) == len(messages)
    assert all(row[0] in message for row, message in zip(rows, messages, strict=True))


def test_the_document_has_ten_messages_and_no_other() -> None:
    assert list(entries()) == list(CASES)
