# SPDX-License-Identifier: Apache-2.0
"""The places that weights are in on this machine, each through ``weight-readers load``; and each of them gone wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.commands import document, invoke
from support.tensors import digest
from unit.gguf.gguf_bytes import write_gguf

from weight_readers_loader import open_checkpoint
from weight_readers_loader.adapters import Prefix

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.ones(2)}
COMPONENTS = ("transformer", "text_encoder", "vae")


def transformers_folder(root: Path) -> Path:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, (name, tensor) in zip(names, WEIGHTS.items(), strict=True):
        save_file({name: tensor}, root / file)
    index = {"metadata": {"total_size": 32}, "weight_map": dict(zip(WEIGHTS, names, strict=True))}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    (root / "config.json").write_text('{"model_type": "llama"}')
    return root


def bin_folder(root: Path) -> Path:
    torch.save(WEIGHTS, root / "pytorch_model.bin")
    (root / "config.json").write_text("{}")
    return root


def gguf_file(root: Path) -> Path:
    tensors = {n: (0, tuple(t.shape), t.numpy().tobytes()) for n, t in WEIGHTS.items()}
    return write_gguf(root / "tiny-F32.gguf", tensors, {"general.architecture": "tiny"})


def cache_snapshot(root: Path) -> Path:
    """As huggingface_hub keeps them: blobs by their digest, and links with the names of the repository."""
    repo = root / "models--acme--tiny"
    snapshot = repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    for folder in (repo / "blobs", repo / "refs", snapshot, root / "made"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(snapshot.name)
    for path in sorted(transformers_folder(root / "made").iterdir()):
        blob = repo / "blobs" / digest(path)
        path.rename(blob)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def pipeline(root: Path) -> Path:
    for name in COMPONENTS:
        (root / name).mkdir()
        file = "model" if name == "text_encoder" else "diffusion_pytorch_model"
        save_file(WEIGHTS, root / name / f"{file}.safetensors")
    index = {"_class_name": "TinyPipeline", **{name: ["tiny", "Tiny"] for name in COMPONENTS}}
    (root / "model_index.json").write_text(json.dumps(index))
    return root


PLACES = {
    "transformers": (transformers_folder, "safetensors"),
    "bin": (bin_folder, "pt"),
    "gguf": (gguf_file, "gguf"),
    "cache": (cache_snapshot, "safetensors"),
}


@pytest.mark.parametrize("place", PLACES)
def test_it_is_loaded_as_it_was_saved(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, reader = PLACES[place]
    reference = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"shows_{place}.py").write_text(
        "import json\nshow = lambda t: json.dumps({n: x.tolist() for n, x in t.items()})\n"
    )
    done = invoke("load", reference, "--then", f"shows_{place}:show", "--json")
    assert done.exit_code == 0, done.stderr
    data = document(done)
    assert json.loads(data["result"]) == {name: tensor.tolist() for name, tensor in WEIGHTS.items()}
    assert (data["report"]["reader"], data["report"]["tensors"], data["report"]["bytes_read"]) == (reader, 2, 32)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_of_a_pipeline_is_loaded_under_its_prefix(
    tmp_path: Path, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names_of.py").write_text("def names(tensors):\n    return ' '.join(sorted(tensors))\n")
    prefix = json.dumps({"add": f"{component}."})
    done = invoke(
        "load",
        tmp_path,
        "--subfolder",
        component,
        "--adapter",
        f"prefix={prefix}",
        "--then",
        "names_of:names",
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    assert document(done)["result"] == f"{component}.a.weight {component}.b.bias"


def test_three_components_make_one_namespace(tmp_path: Path) -> None:
    pipeline(tmp_path)
    found: dict[str, torch.Tensor] = {}
    for name in COMPONENTS:
        found |= open_checkpoint(tmp_path, subfolder=name, adapters=[Prefix(f"{name}.")]).state_dict()
    assert set(found) == {f"{component}.{name}" for component in COMPONENTS for name in WEIGHTS}
    assert all(torch.equal(tensor, WEIGHTS[name.partition(".")[2]]) for name, tensor in found.items())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


Break = Callable[[Path], Any]
WRONG: list[tuple[str, Break, str]] = [
    ("transformers", lambda p: (p / "model-00002-of-00002.safetensors").unlink(), "model-00002-of-00002.safetensors"),
    ("transformers", lambda p: cut(p / "model-00001-of-00002.safetensors"), "the file is cut"),
    ("transformers", lambda p: (p / "model.safetensors.index.json").write_text("{"), "index.json"),
    ("bin", lambda p: cut(p / "pytorch_model.bin"), "pytorch_model.bin"),
    ("bin", lambda p: (p / "pytorch_model.bin").write_bytes(b""), "pytorch_model.bin"),
    ("gguf", lambda p: p.write_bytes(p.read_bytes()[:-32]), "tiny-F32.gguf"),
    ("gguf", lambda p: p.write_bytes(b"GGML" + p.read_bytes()[4:]), "tiny-F32.gguf"),
    ("cache", lambda p: next(p.glob("*00001*")).resolve().unlink(), "a symbolic link to ../../blobs/"),
    ("cache", lambda p: cut(next(p.glob("*00001*")).resolve()), "model-00001-of-00002.safetensors"),
]


@pytest.mark.parametrize(("place", "spoil", "words"), WRONG)
def test_one_that_went_wrong_is_one_clear_error(tmp_path: Path, place: str, spoil: Break, words: str) -> None:
    reference = PLACES[place][0](tmp_path)
    spoil(reference)
    done = invoke("load", reference)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--subfolder transformer"),
        (["--subfolder", "unet"], "one of text_encoder, transformer, vae"),
        (["--subfolder", "vae", "--format", "gguf"], "no gguf files here"),
    ],
)
def test_a_pipeline_asked_for_wrongly_is_one_clear_error(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = invoke("load", pipeline(tmp_path), *arguments)
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
