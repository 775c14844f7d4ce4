# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest
from support.faults import SECONDS
from support.measure import (
    cached_bytes,
    check_cached,
    check_cached_bytes,
    evict,
    nothing_left_open,
    output_of,
    pages_spanned,
)
from support.tensors import noise

from weight_readers import FileChangedError, UnreadableFileError
from weight_readers_files import FilePlan, State
from weight_readers_files.prefetch import CHUNK_BYTES, ReadAhead

MIB = 1 << 20
Plans = Callable[..., FilePlan]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Whatever happens, no thread and no descriptor outlives a test."""
    with nothing_left_open():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(noise(MIB) * 48)
    evict(path)
    return path


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_stay_within_their_window_of_a_slow_consumer(path: Path, file_plan: Plans, threads: int) -> None:
    plans = [file_plan(path, *((at * MIB, (at + 1) * MIB) for at in range(48)))]
    with closing(ReadAhead(plans, threads=threads, window=2 * CHUNK_BYTES)) as ahead:
        check_cached_bytes(path, 8 * MIB)
        ahead.need(0, 1 * MIB)
        check_cached_bytes(path, 12 * MIB)
        ahead.need(0, 20 * MIB)
        check_cached_bytes(path, 28 * MIB)


def test_what_was_needed_is_cached_when_need_returns_even_beyond_the_window(path: Path, file_plan: Plans) -> None:
    plans = [file_plan(path, (0, 3 * MIB), (3 * MIB, 40 * MIB), (40 * MIB, 48 * MIB))]
    with closing(ReadAhead(plans, threads=2, window=1)) as ahead:
        ahead.need(0, 40 * MIB)
        check_cached(path, pages_spanned(0, 40 * MIB))
        ahead.need(0, 48 * MIB)
        check_cached(path, pages_spanned(0, 48 * MIB))


def test_only_the_pages_of_the_ranges_are_read(path: Path, file_plan: Plans) -> None:
    spans = [(100, 5000), (7 * MIB + 1, 12 * MIB + 3), (30 * MIB, 30 * MIB + 1)]
    with closing(ReadAhead([file_plan(path, *spans)], threads=3)) as ahead:
        ahead.need(0, 30 * MIB + 1)
    check_cached(path, set().union(*(pages_spanned(*span) for span in spans)))


def test_closing_stops_the_threads(path: Path, file_plan: Plans) -> None:
    before = threading.active_count()
    ahead = ReadAhead([file_plan(path, (0, 48 * MIB))], threads=4, window=CHUNK_BYTES)
    assert before + 4 == threading.active_count()
    ahead.close()
    assert before == threading.active_count()
    assert cached_bytes(path) <= CHUNK_BYTES


def test_closing_in_a_thread_of_its_own_stops_the_others(
    path: Path, file_plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the collector does, also where that thread has just looked whether there is room."""
    in_window = ReadAhead._in_window

    def collected(ahead: ReadAhead) -> bool:
        if not in_window(ahead):
            ahead.close()
        return in_window(ahead)

    monkeypatch.setattr(ReadAhead, "_in_window", collected)
    ahead = ReadAhead([file_plan(path, (0, 48 * MIB))], threads=3, window=CHUNK_BYTES)
    assert ahead._crew.join(SECONDS)


def test_no_more_threads_than_chunks(path: Path, file_plan: Plans) -> None:
    before = threading.active_count()
    with closing(ReadAhead([file_plan(path, (0, 5 * MIB))], threads=64, window=0)):
        assert before + 2 == threading.active_count()


def test_nothing_to_read_is_no_trouble(path: Path, file_plan: Plans) -> None:
    with closing(ReadAhead([], threads=2)):
        pass
    with closing(ReadAhead([file_plan(path, (5, 5))], threads=2)) as ahead:
        ahead.need(0, 5)


def test_a_read_error_is_raised_where_the_consumer_waits(path: Path, file_plan: Plans) -> None:
    # Nothing is mapped at address 0 of a process, and reading there is an I/O error.
    plans = [file_plan(path, (0, 8 * MIB)), file_plan("/proc/self/mem", (0, 4096)), file_plan(path, (8 * MIB, 9 * MIB))]
    with closing(ReadAhead(plans, threads=1)) as ahead:
        with pytest.raises(UnreadableFileError) as caught:
            ahead.need(1, 4096)
        assert ("/proc/self/mem", os.strerror(5)) == (caught.value.path, caught.value.found)
        with pytest.raises(UnreadableFileError):
            ahead.need(2, 9 * MIB)
    assert cached_bytes(path) <= 8 * MIB, "the first failure cancels the rest"


def test_an_error_of_any_kind_reaches_the_consumer(file_plan: Plans) -> None:
    ahead = ReadAhead([file_plan("a path with a NUL\0", (0, 1))], threads=2)
    with closing(ahead), pytest.raises(ValueError, match="null byte"):
        ahead.need(0, 1)


def test_a_file_that_is_gone_or_another_is_left_to_the_consumer(path: Path, file_plan: Plans) -> None:
    """Who maps a file keeps it open, whatever its name leads to by now."""
    other = file_plan(path, (0, MIB))._replace(state=State(1, 1))
    with closing(ReadAhead([other, file_plan(path.with_name("gone"), (0, 1))], threads=1)) as ahead:
        ahead.need(0, MIB)
        ahead.need(1, 1)
    assert cached_bytes(path) == 0


def test_a_file_that_is_cut_is_said_in_time(path: Path, file_plan: Plans) -> None:
    plans = [file_plan(path, (0, MIB), (MIB, 48 * MIB))]
    with closing(ReadAhead(plans, threads=1, window=0)) as ahead:
        ahead.need(0, MIB)
        os.truncate(path, MIB)
        os.utime(path, (5, 5))
        with pytest.raises((FileChangedError, ValueError), match="file"):
            ahead.need(0, 48 * MIB)


def test_a_program_ends_while_its_iterator_rests(path: Path) -> None:
    """Threads that wait for their window can neither go on nor be waited for once the interpreter takes itself down."""
    source = """
        import atexit, sys
        @atexit.register
        def need_more():
            try:
                ahead.need(0, 48 << 20)
            except RuntimeError as error:
                print(error)
        from weight_readers_files import FilePlan, State, Wanted
        from weight_readers_files.prefetch import ReadAhead
        from contextlib import closing
        def reads():
            global ahead
            ahead = ReadAhead([plan], threads=2, window=0)
            with closing(ahead):
                yield ahead.need(0, 1)
        spans = [(0, 16 << 20), (32 << 20, 48 << 20)]
        wanted = [Wanted("x", None, (), None, ((a, b - a),), a, b, b - a) for a, b in spans]
        plan = FilePlan(sys.argv[1], None, wanted, True)
        rests = reads()
        next(rests)
    """
    assert output_of(dedent(source), path) == "reading was ended, as the program ends"


def test_what_was_closed_is_not_kept_for_the_end_of_the_program(path: Path, file_plan: Plans) -> None:
    ahead = ReadAhead([file_plan(path, (0, MIB))], threads=1)
    gone = weakref.ref(ahead)
    ahead.close()
    del ahead
    assert gone() is None
