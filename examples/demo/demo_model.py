# SPDX-License-Identifier: Apache-2.0
"""The model of the demo: a small Llama, saved in shards by transformers, so that no byte comes from our own code."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(os.environ.get("WEIGHT_READERS_DEMO", "build/demo/llama"))
CONFIG = LlamaConfig(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)


def save() -> None:
    """Write the sharded checkpoint, unless it is there."""
    if not (FOLDER / "model.safetensors.index.json").exists():
        torch.manual_seed(0)
        LlamaForCausalLM(CONFIG).save_pretrained(FOLDER, max_shard_size="40MB")


def build() -> LlamaForCausalLM:
    """An instance with other weights than those on disk."""
    torch.manual_seed(1)
    return LlamaForCausalLM(CONFIG).eval()


def check(model: LlamaForCausalLM) -> str:
    """Compare the loaded module's output with that of a module filled by the safetensors library."""
    reference = build()
    weights: dict[str, torch.Tensor] = {}
    for shard in sorted(FOLDER.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            weights |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    reference.load_state_dict(weights)
    tokens = torch.arange(64).reshape(2, 32) * 127 % CONFIG.vocab_size
    with torch.no_grad():
        ours, theirs = model(tokens).logits, reference(tokens).logits
    if not torch.equal(ours, theirs):
        raise SystemExit(f"the outputs differ by up to {(ours - theirs).abs().max()}")
    return f"logits {list(ours.shape)} equal those of the module that plain safetensors filled, bit for bit"
