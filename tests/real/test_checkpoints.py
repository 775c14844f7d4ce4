# SPDX-License-Identifier: Apache-2.0
"""Real checkpoints, made by others' code: every tensor equals what the safetensors library reads, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_model
from support.measure import PAGE, cached_bytes, evict, pages_spanned
from torch import nn
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

from weight_readers_loader import open_checkpoint

CONFIG = {
    "vocab_size": 160,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert (tensor.dtype, tensor.shape) == (found[name].dtype, found[name].shape), name
        assert torch.equal(raw(tensor), raw(found[name])), name


def by_the_library(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return tensors


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in bfloat16, saved in shards by transformers."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, tie_word_embeddings=False)).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    return folder


@pytest.fixture(params=["minilm", "llama"])
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


class TestEveryTensorEqualsThatOfTheLibrary:
    def test_in_a_stream(self, folder: Path) -> None:
        assert_same(by_the_library(folder), dict(open_checkpoint(folder).iter_weights()))

    @pytest.mark.parametrize("owned", [False, True])
    def test_in_a_state_dict(self, folder: Path, owned: bool) -> None:
        checkpoint = open_checkpoint(folder)
        expected = by_the_library(folder)
        assert_same(expected, checkpoint.state_dict(owned=owned))
        assert checkpoint.report is not None
        nbytes = sum(tensor.nbytes for tensor in expected.values())
        report = checkpoint.report
        assert (len(expected), nbytes, nbytes) == (report.tensors, report.bytes_wanted, report.bytes_read)

    def test_in_tensors_that_exist(self, folder: Path) -> None:
        expected = by_the_library(folder)
        target = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
        open_checkpoint(folder).load_into(target)
        assert_same(expected, target)

    def test_one_by_one(self, folder: Path) -> None:
        checkpoint = open_checkpoint(folder)
        expected = by_the_library(folder)
        names = list(expected)[:: len(expected) // 5]
        assert_same({n: expected[n] for n in names}, {n: checkpoint.get_tensor(n) for n in names})


def test_a_filled_llama_computes_what_the_saved_one_does(llama: Path) -> None:
    reference, model = (LlamaForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).eval() for _ in range(2))
    tokens = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
        before = model(tokens).logits
        open_checkpoint(llama).load_into(model)
        expected, found = reference(tokens).logits, model(tokens).logits
    assert torch.equal(expected, found)
    assert not torch.equal(before, found)


def test_a_filled_minilm_computes_what_the_published_one_does(minilm: Path) -> None:
    reference = AutoModel.from_pretrained(minilm).eval()
    model = type(reference)(reference.config).eval()
    report = open_checkpoint(minilm).load_into(model, strict=False)
    tokens = torch.arange(32).reshape(2, 16) + 1000
    with torch.no_grad():
        expected, found = reference(tokens).last_hidden_state, model(tokens).last_hidden_state
    assert torch.equal(expected, found)
    assert report.missing == ()


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Path, LlamaForCausalLM]:
    torch.manual_seed(2)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, tie_word_embeddings=True)).eval()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path, model


def test_a_model_without_memory_and_with_tied_weights_is_filled_and_stays_tied(
    tied: tuple[Path, LlamaForCausalLM],
) -> None:
    folder, saved = tied
    with torch.device("meta"):
        model = LlamaForCausalLM(saved.config).eval()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    report = open_checkpoint(folder).load_into(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert ("model.embed_tokens.weight", "lm_head.weight") in [tuple(sorted(g, reverse=True)) for g in report.tied]
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert report.left_on_meta  # the rotary tables, which no checkpoint holds
    for name, buffer in saved.named_buffers():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, buffer.clone())
    tokens = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        assert torch.equal(saved(tokens).logits, model(tokens).logits)


def test_a_shared_name_that_save_model_dropped_is_found_in_the_metadata(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)

    saved, model = Shared(), Apart()
    save_model(saved, str(tmp_path / "model.safetensors"))
    checkpoint = open_checkpoint(tmp_path)
    ((name, source),) = checkpoint.aliases.items()
    assert {name, source} == {"embed.weight", "head.weight"}
    checkpoint.load_into(model, resolve_aliases=True)
    assert torch.equal(saved.embed.weight, model.embed.weight)
    assert torch.equal(saved.embed.weight, model.head.weight)
    assert model.embed.weight.data_ptr() != model.head.weight.data_ptr()


@pytest.mark.parametrize("reader", ["safetensors", "threaded"])
def test_a_filter_touches_the_pages_of_its_tensors_and_of_the_header_alone(
    reader: str, minilm: Path, tmp_path: Path
) -> None:
    """Its small tensors lie all over the file; what is read is counted in the page cache."""
    path = tmp_path / "model.safetensors"
    shutil.copyfile(minilm / "model.safetensors", path)
    checkpoint = open_checkpoint(tmp_path, reader=reader)
    wanted = {name: meta for name, meta in checkpoint.tensors.items() if meta.nbytes < 600_000}
    begin = min(meta.offset for meta in checkpoint.tensors.values())
    pages = pages_spanned(0, begin).union(*(pages_spanned(m.offset, m.offset + m.nbytes) for m in wanted.values()))
    assert sum(meta.nbytes for meta in wanted.values()) < path.stat().st_size // 4
    evict(path)
    for _, tensor in open_checkpoint(tmp_path, reader=reader).iter_weights(key_filter=wanted.__contains__):
        tensor.reshape(-1).view(torch.uint8)[::PAGE].sum()
    # Buffered reads may end a few pages further on; a mapping is asked for exactly its pages.
    allowed = 1.01 if reader == "threaded" else 1
    assert cached_bytes(path) <= len(pages) * PAGE * allowed
