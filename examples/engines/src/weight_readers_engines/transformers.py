# SPDX-License-Identifier: Apache-2.0
"""A model of transformers, filled through weight-readers: from safetensors or torch files, or packed from GGUF."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from weight_readers_engines.skeleton import open_for, skeleton
from weight_readers_loader import LoadReport

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from weight_readers_gguf.model import PlacementReport


def load_model(
    reference: str | os.PathLike[str],
    model_class: Any,
    *,
    config: PretrainedConfig | None = None,
    cast: bool = False,
    **options: Any,
) -> tuple[PreTrainedModel, LoadReport]:
    """A ``model_class`` (an Auto class, or a model's own) in evaluation mode, and the report of its load.

    ``config`` is what ``AutoConfig`` finds for ``reference`` where None; its dtype is the model's. ``cast`` converts
    what the files hold in another dtype. ``options`` are those of `open_checkpoint`.

    Names in the checkpoint of buffers that the model computes itself (rotary tables, position ids) are left out. Raises
    TargetMismatchError, before anything is read, for all others that the model lacks, and for parameters that get none.
    """
    config = _config_of(reference) if config is None else config
    model = _skeleton(model_class, config)
    report = open_for(model, reference, **options).load_into(model, cast=cast)
    return model.eval(), report


def load_packed_model(
    reference: str | os.PathLike[str],
    model_class: Any,
    config: PretrainedConfig,
    *,
    values: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] | None = None,
) -> tuple[PreTrainedModel, PlacementReport]:
    """The same from a GGUF file, with its quantized weights packed as they are stored.

    Names are those that the ``gguf`` package knows for the architecture that the file names. ``values`` changes plain
    tensors by patterns of the model's names, as llama.cpp stores some in another form (Gemma's norms with 1 added).
    Llama's own architecture is refused: its q and k rows are stored in another order.
    """
    from weight_readers_gguf import load_packed
    from weight_readers_gguf.checkpoint import read_checkpoint

    checkpoint = read_checkpoint([os.fspath(reference)])
    model = _skeleton(model_class, config)
    names = _names(str(checkpoint.metadata["general.architecture"]), config, model)
    report = load_packed(model, checkpoint, rename=lambda name: names.get(name, name), values=values or {})
    return model.eval(), report


def _config_of(reference: str | os.PathLike[str]) -> PretrainedConfig:
    from transformers import AutoConfig

    config: PretrainedConfig = AutoConfig.from_pretrained(reference)
    return config


def _skeleton(model_class: Any, config: PretrainedConfig) -> PreTrainedModel:
    make = getattr(model_class, "from_config", None) or model_class._from_config
    model: PreTrainedModel = skeleton(lambda: make(config))
    model.tie_weights()
    return model


def _names(architecture: str, config: PretrainedConfig, model: PreTrainedModel) -> dict[str, str]:
    """llama.cpp's name of a tensor -> the model's."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    if architecture not in known or architecture == "llama":
        raise ValueError(
            f"the rows of architecture {architecture!r} are not those of transformers' model, or it is not known; "
            "load the file with open_checkpoint(..., dequantize='bfloat16') and adapters of your own"
        )
    table = get_tensor_name_map(known[architecture], config.num_hidden_layers)
    found = {table.get_name(name, try_suffixes=(".weight", ".bias")): name for name in model.state_dict()}
    return {stored: name for stored, name in found.items() if stored is not None}
