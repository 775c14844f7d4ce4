# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect

import pytest

import weight_readers
from weight_readers import Alignment, Feature, Lifetime, Order, Writes
from weight_readers_mmap import plugin
from weight_readers_mmap.reader import MappedReader


def test_what_is_declared() -> None:
    info = plugin.weight_readers_describe()
    assert ("safetensors", {"safetensors"}, {"file"}, True) == (info.name, info.formats, info.schemes, info.fallback)
    assert (info.lifetime, info.order) == (Lifetime.MAPPED, Order.FILE_OFFSET)
    assert (info.alignment, info.writes) == (Alignment.NATURAL, Writes.COPY_ON_WRITE)
    assert {
        Feature.KEY_FILTER,
        Feature.FILE_MAPPING,
        Feature.SLICES,
        Feature.MULTI_SLICES,
        Feature.BOUNDED_MEMORY,
    } == info.features


def test_the_declared_options_are_those_of_the_constructor() -> None:
    assert plugin.INFO.options == set(inspect.signature(MappedReader).parameters)


@pytest.mark.parametrize(
    ("options", "lifetime", "writes", "maps"),
    [
        ({}, Lifetime.MAPPED, Writes.COPY_ON_WRITE, True),
        ({"prefetch": 3}, Lifetime.MAPPED, Writes.COPY_ON_WRITE, True),
        ({"readonly": True}, Lifetime.MAPPED, Writes.READ_ONLY, True),
        ({"copy": True}, Lifetime.OWNED, Writes.OWN, False),
    ],
)
def test_a_made_reader_declares_what_its_options_make_of_it(
    options: dict[str, object], lifetime: Lifetime, writes: Writes, maps: bool
) -> None:
    info = plugin.weight_readers_create(options).info
    assert (lifetime, writes, maps) == (info.lifetime, info.writes, info.retains_file_mapping)


def test_an_owned_request_is_met_by_copying() -> None:
    reader = weight_readers.select_weight_reader(requested="safetensors", format="safetensors", owned=True, strict=True)
    assert Lifetime.OWNED is reader.info.lifetime
