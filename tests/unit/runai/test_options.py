# SPDX-License-Identifier: Apache-2.0
"""Each bad option is refused when the reader is made, with its name and range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.files import write_tensors
from support.tensors import tensor

from weight_readers import Feature, Order
from weight_readers_runai.reader import StreamerReader


@pytest.mark.parametrize(
    ("option", "value", "kind", "range_"),
    [
        ("memory_limit", 0, ValueError, "from 1 to 1125899906842624 bytes"),
        ("memory_limit", -1, ValueError, "from 1 to"),
        ("memory_limit", "abc", TypeError, "from 1 to"),
        ("memory_limit", 1e9, TypeError, "from 1 to"),
        ("concurrency", 0, ValueError, "from 1 to 1024 threads"),
        ("concurrency", -1, ValueError, "from 1 to 1024 threads"),
        ("concurrency", "abc", TypeError, "from 1 to 1024"),
        ("concurrency", True, TypeError, "from 1 to 1024"),
        ("order", "random", ValueError, "file-offset, completion"),
        ("timeout", 0, ValueError, "from 1 to 86400 seconds"),
        ("timeout", "soon", TypeError, "from 1 to 86400"),
        ("direct_io", "maybe", ValueError, "auto, on, off"),
        ("path_style", "yes", TypeError, "True or False"),
        ("unsigned", 1, TypeError, "True or False"),
        ("region", "", ValueError, "not empty"),
    ],
)
def test_a_bad_value_is_refused(option: str, value: Any, kind: type[Exception], range_: str) -> None:
    with pytest.raises(kind) as caught:
        StreamerReader(**{option: value})
    assert all(word in str(caught.value) for word in (repr(option), "runai_streamer", range_))


def test_a_limit_below_the_largest_tensor_names_the_smallest_that_works(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "m.safetensors", {"small": tensor("U8", 10), "big": tensor("F32", 1056)})
    reader = StreamerReader(memory_limit=100)
    with pytest.raises(ValueError, match=r"'memory_limit'.* at least 4224 bytes.*'big'.*m\.safetensors.*not 100"):
        reader.iter_weights([path])
    assert [name for name, _ in reader.iter_weights([path], key_filter="small".__eq__)] == ["small"]
    assert len(list(StreamerReader(memory_limit=4224).iter_weights([path]))) == 2


def test_what_is_declared_follows_from_the_options() -> None:
    assert StreamerReader(order="completion").info.order is Order.COMPLETION
    assert Feature.DIRECT_IO in StreamerReader(direct_io="on").info.features
    assert Feature.DIRECT_IO not in StreamerReader().info.features
