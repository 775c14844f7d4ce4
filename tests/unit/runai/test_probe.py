# SPDX-License-Identifier: Apache-2.0
"""What a version of the backend can do is told by its source."""

from __future__ import annotations

import pytest

from weight_readers import Declined, Environment, Request
from weight_readers_runai import plugin, probe
from weight_readers_runai.probe import Backend, lacking

# As in runai-model-streamer 0.14.0.
OLD = """
def runai_request(streamer, paths, file_offsets, bytesizes, dsts, internal_sizes, s3_credentials=None): ...
def runai_response(streamer): ...
"""
NEW = """
def runai_request(streamer, paths, num_ranges, range_offsets, range_sizes, range_dsts): ...
def runai_response(streamer, timeout_ms=0): ...
def runai_set_credentials(streamer, s3_credentials=None): ...
"""


def test_the_installed_version_has_all_that_is_needed() -> None:
    backend = probe.probe()
    assert backend.lacks == ()
    assert backend.version is not None


def test_an_old_version_is_told_by_its_signatures() -> None:
    assert lacking(NEW) == ()
    assert lacking(OLD) == (
        "runai_request(range_offsets=)",
        "runai_request(range_sizes=)",
        "runai_request(range_dsts=)",
        "runai_response(timeout_ms=)",
        "runai_set_credentials()",
    )


def test_an_old_version_is_declined_with_the_command_that_updates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Backend(version="0.14.0", lacks=("runai_response(timeout_ms=)",), schemes=frozenset(), more_schemes={})
    monkeypatch.setattr(probe, "probe", lambda: old)
    declined = plugin.weight_readers_check(Request(), Environment())
    assert isinstance(declined, Declined)
    assert "0.14.0 has no runai_response(timeout_ms=)" in declined.reason
    assert declined.fix == 'Update it: pip install --upgrade "runai-model-streamer>=0.17"'


def test_the_packages_for_stores_are_updated_along() -> None:
    schemes = frozenset({"file", "gs", "s3"})
    old = Backend(version="0.14.0", lacks=("runai_set_credentials()",), schemes=schemes, more_schemes={})
    assert old.update == 'pip install --upgrade "runai-model-streamer[gcs,s3]>=0.17"'


def test_a_scheme_without_its_package_is_not_offered_and_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_is_installed", lambda package: False)
    backend = probe.probe.__wrapped__()
    assert frozenset({"file"}) == backend.schemes
    extras = {"s3": "s3", "gs": "gcs"}
    assert {scheme: f'pip install "weight-readers-runai[{extra}]"' for scheme, extra in extras.items()} == dict(
        backend.more_schemes
    )
