# SPDX-License-Identifier: Apache-2.0
"""One set of random weights, as the two kinds of checkpoint that exist of the model. Written by others' libraries."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from h3_model import H3Config, MiniH3
from safetensors.torch import save_file

Weights = dict[str, torch.Tensor]


def random_weights(config: H3Config, seed: int = 0) -> Weights:
    """A state dict whose bfloat16 parameters hold bfloat16 numbers, and whose float32 ones need all of their bits."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in MiniH3(config).state_dict().items():
        drawn = torch.randn(parameter.shape, generator=generator)
        scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 and "table" not in name else 0.2
        weights[name] = (drawn * scale + ("norm" in name)).to(parameter.dtype)
    return weights


def write_safetensors(path: Path, weights: Weights, config: H3Config) -> Path:
    """The native checkpoint: rows of a fused projection are q, k, v of the first head, then of the next."""
    native = {name: grouped(t, config) if "qkv_proj" in name else t for name, t in weights.items()}
    save_file(native, path)
    return path


def write_gguf(path: Path, weights: Weights, kind: str) -> Path:
    """A GGUF file as converters write it: matrices of the blocks in ``kind``, all else as numbers, four dimensions."""
    writer = gguf.GGUFWriter(path, "minimax_h3")
    wanted = gguf.GGMLQuantizationType[kind]
    for name, tensor in weights.items():
        if tensor.dim() == 5:
            tensor = tensor.flatten(0, 1)
        if tensor.dtype is torch.float32:
            writer.add_tensor(name, tensor.numpy())
            continue
        own = wanted if tensor.dim() == 2 else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quantize(tensor.float().numpy(), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def grouped(qkv: torch.Tensor, config: H3Config) -> torch.Tensor:
    """``[q_all, k_all, v_all]`` as the rows q, k, v of each head in turn."""
    q, k, v = qkv.chunk(3)
    heads = range(config.heads)
    rows = [part[head * config.head_dim : (head + 1) * config.head_dim] for head in heads for part in (q, k, v)]
    return torch.cat(rows)


def requantized(weights: Weights, kind: str) -> Weights:
    """What the file of `write_gguf` stands for, by the gguf package: quantized and dequantized matrices."""
    wanted = gguf.GGMLQuantizationType[kind]

    def there_and_back(tensor: torch.Tensor) -> torch.Tensor:
        packed = gguf.quantize(tensor.float().numpy(), wanted)
        return torch.from_numpy(np.ascontiguousarray(gguf.dequantize(packed, wanted)))

    packs = {name: tensor.dim() == 2 and tensor.dtype is torch.bfloat16 for name, tensor in weights.items()}
    return {name: there_and_back(tensor) if packs[name] else tensor for name, tensor in weights.items()}
