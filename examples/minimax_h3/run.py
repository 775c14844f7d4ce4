# SPDX-License-Identifier: Apache-2.0
"""The same random weights as grouped safetensors and as GGUF, loaded both ways, and the outputs compared."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from h3_checkpoints import random_weights, write_gguf, write_safetensors
from h3_contract import from_gguf, from_safetensors
from h3_model import H3Config, MiniH3

Outputs = tuple[torch.Tensor, torch.Tensor]


def outputs(model: MiniH3) -> Outputs:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 6, model.config.video), (2, 5, model.config.audio), (2, 3, 2, 8, 8))
    video, audio, image = (torch.randn(shape, generator=generator) for shape in shapes)
    with torch.no_grad():
        found: Outputs = model(video, audio, image, torch.tensor([0.13, 0.77]))
    return found


def difference(found: Outputs, expected: Outputs) -> float:
    """Root of the mean square of the difference, relative to that of what is expected."""
    a, b = (torch.cat([part.flatten() for part in each]) for each in (found, expected))
    return float((a - b).norm() / b.norm())


def compare(folder: Path, curve_grid: int | None) -> None:
    config = H3Config(curve_grid=curve_grid)
    weights = random_weights(config)
    native = from_safetensors(str(write_safetensors(folder / "model.safetensors", weights, config)), H3Config())
    print(f"adaln: {'time embedder' if curve_grid is None else f'curve of {curve_grid} rows'}")
    for kind in ("Q8_0", "Q4_0"):
        model, report = from_gguf(str(write_gguf(folder / f"model-{kind}.gguf", weights, kind)), H3Config())
        single = sum(parameter.dtype is torch.float32 for parameter in model.parameters())
        error = difference(outputs(model), outputs(native))
        print(f"  {kind}: output within {error:.1%} of safetensors, {single} parameters in float32")
        print("\n".join(f"    {line.strip()}" for line in str(report).splitlines()[1:]))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), None)
        compare(Path(folder), 17)


if __name__ == "__main__":
    main()
