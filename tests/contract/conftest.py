# SPDX-License-Identifier: Apache-2.0
"""Every installed reader of safetensors files, in each of its modes, reached through core only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import weight_readers
from weight_readers import ReaderInfo, WeightReader

FORMAT = "safetensors"
MODES: tuple[dict[str, Any], ...] = ({}, {"readonly": True}, {"copy": True}, {"prefetch": 2})


class Choice(NamedTuple):
    """A reader by name, and the options it is made with."""

    name: str
    options: dict[str, Any]

    def make(self) -> WeightReader:
        return weight_readers.select_weight_reader(
            requested=self.name, format=FORMAT, strict=True, options=self.options
        )

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])


def installed() -> list[ReaderInfo]:
    described = [weight_readers.describe_reader(name) for name in weight_readers.available_reader_names()]
    return [info for info in described if FORMAT in info.formats]


def choices_of(info: ReaderInfo) -> list[Choice]:
    return [Choice(info.name, options) for options in MODES if options.keys() <= info.options]


def choices() -> Iterator[Choice]:
    for info in installed():
        yield from choices_of(info)


@pytest.fixture(params=list(choices()), ids=str)
def choice(request: pytest.FixtureRequest) -> Choice:
    chosen: Choice = request.param
    return chosen


@pytest.fixture
def reader(choice: Choice) -> WeightReader:
    return choice.make()


@pytest.fixture(params=installed(), ids=lambda info: info.name)
def info(request: pytest.FixtureRequest) -> ReaderInfo:
    """What a reader declares before it is made."""
    declared: ReaderInfo = request.param
    return declared
