# SPDX-License-Identifier: Apache-2.0
"""`examples/engines`: vLLM and vLLM-Omni load through weight-readers what they load on their own.

What needs the engines runs where ``make engines`` has brought them; the iterator they share is tested everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.engines import run_with
from transformers import LlamaConfig, LlamaForCausalLM
from weight_readers_engines.sources import reference_of, weights_of

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "experts.7.weight": torch.ones(4)}


@dataclass
class Source:
    """The fields of vLLM 0.33's ``DefaultModelLoader.Source`` and vLLM-Omni 0.30's ``ComponentSource``."""

    model_or_path: str
    revision: str | None = None
    subfolder: str | None = None
    prefix: str = ""
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list[str] | None = None


@pytest.fixture
def component(tmp_path: Path) -> Path:
    """A folder with one component in ``transformer/``, as pipelines of diffusers have it."""
    (tmp_path / "transformer").mkdir()
    save_file(TENSORS, tmp_path / "transformer" / "diffusion_pytorch_model.safetensors")
    return tmp_path


def test_a_source_is_its_subfolder_with_the_prefix_before_every_name(component: Path) -> None:
    source = Source(str(component), subfolder="transformer", prefix="transformer.")
    found = dict(weights_of(source, {"reader": "threaded"}))
    assert {f"transformer.{name}" for name in TENSORS} == found.keys()
    assert all(torch.equal(tensor, found[f"transformer.{name}"]) for name, tensor in TENSORS.items())


def test_what_the_model_does_not_use_is_not_read(component: Path) -> None:
    source = Source(str(component), subfolder="transformer", prefix="p.")
    found = weights_of(source, {}, unwanted=lambda name: name.startswith("experts.7."))
    assert [name for name, _ in found] == ["p.a.weight"]


def test_files_chosen_by_patterns_are_refused(component: Path) -> None:
    source = Source(str(component), allow_patterns_overrides=["consolidated*.safetensors"])
    with pytest.raises(ValueError, match="load_format='auto'"):
        weights_of(source, {})


def test_pt_files_that_the_model_rules_out_are_refused(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "model.pt")
    assert dict(weights_of(Source(str(tmp_path)), {})).keys() == TENSORS.keys()
    with pytest.raises(ValueError, match=r"rules out \.pt files"):
        weights_of(Source(str(tmp_path), fall_back_to_pt=False), {})


def test_a_revision_counts_on_the_hub_only(tmp_path: Path) -> None:
    assert reference_of(Source("owner/name", revision="v1")) == "owner/name@v1"
    assert reference_of(Source("owner/name")) == "owner/name"
    assert reference_of(Source(str(tmp_path), revision="v1")) == str(tmp_path)
    assert reference_of(Source("s3://bucket/model", revision="v1")) == "s3://bucket/model"


VLLM = """
import sys, torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model

# A Llama of 0.30 looks this kernel up when it is made, and only the builds for CPUs have it there. It is never called.
torch.library.define("_C::silu_and_mul", "(Tensor! out, Tensor input) -> ()")
folder, rendezvous = sys.argv[1:]

def config_for(load_format, **extra):
    return EngineArgs(
        model=folder, load_format=load_format, model_loader_extra_config=extra, skip_tokenizer_init=True,
        enforce_eager=True, max_model_len=64, dtype="float32",
    ).create_engine_config()

def loaded(config):
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
            initialize_model_parallel(1, 1)
        model = initialize_model(config)
        loader = get_model_loader(config.load_config)
        loader.download_model(config.model_config)
        loader.load_weights(model, config.model_config)
    assert loader.counter_before_loading_weights > 0
    return dict(model.named_parameters())
"""


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=160, **sizes, num_key_value_heads=2))
    model.save_pretrained(tmp_path / "llama", max_shard_size="60KB")
    return tmp_path / "llama"


def test_vllm_finds_the_load_format_by_its_entry_point_and_fills_the_same_model(llama: Path) -> None:
    script = f"""{VLLM}
expected = loaded(config_for("auto"))
found = loaded(config_for("weight_readers", reader="threaded", enable_weights_track=True))
print(expected.keys() == found.keys() and all(torch.equal(expected[n], found[n]) for n in expected), len(found) > 9)
"""
    assert run_with("vllm", script, llama, llama.parent / "rendezvous") == "True True"


def test_vllm_is_told_of_what_this_loader_would_ignore(llama: Path) -> None:
    script = f"""{VLLM}
from vllm.config import LoadConfig
from weight_readers_engines.vllm import register
register()
refused = []
for name, asked in (
    ("safetensors_load_strategy", {{"safetensors_load_strategy": "eager"}}),
    ("readr", {{"model_loader_extra_config": {{"readr": "threaded"}}}}),
    ("num_threads", {{"model_loader_extra_config": {{"num_threads": 2}}}}),
):
    try:
        get_model_loader(LoadConfig(load_format="weight_readers", **asked))
    except ValueError as error:
        refused.append(name in str(error))
print(refused)
"""
    assert run_with("vllm", script, llama, llama.parent / "unused") == "[True, True, True]"


def test_vllm_omni_gets_from_its_iterator_what_its_own_loader_gives(component: Path) -> None:
    script = """
import sys, torch
from types import SimpleNamespace
from vllm.config.load import LoadConfig
from vllm_omni.diffusion.worker import diffusion_model_runner as runner
from weight_readers_engines.vllm_omni import install

def loaded():
    asked = SimpleNamespace(
        quantization_config=None, parallel_config=None, enable_multithread_weight_load=True, num_weight_load_threads=2
    )
    loader = runner.DiffusersPipelineLoader(LoadConfig(), asked)
    source = loader.ComponentSource(sys.argv[1], "transformer", None, prefix="transformer.")
    return dict(loader.get_all_weights(torch.nn.Module(), [source]))

expected = loaded()
install(reader="threaded")
install()
found = loaded()
print(expected.keys() == found.keys() and all(torch.equal(expected[n], found[n]) for n in expected), sorted(found)[0])
"""
    assert run_with("vllm_omni", script, component) == "True transformer.a.weight"
