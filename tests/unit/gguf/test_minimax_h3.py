# SPDX-License-Identifier: Apache-2.0
"""The worked example: the same weights as grouped safetensors and as GGUF give the same outputs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).parents[3] / "examples" / "minimax_h3"
CURVE = 17


class Example:
    """The example's modules, which import each other by name as scripts in one folder do."""

    def __init__(self) -> None:
        import h3_checkpoints
        import h3_contract
        import h3_model
        import run

        self.checkpoints: Any = h3_checkpoints
        self.contract: Any = h3_contract
        self.model: Any = h3_model
        self.run: Any = run
        self.config = h3_model.H3Config()


@pytest.fixture(scope="module")
def h3() -> Iterator[Example]:
    sys.path.insert(0, str(EXAMPLE))
    yield Example()
    sys.path.remove(str(EXAMPLE))
    for name in ("h3_checkpoints", "h3_contract", "h3_model", "run"):
        del sys.modules[name]


def weights_of(h3: Example, curve: int | None) -> Any:
    return h3.checkpoints.random_weights(replace(h3.config, curve_grid=curve))


@pytest.mark.parametrize("curve", [None, CURVE], ids=["time embedder", "curve"])
class TestASourceOfWeights:
    def test_native_grouped_safetensors_gives_the_outputs_of_the_weights_themselves(
        self, tmp_path: Path, h3: Example, curve: int | None
    ) -> None:
        weights = weights_of(h3, curve)
        expected = h3.model.MiniH3(replace(h3.config, curve_grid=curve))
        expected.load_state_dict(weights)
        file = h3.checkpoints.write_safetensors(tmp_path / "model.safetensors", weights, h3.config)
        found = h3.contract.from_safetensors(str(file), h3.config)
        assert h3.run.difference(h3.run.outputs(found), h3.run.outputs(expected)) == 0

    @pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.02), ("Q4_0", 0.2)])
    def test_gguf_gives_those_of_dequantized_weights_and_so_those_of_safetensors_but_for_quantization(
        self, tmp_path: Path, h3: Example, curve: int | None, kind: str, error: float
    ) -> None:
        weights = weights_of(h3, curve)
        plain, quantized = (h3.model.MiniH3(replace(h3.config, curve_grid=curve), torch.float32) for _ in range(2))
        plain.load_state_dict(weights)
        quantized.load_state_dict(h3.checkpoints.requantized(weights, kind))
        file = h3.checkpoints.write_gguf(tmp_path / "model.gguf", weights, kind)
        found, _ = h3.contract.from_gguf(str(file), h3.config, torch.float32)
        outputs = h3.run.outputs(found)
        assert h3.run.difference(outputs, h3.run.outputs(quantized)) < 1e-5
        assert 0 < h3.run.difference(outputs, h3.run.outputs(plain)) < error

    def test_of_either_kind_fills_float32_parameters_with_all_their_bits(
        self, tmp_path: Path, h3: Example, curve: int | None
    ) -> None:
        weights = weights_of(h3, curve)
        native = h3.checkpoints.write_safetensors(tmp_path / "model.safetensors", weights, h3.config)
        packed = h3.checkpoints.write_gguf(tmp_path / "model.gguf", weights, "Q4_0")
        single = {name: tensor for name, tensor in weights.items() if tensor.dtype is torch.float32}
        assert all((tensor != tensor.bfloat16()).any() for tensor in single.values())
        for model in (
            h3.contract.from_safetensors(str(native), h3.config),
            h3.contract.from_gguf(str(packed), h3.config)[0],
        ):
            found = dict(model.named_parameters())
            assert {name for name, p in found.items() if p.dtype is torch.float32} == single.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in single.items())
            assert model.rope.inv_freq.dtype is torch.float32


class TestTheContract:
    def test_names_twelve_parameters_that_are_float32_without_a_curve(self, h3: Example) -> None:
        model = h3.model.MiniH3(h3.config)
        assert sum(parameter.dtype is torch.float32 for parameter in model.parameters()) == 12

    def test_sizes_the_curve_from_the_header_before_the_model_is_built(self, tmp_path: Path, h3: Example) -> None:
        config = replace(h3.config, curve_grid=CURVE, time_embed_dim=96)
        file = h3.checkpoints.write_gguf(tmp_path / "m.gguf", h3.checkpoints.random_weights(config), "Q8_0")
        model, _ = h3.contract.from_gguf(str(file), h3.config)
        assert (model.adaln_t_table.shape, model.config.time_embed_dim) == ((CURVE, 96), 96)
        assert not hasattr(model, "time_embedder")

    @pytest.mark.parametrize("curve", ["one row", "quantized"])
    def test_refuses_a_curve_that_is_none(self, tmp_path: Path, h3: Example, curve: str) -> None:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "minimax_h3")
        kind = gguf.GGMLQuantizationType.Q8_0
        table = np.zeros((1 if curve == "one row" else 4, 64), dtype=np.float32)
        if curve == "quantized":
            writer.add_tensor("adaln_t_table", gguf.quantize(table, kind), raw_dtype=kind)
        else:
            writer.add_tensor("adaln_t_table", table)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ValueError, match="a curve is a matrix of plain numbers with at least 2 rows"):
            h3.contract.from_gguf(str(tmp_path / "m.gguf"), h3.config)

    def test_unfolds_the_patch_embedding_of_that_shape_only(self, tmp_path: Path, h3: Example) -> None:
        weights = weights_of(h3, None)
        patch = weights[h3.contract.PATCH_EMBED]
        file = h3.checkpoints.write_gguf(tmp_path / "m.gguf", weights, "Q8_0")
        assert torch.equal(h3.contract.from_gguf(str(file), h3.config)[0].visual.patch_embed.weight, patch)
        weights[h3.contract.PATCH_EMBED] = patch.flatten(0, 1).transpose(0, 1)
        other = h3.checkpoints.write_gguf(tmp_path / "other.gguf", weights, "Q8_0")
        with pytest.raises(ValueError, match=r"visual.patch_embed.weight \(file \[2, 384, 4, 4\]"):
            h3.contract.from_gguf(str(other), h3.config)

    def test_lets_fc1_be_computed_in_its_own_buffer_and_gives_the_same_twice(self, tmp_path: Path, h3: Example) -> None:
        file = h3.checkpoints.write_gguf(tmp_path / "m.gguf", weights_of(h3, None), "Q4_0")
        model, _ = h3.contract.from_gguf(str(file), h3.config)
        x = torch.randn(2, 3, h3.config.dim, dtype=torch.bfloat16)
        with torch.no_grad():
            made = model.blocks[0].fc1(x)
            gate, up = made.clone().chunk(2, dim=-1)
            found = h3.model.silu_and_mul(made)
            assert found.data_ptr() == made.data_ptr()
            torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up)
        first = h3.run.outputs(model)
        assert all(torch.equal(a, b) for a, b in zip(first, h3.run.outputs(model), strict=True))


def test_the_readme_shows_what_the_example_prints(h3: Example, capsys: pytest.CaptureFixture[str]) -> None:
    h3.run.main()
    shown = re.findall(r"```text\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)[0]
    masked = [re.sub(r"within \S+%", "within …%", text) for text in (shown, capsys.readouterr().out)]
    assert masked[0] == masked[1]
