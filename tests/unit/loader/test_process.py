# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.measure import new_memory

from weight_readers_loader import process
from weight_readers_loader.process import PeakMemory, major_faults, resident_bytes, storage_bytes_read

MIB = 1 << 20


def test_resident_memory_is_told_by_kind() -> None:
    before = resident_bytes()
    held = new_memory(64 * MIB)
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert 56 * MIB < after[0] - before[0] < 80 * MIB
    assert len(held) == 64 * MIB


def test_bytes_from_storage_and_faults_never_fall(tmp_path: Path) -> None:
    storage, faults = storage_bytes_read(), major_faults()
    (tmp_path / "f").write_bytes(os.urandom(4096))
    (tmp_path / "f").read_bytes()
    assert storage is not None
    assert (storage_bytes_read() or 0) >= storage
    assert major_faults() >= faults >= 0


def test_a_peak_that_is_over_before_the_end_is_seen() -> None:
    start = resident_bytes()
    assert start is not None
    with PeakMemory(interval=0.001) as peak:
        held = new_memory(64 * MIB)
        seen = threading.Event()
        for _ in range(1000):
            if (peak.anon or 0) > start[0] + 48 * MIB:
                break
            seen.wait(0.01)
        del held
    assert peak.anon is not None
    assert peak.anon > start[0] + 48 * MIB


def test_the_sampler_ends_with_the_block_and_with_an_error_in_it() -> None:
    with pytest.raises(KeyError), PeakMemory():
        raise KeyError
    assert "memory-sampler" not in {thread.name for thread in threading.enumerate()}


def test_where_the_kernel_does_not_tell_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_STATUS", tmp_path / "absent")
    monkeypatch.setattr(process, "_IO", tmp_path / "absent")
    assert resident_bytes() is None
    assert storage_bytes_read() is None
    with PeakMemory() as peak:
        pass
    assert (peak.anon, peak.file) == (None, None)
