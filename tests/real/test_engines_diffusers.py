# SPDX-License-Identifier: Apache-2.0
"""`examples/engines`: components of a diffusers pipeline compute what ``from_pretrained`` makes of them.

The components are real and diffusers makes and saves them; the tiny autoencoder has the sizes of the published one, the
others small ones. Their weights are random: no package was found on an index that carries trained ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate", reason="pip install accelerate")
diffusers = pytest.importorskip("diffusers", reason="pip install diffusers")

from weight_readers_engines.diffusers import load_component  # noqa: E402

BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4}


def vae() -> Any:
    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return diffusers.AutoencoderKL(**BLOCKS, **kinds)


def unet() -> Any:
    kinds = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    return diffusers.UNet2DConditionModel(**BLOCKS, **kinds, cross_attention_dim=8, attention_head_dim=4)


def tiny_vae() -> Any:
    """The architecture and sizes of TAESD: 2.4 million parameters."""
    return diffusers.AutoencoderTiny()


def decoded(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.decode(torch.ones(1, 4, 4, 4, dtype=model.dtype)).sample
    return found


def denoised(model: Any) -> torch.Tensor:
    image, text = torch.ones(1, 4, 8, 8, dtype=model.dtype), torch.ones(1, 3, 8, dtype=model.dtype)
    found: torch.Tensor = model(image, 7, text).sample
    return found


def drawn(pipeline: Any) -> Any:
    """One image by three steps of denoising, as numbers."""
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(num_inference_steps=3, generator=torch.manual_seed(1), output_type="np").images


@pytest.mark.parametrize(
    ("make", "compute", "saved", "dtype"),
    [
        (vae, decoded, torch.float32, None),
        (tiny_vae, decoded, torch.float16, None),
        (unet, denoised, torch.bfloat16, None),
        (unet, denoised, torch.float32, torch.bfloat16),
    ],
    ids=["vae", "tiny vae", "unet of bfloat16 as float32", "unet of float32 as bfloat16"],
)
@torch.no_grad()
def test_a_component_computes_what_the_librarys_own_loading_does(
    make: Callable[[], Any],
    compute: Callable[[Any], torch.Tensor],
    saved: torch.dtype,
    dtype: torch.dtype | None,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    original = make().to(saved)
    original.save_pretrained(tmp_path / "component", max_shard_size="100KB")
    expected = type(original).from_pretrained(tmp_path, subfolder="component", torch_dtype=dtype).eval()
    model, report = load_component(tmp_path, type(original), subfolder="component", dtype=dtype)
    assert expected.dtype == model.dtype
    assert torch.equal(compute(expected), compute(model))
    assert (report.missing, report.unexpected, report.left_on_meta) == ((), (), ())


def test_what_a_class_keeps_in_float32_stays_float32(tmp_path: Path) -> None:
    class Kept(diffusers.AutoencoderKL):  # type: ignore[misc, name-defined]
        _keep_in_fp32_modules = ["conv_norm_out"]

    vae().save_pretrained(tmp_path)
    expected = Kept.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    model, _ = load_component(tmp_path, Kept, dtype=torch.bfloat16)
    dtypes = {name: parameter.dtype for name, parameter in expected.named_parameters()}
    assert {torch.float32, torch.bfloat16} == set(dtypes.values())
    assert dtypes == {name: parameter.dtype for name, parameter in model.named_parameters()}


@torch.no_grad()
def test_a_pipeline_draws_with_a_component_of_ours_what_it_draws_with_the_librarys_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kinds = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    original = diffusers.UNet2DModel(sample_size=8, **BLOCKS, **kinds)
    diffusers.DDPMPipeline(original, diffusers.DDPMScheduler()).save_pretrained(tmp_path)
    model, _ = load_component(tmp_path, diffusers.UNet2DModel, subfolder="unet")
    own, ours = (diffusers.DDPMPipeline.from_pretrained(tmp_path, **given) for given in ({}, {"unet": model}))
    assert ours.unet is model
    assert drawn(own).tolist() == drawn(ours).tolist()
