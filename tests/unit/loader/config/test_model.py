# SPDX-License-Identifier: Apache-2.0
"""`LoadConfig`: kinds, ranges, and that documentation and command line have every field of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import click
import pytest

from weight_readers import ConfigError
from weight_readers_loader import LoadConfig
from weight_readers_loader.cli import cli
from weight_readers_loader.config.layers import DEFAULTS

DOCUMENT = Path(__file__).parents[4] / "docs" / "configuration.md"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_weight_load_threads": 0}, "must be at least 1, not 0"),
        ({"num_weight_load_threads": 1025}, "must be at most 1024, not 1025"),
        ({"num_weight_load_threads": True}, "must be a whole number, not True"),
        ({"num_weight_load_threads": "4"}, "must be a whole number, not '4'"),
        ({"strict": 1}, "must be true or false, not 1"),
        ({"prefer": "threaded"}, "must be a list of names, not 'threaded'"),
        ({"reader": ""}, "must be a text that is not empty"),
        ({"reader": 5}, "must be a text, not 5"),
        ({"direct_io": True}, "must be 'on', 'off' or 'auto', not True"),
        ({"max_in_flight_bytes": "3 parsecs"}, "must be a whole number of bytes, or a text with a unit, as '256MiB'"),
        ({"max_in_flight_bytes": 0}, "must be at least 1, not 0"),
        ({"reader_options": [1]}, "must be a table of names and values, not [1]"),
        ({"verify": 1}, "must be true, false, or the path of a manifest, not 1"),
        ({"verify": ""}, "must be true, false, or the path of a manifest, not ''"),
        ({"dequantize": "bf61"}, "must be 'float32', 'bfloat16', 'float16', 'fp32', 'bf16' or 'fp16', not 'bf61'"),
    ],
)
def test_a_value_of_another_kind_or_range_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoadConfig(**values)
    assert f"option '{next(iter(values))}' {words}" in str(caught.value)
    assert caught.value.option == next(iter(values))


def test_several_faults_are_told_together() -> None:
    with pytest.raises(ConfigError, match=r"option 'strict' must .*; option 'prefetch' must "):
        LoadConfig(strict="no", prefetch=65)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "nbytes"), [("256MiB", 256 << 20), ("1.5GB", 1_500_000_000), ("12", 12), (" 2 kib ", 2048), (7, 7)]
)
def test_a_size_may_have_a_unit(text: Any, nbytes: int) -> None:
    assert LoadConfig(max_in_flight_bytes=text).max_in_flight_bytes == nbytes


def test_it_cannot_be_changed_and_pickles() -> None:
    config = LoadConfig(prefetch=3, prefer=["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="frozen"):
        config.prefetch = 4  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("command", ["load", "explain"])
def test_every_field_has_a_flag_of_its_name(command: str) -> None:
    group = cli
    assert isinstance(group, click.Group)
    flags = {option for parameter in group.commands[command].params for option in parameter.opts}
    fields = {"--" + name.replace("_", "-") for name in LoadConfig.model_fields}
    assert fields - flags == {"--reader-options", "--adapters"}
    assert {"--option", "--adapter"} <= flags


def test_the_documentation_lists_every_field_with_its_description_and_default() -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    listed = {row[0].strip("`"): [cell.strip() for cell in row[1:]] for row in rows}
    assert list(listed) == list(LoadConfig.model_fields)
    for name, field in LoadConfig.model_fields.items():
        default = DEFAULTS.get(name)
        assert listed[name] == [str(field.description), *([] if default is None else [f"`{str(default).lower()}`"])]
