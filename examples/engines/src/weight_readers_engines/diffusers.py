# SPDX-License-Identifier: Apache-2.0
"""A component of a diffusers pipeline, filled through weight-readers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from weight_readers_engines.skeleton import default_dtype, open_for, skeleton
from weight_readers_loader import LoadReport

if TYPE_CHECKING:
    from diffusers import ModelMixin


def load_component(
    reference: str | os.PathLike[str],
    model_class: Any,
    *,
    subfolder: str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[ModelMixin, LoadReport]:
    """The ``model_class`` of ``subfolder`` in evaluation mode, and the report of its load.

    ``dtype`` is that of the model, float32 where None as in diffusers; what the files hold in another one is
    converted, but in modules that the class keeps in float32. ``options`` are those of `open_checkpoint`.

    Raises TargetMismatchError, before anything is read, for names that only one of model and checkpoint has.
    """
    settings = model_class.load_config(reference, subfolder=subfolder)
    with default_dtype(dtype):
        model: ModelMixin = skeleton(lambda: model_class.from_config(settings))
    _keep_single(model)
    report = open_for(model, reference, subfolder=subfolder, **options).load_into(model, cast=True)
    return model.eval(), report


def _keep_single(model: ModelMixin) -> None:
    """float32 for what the class says does not bear less, whatever dtype the model has."""
    kept = set(model._keep_in_fp32_modules or ())
    for name, parameter in model.named_parameters():
        if not kept.isdisjoint(name.split(".")):
            parameter.data = parameter.data.float()
