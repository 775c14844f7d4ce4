# SPDX-License-Identifier: Apache-2.0
"""A class of a store says where its files are, and what is sent of them; a class of local files need not."""

from __future__ import annotations

from pathlib import Path

import pytest

from weight_readers_testkit import ReaderContractTests
from weight_readers_testkit.faults import OF_FILE_SYSTEMS


class Local(ReaderContractTests):
    reader_name = "acme"
    suffix = ".acme"


class Stored(Local):
    scheme = "s3"


def test_a_local_file_is_referred_to_by_its_path() -> None:
    assert Local().reference(Path("/models/model-1.acme")) == "/models/model-1.acme"


def test_a_class_of_a_store_has_to_say_what_its_reader_is_given() -> None:
    with pytest.raises(NotImplementedError, match=r"Stored has no reference\(\)"):
        Stored().reference(Path("/models/model-1.acme"))


def test_a_class_of_a_store_has_to_say_what_its_server_sends() -> None:
    with pytest.raises(NotImplementedError, match=r"Stored has no counted\(\)"):
        Stored().counted(Path("/models/model-1.acme"), lambda: None)


def test_links_pipes_and_folders_are_faults_of_local_files_only() -> None:
    assert Local().corpus().keys() - Stored().corpus().keys() == OF_FILE_SYSTEMS.keys()
