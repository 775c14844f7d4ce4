# SPDX-License-Identifier: Apache-2.0
"""vLLM-Omni's loader of diffusion pipelines with its iterator ``_get_weights_iterator(source, model=None)`` over ours.

vLLM-Omni has no registry of loaders: `install` puts the class where its model runner takes its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from weight_readers_engines.sources import Source, weights_of


class ReadsThroughUs:
    """Mixed in before ``DiffusersPipelineLoader``: what is read is ours to decide, what becomes of it theirs."""

    counter_before_loading_weights: float
    weight_readers_options: dict[str, Any] = {}
    """Those of `open_checkpoint`, for every component."""

    def _get_weights_iterator(
        self, source: Source, model: nn.Module | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        self.counter_before_loading_weights = self.counter_before_loading_weights or time.perf_counter()
        weights = weights_of(source, {**self._threads(), **self.weight_readers_options})
        adapter = None if model is None else self._get_checkpoint_adapter(model, source, use_safetensors=True)
        return weights if adapter is None else adapter.adapt(weights)

    def _threads(self) -> dict[str, Any]:
        """What the engine was asked for goes by the same names there and here."""
        config = vars(self).get("od_config")
        names = ("enable_multithread_weight_load", "num_weight_load_threads")
        return {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}

    def _get_checkpoint_adapter(self, model: nn.Module, source: Source, use_safetensors: bool) -> Any:
        """What converts a quantized checkpoint of theirs, or None; their loader has it."""
        return super()._get_checkpoint_adapter(model, source, use_safetensors)  # type: ignore[misc]


def install(**options: Any) -> None:
    """Let this process's model runner load through weight-readers, with ``options`` of `open_checkpoint`."""
    from vllm_omni.diffusion.worker import diffusion_model_runner as runner

    theirs = runner.DiffusersPipelineLoader
    if not issubclass(theirs, ReadsThroughUs):
        said = {"weight_readers_options": options}
        runner.DiffusersPipelineLoader = type("WeightReadersPipelineLoader", (ReadsThroughUs, theirs), said)
