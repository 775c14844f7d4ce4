# SPDX-License-Identifier: Apache-2.0
"""Public reports about one tensor name in several files, and about names that an index leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import invoke
from support.files import floats, write_index, write_sharded, write_tensors

from weight_readers import AmbiguousCheckpointError, BadIndexError, DuplicateTensorError
from weight_readers_loader import open_checkpoint

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


class TestB051AnotherModelBesideTheShards:
    """A 4-bit ``model.safetensors`` beside bfloat16 shards, with the same names and other shapes."""

    @staticmethod
    def build(folder: Path, *, index: bool) -> Path:
        write_tensors(folder / FIRST, {"w": ("BF16", [4, 8], bytes(64))})
        write_tensors(folder / SECOND, {"v": ("BF16", [4, 8], bytes(64))})
        write_tensors(folder / "model.safetensors", {"w": ("U32", [4, 1], bytes(16))})
        if index:
            write_index(folder, {"w": FIRST, "v": SECOND})
        return folder

    def test_with_an_index_its_tensors_come_from_its_files(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(self.build(tmp_path, index=True))
        state = checkpoint.state_dict()
        assert {n: (str(t.dtype), list(t.shape)) for n, t in state.items()} == {
            "w": ("torch.bfloat16", [4, 8]),
            "v": ("torch.bfloat16", [4, 8]),
        }
        assert any("model.safetensors" in notice for notice in checkpoint.notices)

    def test_without_one_both_are_named_and_nothing_is_merged(self, tmp_path: Path) -> None:
        with pytest.raises(AmbiguousCheckpointError) as refused:
            open_checkpoint(self.build(tmp_path, index=False))
        assert "model.safetensors" in str(refused.value)
        assert FIRST in str(refused.value)


class TestB055OneNameInTwoShards:
    @staticmethod
    def build(folder: Path, other: float, *, index: str | None = None) -> Path:
        write_tensors(folder / FIRST, {"w": ("F32", [1], floats(1)), "a": ("F32", [1], floats(5))})
        write_tensors(folder / SECOND, {"w": ("F32", [1], floats(other)), "b": ("F32", [1], floats(6))})
        if index is not None:
            write_index(folder, {"w": index, "a": FIRST, "b": SECOND})
        return folder

    @pytest.mark.parametrize("other", [1, 2], ids=["equal bytes", "unequal bytes"])
    def test_without_an_index_it_is_an_error_that_names_both(self, other: float, tmp_path: Path) -> None:
        with pytest.raises(DuplicateTensorError) as refused:
            open_checkpoint(self.build(tmp_path, other))
        assert refused.value.tensor == "w"
        assert FIRST in str(refused.value)
        assert SECOND in str(refused.value)

    @pytest.mark.parametrize(("index", "value"), [(FIRST, 1), (SECOND, 2)])
    def test_an_index_decides_and_the_other_is_said(self, index: str, value: float, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(self.build(tmp_path, 2, index=index))
        assert {n: t.item() for n, t in checkpoint.iter_weights()} == {"w": value, "a": 5, "b": 6}
        other = SECOND if index == FIRST else FIRST
        (notice,) = checkpoint.notices
        assert notice.startswith("1 tensor of this file is not named by the index")
        assert str(tmp_path / other) in notice
        with pytest.raises(BadIndexError):
            open_checkpoint(tmp_path, strict=True)

    def test_an_index_decides_beside_other_faults_which_are_all_told(self, tmp_path: Path) -> None:
        self.build(tmp_path, 2, index=SECOND)
        path = tmp_path / FIRST
        path.write_bytes(path.read_bytes()[:-1])
        done = invoke("verify", tmp_path, "--json")
        assert [problem["error"] for problem in json.loads(done.stdout)["errors"]] == ["TruncatedFileError"]


class TestB059TensorsThatTheIndexLeavesOut:
    @pytest.fixture
    def extra_file(self, tmp_path: Path) -> Path:
        write_sharded(tmp_path)
        write_tensors(tmp_path / "mtp.safetensors", {f"mtp.{i}": ("F32", [1], floats(i)) for i in range(3)})
        return tmp_path

    @pytest.fixture
    def extra_tensor(self, tmp_path: Path) -> Path:
        write_tensors(tmp_path / "a.safetensors", {"w": ("F32", [1], floats(1)), "x": ("F32", [1], floats(2))})
        write_index(tmp_path, {"w": "a.safetensors"})
        return tmp_path

    def test_a_file_is_counted_in_a_notice(self, extra_file: Path) -> None:
        checkpoint = open_checkpoint(extra_file)
        assert set(checkpoint.state_dict()) == {"t1", "t2"}
        assert any("3 tensors of this file are not named by the index" in n for n in checkpoint.notices)

    def test_a_tensor_is_counted_in_a_notice_and_not_read(self, extra_tensor: Path) -> None:
        checkpoint = open_checkpoint(extra_tensor)
        assert set(checkpoint.state_dict()) == {"w"}
        assert checkpoint.report is not None
        assert checkpoint.report.bytes_read == 4
        assert any("1 tensor of this file is not named by the index" in n for n in checkpoint.notices)

    @pytest.mark.parametrize("case", ["extra_file", "extra_tensor"])
    def test_strict_refuses_by_argument_by_option_and_by_environment(
        self, case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import weight_readers

        folder = request.getfixturevalue(case)
        with pytest.raises(BadIndexError):
            open_checkpoint(folder, strict=True)
        assert invoke("verify", folder).exit_code == 0
        assert invoke("verify", folder, "--strict").exit_code == 1
        assert invoke("load", folder, "--strict").exit_code == 1
        monkeypatch.setenv("WEIGHT_READERS_STRICT", "1")
        weight_readers.refresh()
        try:
            with pytest.raises(BadIndexError):
                open_checkpoint(folder)
            assert set(open_checkpoint(folder, strict=False).tensors) <= {"t1", "t2", "w"}
        finally:
            monkeypatch.undo()
            weight_readers.refresh()

    def test_the_left_out_file_may_be_broken(self, extra_file: Path) -> None:
        (extra_file / "mtp.safetensors").write_bytes(b"not a weight file")
        assert set(open_checkpoint(extra_file, strict=True).tensors) == {"t1", "t2"}
