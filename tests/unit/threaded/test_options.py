# SPDX-License-Identifier: Apache-2.0
"""Each bad option is refused when the reader is made, with its name and range."""

from __future__ import annotations

from typing import Any

import pytest

from weight_readers_threaded.options import Options
from weight_readers_threaded.reader import ThreadedReader


@pytest.mark.parametrize(
    ("option", "value", "kind", "range_"),
    [
        ("num_threads", 0, ValueError, "from 1 to 1024"),
        ("num_threads", -1, ValueError, "from 1 to 1024"),
        ("num_threads", 1025, ValueError, "from 1 to 1024"),
        ("num_threads", "4", TypeError, "from 1 to 1024"),
        ("num_threads", 4.0, TypeError, "from 1 to 1024"),
        ("num_threads", True, TypeError, "from 1 to 1024"),
        ("chunk_bytes", 0, ValueError, "from 1 to 1073741824"),
        ("chunk_bytes", 2**30 + 1, ValueError, "from 1 to 1073741824"),
        ("chunk_bytes", "8MiB", TypeError, "from 1 to 1073741824"),
        ("max_in_flight_bytes", 0, ValueError, "from 1 to 1125899906842624"),
        ("max_in_flight_bytes", 1e9, TypeError, "from 1 to 1125899906842624"),
        ("direct_io", "maybe", ValueError, "'off', 'on', 'auto'"),
        ("direct_io", True, ValueError, "'off', 'on', 'auto'"),
        ("direct_io", None, ValueError, "'off', 'on', 'auto'"),
        ("huge_pages", 1, TypeError, "True or False"),
    ],
)
def test_a_bad_value_is_refused(option: str, value: Any, kind: type[Exception], range_: str) -> None:
    with pytest.raises(kind) as caught:
        ThreadedReader(**{option: value})
    assert all(word in str(caught.value) for word in (repr(option), range_, repr(value)))


def test_there_are_never_more_threads_than_requests() -> None:
    assert Options(num_threads=8).threads == 8


def test_the_default_number_of_threads_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weight_readers_threaded.options.default_threads", lambda: 3)
    assert Options().threads == 3
