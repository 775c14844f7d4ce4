# SPDX-License-Identifier: Apache-2.0
"""The page on writing a reader: its Python is run from top to bottom, and what it shows is what is printed."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

from weight_readers import FileFormat, FileMeta, ReaderInfo, ReadsInto, Requirement, Signature, TensorMeta, WeightReader
from weight_readers_testkit import ReaderContractTests
from weight_readers_testkit.subject import Subject

PAGE = (Path(__file__).parents[1] / "docs" / "writing-a-reader.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_page_runs_and_prints_what_is_shown(tmp_path: Path) -> None:
    source = "\n".join(blocks("python"))
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "".join(blocks("text")) == done.stdout


PARTS = """
from weight_readers import TensorMeta, TensorSlice

data = bytes(range(5)) + torch.arange(60, dtype=torch.int16).numpy().tobytes()
tensor = TensorMeta(
    name="t", dtype="int16", source_dtype="h", shape=(3, 4, 5), stored_shape=(3, 4, 5), nbytes=120, file="f", offset=5
)
right = torch.arange(60, dtype=torch.int16).view(3, 4, 5)
for dim in range(-3, 3):
    for number, (start, stop) in enumerate([(None, None), (1, 2), (1, None), (0, 2), (2, 2), (-1, None)]):
        cut, index = TensorSlice(dim=dim, start=start, stop=stop), [slice(None)] * 3
        index[dim] = slice(start, stop)
        if number % 2:
            cut = (cut, TensorSlice(dim=(dim + 1) % 3, start=1))
            index[(dim + 1) % 3] = slice(1, None)
        wanted = part(tensor, cut)
        found = b"".join(data[begin : begin + length] for begin, length in wanted.ranges)
        expected = right[tuple(index)]
        assert found == expected.numpy().tobytes(), (dim, start, stop)
        assert (wanted.shape, wanted.nbytes) == (tuple(expected.shape), expected.nbytes), (dim, start, stop)
        assert wanted.strides in (None, expected.stride())
"""


def test_the_ranges_of_a_part_on_the_page_are_those_of_indexing_in_torch(tmp_path: Path) -> None:
    source = "\n".join([*blocks("python"), PARTS])
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_every_field_of_what_a_reader_declares_or_reports_is_on_the_page() -> None:
    fields = [
        *inspect.get_annotations(ReaderInfo),
        *inspect.get_annotations(Requirement),
        *inspect.get_annotations(FileMeta),
        *inspect.get_annotations(FileFormat),
        *inspect.get_annotations(Signature),
        *inspect.get_annotations(TensorMeta),
    ]
    assert [name for name in fields if not re.search(rf"`{name}`|\b{name}=", PAGE)] == []


def test_every_fault_of_the_kit_is_on_the_page_with_its_error() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    faults = [(name, fault.error.__name__) for name, fault in ReaderContractTests().corpus().items()]
    assert [each for each in faults if not any(all(f"`{word}`" in row for word in each) for row in rows)] == []


def test_the_signatures_of_the_page_are_those_of_the_protocols() -> None:
    text = " ".join(PAGE.split())
    for method in (WeightReader.iter_weights, ReadsInto.read_into):
        shown = re.search(rf"{method.__name__}\( ?(.*?)\)", text)
        assert shown is not None
        names = [part.strip().partition("=")[0] for part in shown[1].split(",")]
        declared = [name for name in inspect.signature(method).parameters if name != "self"]
        assert declared == [name for name in names if name not in ("self", "*")]


def test_every_attribute_of_the_kit_is_on_the_page() -> None:
    attributes = inspect.get_annotations(Subject)
    assert "bulk" in attributes
    assert [name for name in attributes if f"`{name}`" not in PAGE] == []
