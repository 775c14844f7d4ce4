# SPDX-License-Identifier: Apache-2.0
"""What must be known of MiniMax-H3 to load it: sizes that a header says, islands, and layouts by source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from h3_model import H3Config, MiniH3

from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.model import PlacementReport, QKVLayout, QKVRows, load_packed
from weight_readers_gguf.tensors import Delivery, GGUFTensor
from weight_readers_loader import open_checkpoint

PATCH_EMBED = "visual.patch_embed.weight"


def islands(config: H3Config) -> list[str]:
    """Parameters that are float32 in a bfloat16 model."""
    own = ["video_patch_proj.*", "audio_patch_proj.*", "final_layer.video_out.*", "final_layer.audio_out.*"]
    timed = ["time_embedder.*"] if config.curve_grid is None else ["adaln_*", "*.adaln_proj.linear.*"]
    return own + timed


def qkv(config: H3Config, layout: QKVLayout) -> QKVRows:
    return QKVRows(layout=layout, heads=config.heads, head_dim=config.head_dim)


def folded(config: H3Config) -> tuple[int, ...]:
    """The patch embedding where only four dimensions can be stored: those of its output and input are one."""
    channels, *kernel = config.patch
    return config.dim * channels, *kernel


def sized(config: H3Config, table: GGUFTensor | None) -> H3Config:
    """The configuration with the curve of the checkpoint, if it has one: known before the model is built."""
    if table is None:
        return replace(config, curve_grid=None)
    if table.delivery is not Delivery.PLAIN or len(table.shape) != 2 or table.shape[0] < 2:
        raise ValueError(
            f"{table.file}: adaln_t_table is {table.type_name} {list(table.shape)}; a curve is a matrix of plain"
            " numbers with at least 2 rows"
        )
    return replace(config, curve_grid=table.shape[0], time_embed_dim=table.shape[1])


def from_gguf(
    path: str, config: H3Config, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> tuple[MiniH3, PlacementReport]:
    """The model with its weights as the file has them: packed stays packed. The qkv of a GGUF file is contiguous."""
    checkpoint = read_checkpoint([path])
    config = sized(config, checkpoint.tensors.get("adaln_t_table"))
    with torch.device("meta"):
        model = MiniH3(config, dtype)
    rules = {"islands": islands(config), "reshape": {PATCH_EMBED: folded(config)}}
    report = load_packed(model, checkpoint, **rules, **options)
    model.rope.inv_freq = model.rope.frequencies()
    return model.eval(), report


def from_safetensors(path: str, config: H3Config, dtype: torch.dtype = torch.bfloat16) -> MiniH3:
    """The model from the native checkpoint, whose qkv is grouped by head."""
    checkpoint = open_checkpoint(path)
    table = checkpoint.tensors.get("adaln_t_table")
    if table is not None:
        config = replace(config, curve_grid=table.shape[0], time_embed_dim=table.shape[1])
    rows = qkv(config, QKVLayout.GROUPED)
    weights = checkpoint.iter_weights()
    state = {name: rows(tensor) if name.endswith("qkv_proj.weight") else tensor for name, tensor in weights}
    model = MiniH3(config, dtype)
    model.load_state_dict(state)
    return model.eval()
