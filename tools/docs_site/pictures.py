# SPDX-License-Identifier: Apache-2.0
"""What the site shows of the command: its output in a real terminal, and the files that ``--plot`` writes, as SVG."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from rich.console import Console
from rich.text import Text
from safetensors.torch import save_file

from weight_readers_loader.cli import cli

COMMAND = Path(sys.executable).with_name("weight-readers")
WIDTH = 110
# Rich names a font on a server of others.
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)

SHOWN = {"list": "list", "explain": "explain model.safetensors --into-existing"}
PLOTTED = {"inspect": "inspect tiny-Q4_K_M.gguf", "bench": "bench model.safetensors --rounds 3"}


def draw(folder: Path) -> None:
    """Write the pictures into ``folder``. Their checkpoints are made in the current one."""
    folder = folder.resolve()
    _write_checkpoints()
    for name, words in SHOWN.items():
        picture = _svg(_on_terminal(words), title=f"weight-readers {words}")
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    for name, words in PLOTTED.items():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main([*shlex.split(words), "--plot", str(folder / f"{name}.svg")], standalone_mode=False)


def _on_terminal(words: str) -> str:
    """What the command writes to a terminal of `WIDTH` columns, colours included."""
    master, slave = os.openpty()
    settings = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHT_READERS_")}
    settings |= {"TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    settings.pop("NO_COLOR", None)
    command = [COMMAND, *shlex.split(words)]
    with subprocess.Popen(command, env=settings, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        written = b""
        with contextlib.suppress(OSError), os.fdopen(master, "rb", buffering=0) as screen:
            while data := screen.read(65536):
                written += data
    if process.returncode:
        raise RuntimeError(f"weight-readers {words} ended with {process.returncode}: {written.decode()}")
    return written.decode().replace("\r\n", "\n")


def _svg(output: str, title: str) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(output.rstrip()), soft_wrap=True)
        return _FONT.sub("", console.export_svg(title=title, unique_id="terminal"))


def _write_checkpoints() -> None:
    save_file({f"layers.{i}.weight": torch.ones(1024, 1024) for i in range(8)}, "model.safetensors")
    _write_gguf("tiny-Q4_K_M.gguf", blocks=12, width=1024)


def _write_gguf(path: str, *, blocks: int, width: int) -> None:
    """Zeros, of the types that llama.cpp chooses for the layers of a Q4_K_M model."""
    writer = gguf.GGUFWriter(path, "llama")
    q4, q6 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K

    def packed(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        per_block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor(f"{name}.weight", np.zeros((rows, columns // per_block * nbytes), np.uint8), raw_dtype=kind)

    packed("token_embd", 4 * width, width, q6)
    for block in range(blocks):
        finer = block < blocks // 8 or block >= blocks * 7 // 8 or (block - blocks // 8) % 3 == 2
        writer.add_tensor(f"blk.{block}.attn_norm.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_output"):
            packed(f"blk.{block}.{name}", width, width, q4)
        packed(f"blk.{block}.attn_k", width // 4, width, q4)
        packed(f"blk.{block}.attn_v", width // 4, width, q6 if finer else q4)
        for name in ("ffn_gate", "ffn_up"):
            packed(f"blk.{block}.{name}", 3 * width, width, q4)
        packed(f"blk.{block}.ffn_down", width, 3 * width, q6 if finer else q4)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
