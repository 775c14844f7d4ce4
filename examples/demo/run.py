# SPDX-License-Identifier: Apache-2.0
"""``make demo``: load a sharded Llama through the command line and check its output. ``make demo REF=…``: yours."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import safe_open

from weight_readers_loader import open_checkpoint

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("weight-readers")


def run(*arguments: str) -> None:
    """Run the command line as a user would, and stop with its exit code where it fails."""
    print(f"$ weight-readers {shlex.join(arguments)}", flush=True)
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([COMMAND, *arguments], env={**os.environ, "PYTHONPATH": path}, check=False, timeout=600)
    if done.returncode:
        sys.exit(done.returncode)
    print(flush=True)


def own_model() -> None:
    sys.path.insert(0, str(HERE))
    import demo_model

    demo_model.save()
    folder = str(demo_model.FOLDER)
    run("explain", folder, "--into-existing")
    run("load", folder, "--into", "demo_model:build", "--then", "demo_model:check")


def any_checkpoint(reference: str) -> None:
    run("explain", reference)
    run("load", reference)
    checkpoint = open_checkpoint(reference)
    if checkpoint.layout.format != "safetensors":
        print(f"not compared: the safetensors library does not read {checkpoint.layout.format}")
        return
    by_file: dict[str, list[str]] = defaultdict(list)
    for name, meta in checkpoint.tensors.items():
        by_file[meta.file].append(name)
    tensors = checkpoint.state_dict()
    for path, names in by_file.items():
        with safe_open(path, framework="pt") as file:
            for name in names:
                expected = file.get_tensor(name)
                same = expected.dtype == tensors[name].dtype and torch.equal(raw(expected), raw(tensors[name]))
                if not same:
                    sys.exit(f"{name} differs from what the safetensors library reads")
    print(f"all {len(tensors)} tensors equal what the safetensors library reads, bit for bit")


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    any_checkpoint(sys.argv[1]) if sys.argv[1:] else own_model()
