# SPDX-License-Identifier: Apache-2.0
"""`examples/engines`: models of transformers filled through weight-readers compute what ``from_pretrained`` gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from weight_readers_engines.transformers import load_model, load_packed_model

from weight_readers import TargetMismatchError

pytest.importorskip("accelerate", reason="pip install accelerate")

TOKENS = torch.arange(32).reshape(2, 16)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
GEMMA = Gemma3TextConfig(vocab_size=128, **SIZES, num_key_value_heads=2, head_dim=16, sliding_window=32)


def outputs(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS)[0]
    return found


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=160, **SIZES, num_key_value_heads=2, tie_word_embeddings=True))
    model.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    return tmp_path


def test_a_published_bert_computes_what_the_librarys_own_loading_does(minilm: Path) -> None:
    model, report = load_model(minilm, AutoModel)
    assert torch.equal(outputs(AutoModel.from_pretrained(minilm).eval()), outputs(model))
    # The file has ``embeddings.position_ids``, which the model of today computes.
    assert (report.missing, report.unexpected, report.left_on_meta) == ((), (), ())


def test_tied_weights_in_bfloat16_stay_tied_and_rotary_tables_are_computed(tied: Path) -> None:
    model, report = load_model(tied, AutoModelForCausalLM)
    expected = LlamaForCausalLM.from_pretrained(tied).eval()
    assert expected.dtype == model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(outputs(expected), outputs(model))
    assert report.left_on_meta == ()


def test_a_name_that_the_model_lacks_is_refused_before_anything_is_read(minilm: Path, tmp_path: Path) -> None:
    shutil.copyfile(minilm / "config.json", tmp_path / "config.json")
    tensors = load_file(minilm / "model.safetensors")
    save_file({**tensors, "encoder.extra.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(TargetMismatchError) as refused:
        load_model(tmp_path, AutoModel)
    assert refused.value.unexpected == ("encoder.extra.weight",)


def test_a_mask_that_the_model_computes_is_left_out_and_another_name_with_its_last_word_is_refused(
    tmp_path: Path,
) -> None:
    sizes = {"num_layers": 1, "attention_types": [[["global"], 1]], "num_heads": 2, "hidden_size": 8, "vocab_size": 16}
    GPTNeoForCausalLM(GPTNeoConfig(**sizes, bos_token_id=1, eos_token_id=2)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.attn.attention.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_model(tmp_path, AutoModelForCausalLM)[1].unexpected == ()
    save_file({**tensors, "lm_head.bias": torch.ones(16)}, tmp_path / "model.safetensors")
    with pytest.raises(TargetMismatchError) as refused:
        load_model(tmp_path, AutoModelForCausalLM)
    assert refused.value.unexpected == ("lm_head.bias",)


def test_a_parameter_that_the_checkpoint_lacks_is_refused(minilm: Path, tmp_path: Path) -> None:
    shutil.copyfile(minilm / "config.json", tmp_path / "config.json")
    tensors = load_file(minilm / "model.safetensors")
    del tensors["pooler.dense.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TargetMismatchError) as refused:
        load_model(tmp_path, AutoModel)
    assert refused.value.missing == ("pooler.dense.bias",)


def less_one(weight: torch.Tensor) -> torch.Tensor:
    return weight - 1


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    """A Gemma 3 with random weights as GGUF, written by the gguf package as llama.cpp has it: norms with 1 added."""
    torch.manual_seed(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, GEMMA.num_hidden_layers)
    writer = gguf.GGUFWriter(tmp_path / "gemma.gguf", "gemma3")
    writer.add_block_count(GEMMA.num_hidden_layers)
    writer.add_embedding_length(GEMMA.hidden_size)
    writer.add_feed_forward_length(GEMMA.intermediate_size)
    writer.add_head_count(GEMMA.num_attention_heads)
    writer.add_head_count_kv(GEMMA.num_key_value_heads)
    writer.add_key_length(GEMMA.head_dim)
    writer.add_layer_norm_rms_eps(GEMMA.rms_norm_eps)
    writer.add_sliding_window(GEMMA.sliding_window)
    writer.add_rope_freq_base(1e6)
    writer.add_context_length(512)
    writer.add_vocab_size(GEMMA.vocab_size)
    quantized = gguf.GGMLQuantizationType.Q8_0
    for name, parameter in Gemma3ForCausalLM(GEMMA).named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight",))
        numbers = (torch.randn_like(parameter) / 5).numpy()
        if numbers.ndim == 1:
            writer.add_tensor(stored, numbers + 1)
        else:
            writer.add_tensor(stored, gguf.quantize(numbers, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "gemma.gguf"


def test_a_packed_gguf_model_computes_what_the_librarys_own_dequantizing_load_does(gemma: Path) -> None:
    expected = Gemma3ForCausalLM.from_pretrained(gemma.parent, gguf_file=gemma.name, dtype=torch.float32).eval()
    model, report = load_packed_model(gemma, Gemma3ForCausalLM, expected.config, values={"*norm.weight": less_one})
    assert torch.equal(outputs(expected), outputs(model))
    # 34 bytes for 32 weights, of the tied embedding once.
    assert report.unset == ()
    assert report.packed_nbytes * 32 == 34 * sum(p.numel() for p in expected.parameters() if p.dim() == 2)


def test_an_architecture_whose_rows_lie_otherwise_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "llama.gguf", "llama")
    writer.add_tensor("token_embd.weight", torch.ones(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = LlamaConfig(vocab_size=4, **SIZES, num_key_value_heads=2)
    with pytest.raises(ValueError, match="dequantize="):
        load_packed_model(tmp_path / "llama.gguf", LlamaForCausalLM, config)
