# SPDX-License-Identifier: Apache-2.0
"""How the reader is registered, what it says of itself, and how little saying it costs."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from functools import cache
from typing import Any

import importlib_metadata
import pytest

import weight_readers
from weight_readers import (
    DigestsFiles,
    Feature,
    FetchesRanges,
    Lifetime,
    ListsFiles,
    ReaderInfo,
    ReadsInto,
    WeightReader,
)
from weight_readers_testkit.subject import Subject

GROUP = "weight_readers"
PROTOCOLS = {
    Feature.READ_INTO: ReadsInto,
    Feature.LISTS: ListsFiles,
    Feature.DIGESTS: DigestsFiles,
    Feature.FETCHES: FetchesRanges,
}
UNTESTED = {Feature.DISTRIBUTED}
"""Features that no protocol of core says anything of, so that nothing can hold a reader to them."""

_LIGHT = """
import json, sys, importlib_metadata, weight_readers
name = sys.argv[1]
(point,) = {p.value: p for p in importlib_metadata.entry_points(group="weight_readers", name=name)}.values()
package = point.value.partition(":")[0].partition(".")[0]
before = set(sys.modules)
point.load()
added = {each.partition(".")[0] for each in set(sys.modules) - before} - set(sys.stdlib_module_names) - {package}
info = weight_readers.describe_reader(name)
backends = {requirement.module.partition(".")[0] for requirement in info.requires} | {"torch"}
print(json.dumps([sorted(added), sorted(backends & set(sys.modules) - added - {package})]))
"""

gate = pytest.mark.weight_readers_gate


class DeclarationTests(Subject):
    @gate
    def test_one_distribution_registers_the_reader(self) -> None:
        """pyproject.toml: one line `NAME = "package.plugin"` below `[project.entry-points.weight_readers]` with
        `reader_name` as NAME; install it once, under one distribution name."""
        owners = _owners(self.reader_name)
        assert len(owners) == 1, f"distributions with an entry point {self.reader_name!r}: {owners}"

    @gate
    def test_its_hooks_are_sound_and_make_a_reader(self) -> None:
        """`weight_readers_create` returns an object with `info`, `selection`, `read_meta` and `iter_weights`;
        `ReaderInfo.name` is the entry point's name."""
        if len(_owners(self.reader_name)) != 1:
            pytest.skip("registered by none or by several")
        reader = self.make()
        assert isinstance(reader, WeightReader)
        assert (reader.info.name, reader.selection is not None) == (self.reader_name, True)

    def test_importing_its_hook_module_adds_no_package_but_its_own(self) -> None:
        """The module of the entry point: import torch and the backend within `weight_readers_create`."""
        added, _ = _imported(self.reader_name)
        assert added == [], f"the hook module imports {added}: import them in weight_readers_create"

    def test_describing_it_imports_no_backend(self) -> None:
        """`weight_readers_describe`: what `ReaderInfo.requires` names, and torch, is imported within
        `weight_readers_create`."""
        _, backends = _imported(self.reader_name)
        assert backends == [], f"weight_readers_describe imports {backends}"

    def test_the_declaration_goes_through_json_and_pickle(self) -> None:
        """`weight_readers_describe` and `info` of the reader: a `ReaderInfo` of core itself, of plain values."""
        for declared in (self.info(), self.make().info):
            assert declared == ReaderInfo.from_json(json.loads(json.dumps(declared.to_json())))
            assert declared == pickle.loads(pickle.dumps(declared))  # noqa: S301 - made on the line itself

    def test_made_without_options_it_is_what_it_declared(self) -> None:
        """`info` of a reader made without options is what `weight_readers_describe` returns: change it with
        `dataclasses.replace` only where an option asks for it."""
        assert self.info() == self.make({}).info

    def test_views_of_the_file_are_declared_as_lifetime_and_as_feature_or_not_at_all(self) -> None:
        """`ReaderInfo`: `Lifetime.MAPPED` and `Feature.FILE_MAPPING` go together, also in each mode (`info` of the
        reader)."""
        info = self.make().info
        assert (info.lifetime is Lifetime.MAPPED) == (Feature.FILE_MAPPING in info.features)

    def test_every_declared_option_is_checked_and_named_in_the_error(self) -> None:
        """`weight_readers_create`: take each of `ReaderInfo.options` by its name, and raise a TypeError or ValueError
        with that name for a value that is none."""
        for option in sorted(self.info().options):
            with pytest.raises((TypeError, ValueError, weight_readers.WeightReadersError)) as caught:
                self.make({option: object()})
            said = str(caught.value)
            assert "unexpected keyword" not in said, f"option {option!r} is declared, and the reader does not take it"
            assert option in said

    def test_every_declared_feature_is_one_that_can_be_held_against_it(self) -> None:
        """`ReaderInfo.features`: leave this one out, for which core has no protocol, or override the test with the
        reason."""
        assert set() == self.make().info.features & UNTESTED

    def test_the_protocols_are_those_of_the_declared_features(self) -> None:
        """`ReaderInfo.features` and the reader's methods: declare what it has, or add the methods of the protocol
        (`ReadsInto`, `ListsFiles`, `DigestsFiles`, `FetchesRanges`)."""
        reader = self.make()
        lacking = [f.value for f, kind in PROTOCOLS.items() if f in reader.info.features and not _has(reader, kind)]
        assert lacking == [], f"declared, and without the methods: {lacking}"
        if Feature.READ_INTO not in reader.info.features:
            assert not _has(reader, ReadsInto), "it has read_into and does not declare it: nobody will call it"


def _has(reader: WeightReader, protocol: Any) -> bool:
    return isinstance(reader, protocol)


def _owners(reader: str) -> list[str]:
    """The distributions that register a reader of this name."""
    return sorted({d.name for d in importlib_metadata.distributions() if reader in _registered(d)})


def _registered(distribution: Any) -> set[str]:
    try:
        return {point.name for point in distribution.entry_points if point.group == GROUP}
    except (TypeError, ValueError):  # the metadata of some other package cannot be read
        return set()


@cache
def _imported(reader: str) -> tuple[list[str], list[str]]:
    """Packages that a fresh interpreter has more after importing the hook module, and backends after describing."""
    done = subprocess.run(
        [sys.executable, "-c", _LIGHT, reader], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    added, backends = json.loads(done.stdout)
    return added, backends
