# SPDX-License-Identifier: Apache-2.0
"""Reading into the caller's tensors: from a store, past the page cache, within a bound, and what is left by errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.files import write_tensors
from support.measure import output_of
from support.object_server import ObjectServer
from support.tensors import bits, noise, write_sparse

from weight_readers import FileChangedError, TensorSlice, UnreadableFileError
from weight_readers_runai.reader import StreamerReader

MIB = 1 << 20
URI = "s3://models/llama/model.safetensors"
KEY = URI.removeprefix("s3://")
SIZES = {**{f"small.{n}": 3 + n % 7 for n in range(200)}, **{f"large.{n}": 3 * MIB for n in range(6)}}


@pytest.fixture
def written(server: ObjectServer, tmp_path: Path) -> dict[str, bytes]:
    """Many small tensors and some large ones, here and in the store."""
    data = {name: noise(size, name) for name, size in SIZES.items()}
    path = write_tensors(
        tmp_path / "model.safetensors", {name: ("U8", [len(each)], each) for name, each in data.items()}
    )
    server.objects[KEY] = path.read_bytes()
    return data


def zeros(written: dict[str, bytes]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(len(data), dtype=torch.uint8) for name, data in written.items()}


def test_targets_are_filled_from_a_store_with_exactly_their_bytes(
    server: ObjectServer, written: dict[str, bytes]
) -> None:
    reader, targets = StreamerReader(), zeros(written)
    reader.read_meta([URI])
    server.asked.clear()
    reader.read_into([URI], targets)
    assert written == {name: bits(target) for name, target in targets.items()}
    # One content in 256 looks like the mark, and its last 16 bytes are asked for again.
    assert 0 <= server.sent_bytes() - sum(SIZES.values()) <= 16 * len(server.asked)


def test_a_slice_into_a_target_transfers_its_share(server: ObjectServer, written: dict[str, bytes]) -> None:
    reader, target = StreamerReader(), torch.zeros(MIB, dtype=torch.uint8)
    reader.read_meta([URI])
    server.asked.clear()
    reader.read_into([URI], {"large.2": target}, slices={"large.2": TensorSlice(dim=0, start=MIB, stop=2 * MIB)})
    assert written["large.2"][MIB : 2 * MIB] == bits(target)
    assert server.sent_bytes() <= 1.01 * MIB


@pytest.mark.parametrize("direct_io", ["on", "off"])
@pytest.mark.parametrize("memory_limit", [1, None])
def test_targets_are_filled_whichever_way_files_are_read(
    written: dict[str, bytes], tmp_path: Path, direct_io: str, memory_limit: int | None
) -> None:
    targets = zeros(written)
    reader = StreamerReader(direct_io=direct_io, memory_limit=memory_limit, order="completion")
    reader.read_into([tmp_path / "model.safetensors"], targets)
    assert written == {name: bits(target) for name, target in targets.items()}


def test_a_short_body_is_an_error_that_names_the_targets_written(
    server: ObjectServer, written: dict[str, bytes]
) -> None:
    reader, targets = StreamerReader(), zeros(written)
    begin = reader.read_meta([URI])["large.3"].offset
    server.fault, server.strikes = "short", lambda span: span[0] == begin
    with pytest.raises(UnreadableFileError, match="does not serve the range") as caught:
        reader.read_into([URI], targets)
    assert caught.value.tensor == "large.3"
    assert {name for name, target in targets.items() if target.any()} <= set(caught.value.written)


def test_an_object_that_changes_meanwhile_is_an_error(server: ObjectServer, written: dict[str, bytes]) -> None:
    reader, targets = StreamerReader(), zeros(written)
    data = server.objects[KEY]
    reader.read_meta([URI])
    headers = reader._objects["s3"]
    known = headers.read([URI])
    headers.read = lambda files: known  # type: ignore[method-assign]
    server.objects[KEY] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(FileChangedError) as caught:
        reader.read_into([URI], targets)
    assert caught.value.path == URI


PEAK = """
import sys
import torch
from pathlib import Path
from support.measure import memory
from weight_readers_runai.reader import StreamerReader
targets = {f"t{n}": torch.ones(8 << 20, dtype=torch.uint8) for n in range(24)}
StreamerReader().read_into([sys.argv[1]], {"t0": targets["t0"]})
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
StreamerReader(direct_io="off").read_into([sys.argv[1]], targets)
print((memory("VmHWM") - before) >> 20, int(sum(t.count_nonzero() for t in targets.values())))
"""


def test_contiguous_targets_need_no_memory_of_their_size_besides(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_sparse(path, {f"t{n}": 8 * MIB for n in range(24)})
    peak, left = map(int, output_of(PEAK, path).split())
    assert (peak <= 32, left) == (True, 0), peak
