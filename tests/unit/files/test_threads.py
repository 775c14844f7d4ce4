# SPDX-License-Identifier: Apache-2.0
"""A pool that works in the calling thread where Python or the system gives it no other."""

from __future__ import annotations

import threading
from textwrap import dedent

import pytest
from support.measure import output_of

from weight_readers_files.threads import Pool


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def fail() -> None:
    raise LookupError("of the work")


def test_work_is_done_by_other_threads_where_there_are_any() -> None:
    with Pool(2, thread_name_prefix="others") as pool:
        names = list(pool.map(lambda _: threading.current_thread().name, range(2)))
    assert all(name.startswith("others") for name in names)


def test_a_thread_that_outlives_the_main_one_gets_its_work_done() -> None:
    source = """
        import threading
        from weight_readers_files.threads import Pool
        def late():
            threading.main_thread().join()
            with Pool(4) as pool:
                print(list(pool.map(str, range(3))), pool.submit(int, "7").result())
        threading.Thread(target=late).start()
    """
    assert output_of(dedent(source)) == "['0', '1', '2'] 7"


def test_work_under_way_when_the_main_thread_ends_is_gone_on_with() -> None:
    source = """
        import threading
        from weight_readers_files.threads import Pool
        begun = threading.Event()
        def late():
            with Pool(2) as pool:
                first = pool.submit(threading.main_thread().join, 1)
                begun.set()
                threading.main_thread().join()
                print(first.result(), pool.submit(len, "four").result())
        threading.Thread(target=late).start()
        begun.wait()
    """
    assert output_of(dedent(source)) == "None 4"


@pytest.mark.usefixtures("no_threads")
def test_without_a_thread_all_is_done_once_and_in_order() -> None:
    done: list[int] = []
    with Pool(3) as pool:
        assert list(pool.map(done.append, range(4))) == [None] * 4
    assert done == [0, 1, 2, 3]


def test_what_a_pool_has_in_its_queue_is_done_once_where_a_further_thread_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []
    with Pool(2) as pool:
        gate = threading.Event()
        pool.submit(gate.wait)
        monkeypatch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no more")))
        result = pool.submit(done.append, 1)
        assert done == [1]
        gate.set()
    assert (result.result(timeout=600), done) == (None, [1])


@pytest.mark.usefixtures("no_threads")
def test_an_error_of_the_work_is_raised_where_its_result_is_asked_for() -> None:
    with Pool(1) as pool:
        future = pool.submit(fail)
        with pytest.raises(LookupError, match="of the work"):
            future.result(timeout=600)


def test_a_pool_that_was_shut_down_refuses_work() -> None:
    pool = Pool(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(fail)
