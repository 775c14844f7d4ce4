# SPDX-License-Identifier: Apache-2.0
"""A small diffusion transformer with the contract of MiniMax-H3: its layouts and dtypes, not its sizes.

What makes it a test of a loader: a fused q, k, v projection, ``fc1`` whose output buffer is computed in, modulation
from a time embedding or from a curve that a pruned checkpoint holds, parameters that are float32 in a bfloat16
model, and a patch embedding of five dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class H3Config:
    """``curve_grid`` is the number of rows of ``adaln_t_table``, or None for a model that embeds the time itself."""

    dim: int = 128
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    video: int = 32
    audio: int = 64
    time_embed_dim: int = 64
    curve_grid: int | None = None
    patch: tuple[int, int, int, int] = (3, 2, 4, 4)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class TimeEmbedder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, dim, dtype=torch.float32)
        self.fc2 = nn.Linear(dim, dim, dtype=torch.float32)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        half = self.fc1.in_features // 2
        angles = t[:, None] * torch.exp(torch.arange(half) * (-8.0 / half)) * 100
        return self.fc2(functional.silu(self.fc1(torch.cat([angles.cos(), angles.sin()], dim=-1))))


class Rope(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.inv_freq = nn.Buffer(self.frequencies(), persistent=False)

    def frequencies(self) -> torch.Tensor:
        return 1.0 / 10000.0 ** (torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * self.inv_freq
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class AdalnProj(nn.Module):
    """Six modulations per block. After a curve its weights are float32 and so is its arithmetic."""

    def __init__(self, config: H3Config, dtype: torch.dtype) -> None:
        super().__init__()
        dtype = dtype if config.curve_grid is None else torch.float32
        self.linear = nn.Linear(config.time_embed_dim, 6 * config.dim, dtype=dtype)

    def forward(self, c: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        own = self.linear.bias.dtype
        return self.linear(functional.silu(c).to(own)).to(dtype)[:, None].chunk(6, dim=-1)


class Block(nn.Module):
    def __init__(self, config: H3Config, rope: Rope, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = config.heads
        self.rope = [rope]  # shared by all blocks, and a child of the model only
        self.adaln_proj = AdalnProj(config, dtype)
        self.qkv_proj = nn.Linear(config.dim, 3 * config.dim, bias=False, dtype=dtype)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=1e-6, dtype=dtype)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=1e-6, dtype=dtype)
        self.out_proj = nn.Linear(config.dim, config.dim, bias=False, dtype=dtype)
        self.fc1 = nn.Linear(config.dim, 2 * config.hidden, bias=False, dtype=dtype)
        self.fc2 = nn.Linear(config.hidden, config.dim, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln_proj(c, x.dtype)
        x = x + gate1 * self.attention(modulated(x, shift1, scale1))
        return x + gate2 * self.fc2(silu_and_mul(self.fc1(modulated(x, shift2, scale2))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv_proj(x).chunk(3, dim=-1))
        q, k = self.rope[0](self.q_norm(q)), self.rope[0](self.k_norm(k))
        return self.out_proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FinalLayer(nn.Module):
    def __init__(self, config: H3Config) -> None:
        super().__init__()
        self.video_out = nn.Linear(config.dim, config.video, dtype=torch.float32)
        self.audio_out = nn.Linear(config.dim, config.audio, dtype=torch.float32)

    def forward(self, x: torch.Tensor, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.layer_norm(x.float(), x.shape[-1:])
        return self.video_out(x[:, :frames]), self.audio_out(x[:, frames:])


class MiniH3(nn.Module):
    """``forward``: video ``[b, n, video]``, audio ``[b, m, audio]``, image ``[b, 3, 2, h, w]``, t ``[b]`` in [0, 1]."""

    def __init__(self, config: H3Config, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.video_patch_proj = nn.Linear(config.video, config.dim, dtype=torch.float32)
        self.audio_patch_proj = nn.Linear(config.audio, config.dim, dtype=torch.float32)
        channels, *kernel = config.patch
        self.visual = nn.Module()
        self.visual.patch_embed = nn.Conv3d(channels, config.dim, tuple(kernel), tuple(kernel), bias=False, dtype=dtype)
        if config.curve_grid is None:
            self.time_embedder = TimeEmbedder(config.time_embed_dim)
        else:
            self.adaln_t_table = nn.Parameter(torch.empty(config.curve_grid, config.time_embed_dim))
            self.adaln_mean = nn.Parameter(torch.empty(config.time_embed_dim))
        self.rope = Rope(config.head_dim)
        self.blocks = nn.ModuleList(Block(config, self.rope, dtype) for _ in range(config.layers))
        self.final_layer = FinalLayer(config)

    def forward(
        self, video: torch.Tensor, audio: torch.Tensor, image: torch.Tensor, t: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        reference = self.visual.patch_embed(image.to(self.dtype)).flatten(2).transpose(1, 2)
        heard, seen = self.audio_patch_proj(audio), self.video_patch_proj(video)
        x = torch.cat([seen.to(self.dtype), heard.to(self.dtype), reference], dim=1)
        c = self.time_embedder(t) if self.config.curve_grid is None else self.curve(t)
        for block in self.blocks:
            x = block(x, c)
        return self.final_layer(x[:, : video.shape[1] + audio.shape[1]], video.shape[1])

    def curve(self, t: torch.Tensor) -> torch.Tensor:
        """The row of the table at ``t``, between its neighbours, in float32."""
        at = t.float() * (self.adaln_t_table.shape[0] - 1)
        low = at.floor().clamp(max=self.adaln_t_table.shape[0] - 2).long()
        return torch.lerp(self.adaln_t_table[low], self.adaln_t_table[low + 1], (at - low)[:, None]) + self.adaln_mean


def modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(first half) * second half``, computed in the buffer that ``fc1`` has made: no other one is needed."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate, inplace=True).mul_(up)
