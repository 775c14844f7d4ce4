# SPDX-License-Identifier: Apache-2.0
"""Public reports about GGUF files, through the loader as anybody meets them."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from support.measure import output_of
from torch import nn
from unit.gguf.gguf_bytes import write_gguf

from weight_readers import (
    MissingShardError,
    NoSuitableReaderError,
    TruncatedFileError,
    UnknownDtypeError,
    WeightReadersError,
)
from weight_readers_gguf import reject_lora_on_packed_weights
from weight_readers_loader import open_checkpoint

Q8_0, Q4_K = 8, 12
ROW = (Q8_0, (1, 32), bytes(34))


def parts(folder: Path, count: int) -> list[Path]:
    return [
        write_gguf(
            folder / f"m-{number + 1:05d}-of-{count:05d}.gguf",
            {f"{number}.weight": ROW},
            {"split.no": ("UINT16", number), "split.count": ("UINT16", count)},
        )
        for number in range(count)
    ]


class TestB148SplitFilesOfWhichOnlyTheFirstIsRead:
    def test_any_part_stands_for_all(self, tmp_path: Path) -> None:
        for part in parts(tmp_path, 2):
            assert sorted(open_checkpoint(part).state_dict()) == ["0.weight", "1.weight"]

    def test_a_part_that_is_not_there_is_the_common_error(self, tmp_path: Path) -> None:
        _, second = parts(tmp_path, 2)
        second.unlink()
        with pytest.raises(MissingShardError, match=r"m-00002-of-00002\.gguf"):
            open_checkpoint(tmp_path)


class TestB149ATruncatedFileIsTakenForWhole:
    @pytest.mark.parametrize("lost", [1, 34, 40])
    def test_the_size_is_held_against_the_header_before_any_tensor(self, tmp_path: Path, lost: int) -> None:
        path = write_gguf(tmp_path / "m.gguf", {"a.weight": ROW, "b.weight": (Q8_0, (1, 1024), bytes(1088))})
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - lost])
        with pytest.raises(TruncatedFileError, match=r"b\.weight"):
            open_checkpoint(path)


class TestB151AnUnknownTypeNumberIsABareError:
    def test_tensor_number_and_what_is_known_are_said(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", {"a.weight": ROW, "new.weight": (99, (1, 32), bytes(64))})
        checkpoint = open_checkpoint(path)
        assert sorted(checkpoint.tensors) == ["a.weight", "new.weight"]
        with pytest.raises(UnknownDtypeError, match=r"type 99 is unknown; known are .*Q4_K.*new\.weight"):
            checkpoint.state_dict()
        assert list(checkpoint.state_dict(key_filter="a.weight".__eq__)) == ["a.weight"]


class TestB155AGoodFileIsCalledTruncated:
    @pytest.mark.parametrize(("kind", "shape", "nbytes"), [(Q8_0, (32,), 34), (Q4_K, (256,), 144)])
    def test_extents_count_blocks(self, tmp_path: Path, kind: int, shape: tuple[int], nbytes: int) -> None:
        path = write_gguf(tmp_path / "m.gguf", {"a": (kind, shape, bytes(nbytes))})
        assert open_checkpoint(path).state_dict()["a"].tolist() == [0.0] * shape[0]


class TestRefusalsComeBeforeAnythingIsTouched:
    @pytest.mark.parametrize(
        ("engine", "said"),
        [
            ({"quantization": "gguf"}, "selected by the checkpoint itself"),
            ({"quantization": "fp8", "lora": ["x"]}, "'fp8' was asked for"),
            ({"svdquant": "p"}, "both supply the weights"),
            ({"fsdp": True}, "FSDP"),
            ({"lora": ["style.safetensors"]}, "LoRA cannot be merged"),
            ({"adaln_cache_path": "c"}, "adaln_cache_path"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_no_file_is_opened_and_no_socket(
        self, monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], said: str
    ) -> None:
        def none(*arguments: object, **keywords: object) -> None:
            raise AssertionError(f"touched: {arguments}")

        monkeypatch.setattr(socket, "socket", none)
        with pytest.raises(NoSuitableReaderError, match=said):
            open_checkpoint("somewhere/nothing.gguf", engine=engine)

    def test_a_file_that_is_there_is_not_opened_either(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", {"a.weight": ROW})
        source = """
            import sys
            from weight_readers import NoSuitableReaderError
            from weight_readers_loader import open_checkpoint
            path, opened = sys.argv[1], []
            sys.addaudithook(lambda event, given: opened.append(given[0]) if event == "open" else None)
            def tried(**engine):
                try:
                    open_checkpoint(path, engine=engine)
                except NoSuitableReaderError:
                    pass
                return path in map(str, opened)
            print(tried(lora=["x"]), tried(quantization="fp8"), tried())
        """
        assert output_of(dedent(source), path) == "False False True"

    def test_without_a_conflict_the_file_is_what_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(WeightReadersError, match="no such file"):
            open_checkpoint(tmp_path / "nothing.gguf", engine={"quantization": None, "lora": []})

    def test_a_lora_on_packed_weights_is_refused_and_the_model_left_as_it_was(self) -> None:
        model = nn.ModuleDict({"fc": nn.Module(), "out": nn.Linear(2, 2)})
        model["fc"].register_parameter("qweight", nn.Parameter(torch.arange(8, dtype=torch.uint8), False))

        def state() -> str:
            raw = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
            return hashlib.sha256(raw).hexdigest()

        before = state()
        with pytest.raises(ValueError, match="fc"):
            reject_lora_on_packed_weights(model, lambda name: True)
        assert before == state()
        reject_lora_on_packed_weights(model, lambda name: name.startswith("out"))
