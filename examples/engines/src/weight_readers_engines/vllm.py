# SPDX-License-Identifier: Apache-2.0
"""vLLM's model loader ``load_format="weight_readers"``, registered by the entry point ``vllm.general_plugins``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from weight_readers_engines.sources import reference_of, weights_of
from weight_readers_loader import open_checkpoint

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

LOAD_FORMAT = "weight_readers"
OWN_OPTIONS = ("reader", "reader_options", "strict", "num_weight_load_threads", "host_budget", "config")
"""Keys of ``model_loader_extra_config`` that are handed to `open_checkpoint`; vLLM's own are left to vLLM."""
DEFAULTS = {"download_dir": None, "safetensors_load_strategy": None, "pt_load_map_location": "cpu"}
"""Fields of ``LoadConfig`` about how files are read, which is ours to decide."""
THREADS = {"enable_multithread_load": None, "num_threads": None}
"""Keys of vLLM's own in ``model_loader_extra_config`` that say it again."""
UNUSED = "is_unused_weight"
"""A field of ``Source`` that vLLM 0.33 has and 0.30 has not."""


def register() -> None:
    """Make the load format known. vLLM calls it in every process, possibly more than once."""
    from vllm.model_executor import model_loader

    if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        model_loader.register_model_loader(LOAD_FORMAT)(loader_class())


def loader_class() -> type[DefaultModelLoader]:
    """vLLM's default loader with another iterator: experts of other ranks, secondary weights and the check that every
    parameter got a weight stay as they are there.
    """
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

    class WeightReadersLoader(DefaultModelLoader):
        def __init__(self, load_config: LoadConfig) -> None:
            check(load_config)
            extra = dict(load_config.model_loader_extra_config)
            self.options = {name: extra.pop(name) for name in OWN_OPTIONS if name in extra}
            super().__init__(dataclasses.replace(load_config, model_loader_extra_config=extra))

        def download_model(self, model_config: ModelConfig) -> None:
            open_checkpoint(reference_of(self.source_of(model_config)), **self.options)

        def _get_weights_iterator(self, source: DefaultModelLoader.Source) -> Iterator[tuple[str, torch.Tensor]]:
            def unwanted(name: str) -> bool:
                unused = getattr(source, UNUSED, None)
                return (unused is not None and unused(name)) or should_skip_weight(name, self.local_expert_ids)

            self.counter_before_loading_weights = self.counter_before_loading_weights or time.perf_counter()
            return weights_of(source, self.options, unwanted=unwanted)

        def get_all_weights(self, model_config: ModelConfig, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
            first = self.source_of(model_config, model)
            for source in (first, *getattr(model, "secondary_weights", ())):
                yield from self._get_weights_iterator(source)

        def source_of(self, model_config: ModelConfig, model: Any = None) -> DefaultModelLoader.Source:
            # Of a model in a store vLLM keeps the reference here, and in ``model`` the folder with its config.
            where = getattr(model_config, "model_weights", "") or model_config.model
            known = {field.name for field in dataclasses.fields(DefaultModelLoader.Source)}
            unused = {UNUSED: getattr(model, "is_unused_checkpoint_weight", None)} if UNUSED in known else {}
            return DefaultModelLoader.Source(
                where,
                model_config.revision,
                fall_back_to_pt=getattr(model, "fall_back_to_pt_during_load", True),
                allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
                **unused,
            )

    return WeightReadersLoader


def check(load_config: LoadConfig) -> None:
    """Raise ValueError for what vLLM was asked and this loader would ignore."""
    asked = {name: getattr(load_config, name) for name in DEFAULTS} | dict(load_config.model_loader_extra_config)
    for name, default in {**DEFAULTS, **THREADS}.items():
        if (found := asked.get(name)) != default:
            raise ValueError(
                f"load_format={LOAD_FORMAT!r} does not take {name}={found!r}; how files are read is said in "
                f"model_loader_extra_config, with {', '.join(OWN_OPTIONS)}, and HF_HUB_CACHE says where downloads go"
            )
