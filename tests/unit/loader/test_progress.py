# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from weight_readers import ReadStats
from weight_readers_loader.progress import is_first_rank, progress_bar


def run(stream: TextIO, total: int, *reads: int, show: bool = True) -> None:
    with progress_bar("r", total, show=show, stream=stream) as bar:
        for nbytes in reads:
            bar.update(ReadStats(bytes_read=nbytes, bytes_wanted=total))


def lines(total: int, *reads: int) -> list[str]:
    stream = io.StringIO()
    run(stream, total, *reads)
    return stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def test_off_a_terminal_there_is_a_line_per_ten_percent_however_many_updates() -> None:
    found = lines(1000, *range(1001))
    assert len(found) == 10
    assert "100%" in found[-1]
    assert not any("\r" in line or "\x1b" in line for line in found)


def test_one_large_step_is_one_line() -> None:
    (line,) = lines(1000, 1000)
    assert "100%" in line


def test_nothing_to_read_is_one_line_at_most() -> None:
    assert len(lines(0, 0, 0, 0)) <= 1
    assert lines(100) == []


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"RANK": "0"}, True),
        ({"RANK": "1"}, False),
        ({"RANK": "0", "SLURM_PROCID": "3"}, True),
        ({"OMPI_COMM_WORLD_RANK": "2"}, False),
        ({"SLURM_PROCID": "1"}, False),
        ({"RANK": "", "SLURM_PROCID": "0"}, True),
    ],
)
def test_the_first_rank_is_known_by_what_launchers_set(
    variables: dict[str, str], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert first is is_first_rank()
    stream = io.StringIO()
    run(stream, 10, 10)
    assert first is bool(stream.getvalue())


def test_nothing_is_shown_unless_asked() -> None:
    stream = io.StringIO()
    run(stream, 10, 10, show=False)
    assert stream.getvalue() == ""


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as stream:
        yield master, stream
    os.close(master)


def read_until(text: bytes, master: int) -> bytes:
    """What a terminal shows up to ``text``: it need not arrive at once. Ends without it after 30 seconds."""
    drawn = b""
    while text not in drawn and select.select([master], [], [], 30)[0]:
        drawn += os.read(master, 65536)
    return drawn


def test_on_a_terminal_there_is_a_bar_even_where_it_has_no_size_and_no_thread(terminal: tuple[int, TextIO]) -> None:
    master, stream = terminal
    before = threading.active_count()
    run(stream, 4096, 1024, 4096)
    stream.flush()
    drawn = read_until(b"4.00k/4.00k", master)
    assert b"\rr: 100%" in drawn
    assert threading.active_count() == before
