# SPDX-License-Identifier: Apache-2.0
"""What the reader declares, and that two kinds of place are not mixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tensors import write_shards

from weight_readers import Feature, Lifetime
from weight_readers_runai.plugin import weight_readers_describe
from weight_readers_runai.reader import StreamerReader
from weight_readers_runai.stores import store_of


def test_the_reader_filters_slices_and_owns_without_a_clone() -> None:
    info = weight_readers_describe()
    assert {Feature.KEY_FILTER, Feature.SLICES, Feature.BOUNDED_MEMORY} <= info.features
    assert info.lifetime is Lifetime.OWNED
    assert Feature.DISTRIBUTED not in info.features


def test_object_storage_is_offered_with_its_options_where_the_vendors_package_is_there() -> None:
    info = weight_readers_describe()
    assert ("s3" in info.schemes) == (Feature.LISTS in info.features) == ("endpoint" in info.options)


def test_local_files_and_objects_are_not_read_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one kind of place"):
        StreamerReader().read_meta([write_shards(tmp_path, 1)[0], "s3://bucket/model.safetensors"])


def test_a_scheme_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ValueError, match="az://bucket/model"):
        StreamerReader().read_meta(["az://bucket/model.safetensors"])


@pytest.mark.parametrize(
    ("scheme", "options", "said"),
    [
        ("gs", {"region": "eu"}, "'region' of reader 'runai_streamer' is not for gs://"),
        ("s3", {"project": "acme"}, "'project' of reader 'runai_streamer' is not for s3://"),
    ],
)
def test_an_option_of_another_kind_of_store_is_refused(scheme: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        store_of(scheme, options, 30)
