# SPDX-License-Identifier: Apache-2.0
"""How many threads by default, from affinity, cgroups and ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weight_readers_files.cpus import available_cpus
from weight_readers_threaded.cpus import DEFAULT_THREADS, cgroup_quota, default_threads


@pytest.mark.parametrize(
    ("cpus", "quota", "ranks", "expected"),
    [
        (64, 128.0, "1", DEFAULT_THREADS),
        (2, 128.0, "1", 2),
        (64, 2.5, "1", 2),
        (64, 0.5, "1", 1),
        (16, 128.0, "8", 2),
        (2, 128.0, "8", 1),
        (64, 128.0, "0", DEFAULT_THREADS),
        (64, 128.0, "many", DEFAULT_THREADS),
        (64, 128.0, "-8", DEFAULT_THREADS),
        (64, 128.0, "", DEFAULT_THREADS),
    ],
)
def test_the_default_is_this_process_share_of_the_cpus(cpus: int, quota: float, ranks: str, expected: int) -> None:
    assert expected == default_threads(affinity=cpus, quota=quota, environ={"LOCAL_WORLD_SIZE": ranks})


def test_without_ranks_the_cpus_are_all_its_own() -> None:
    assert default_threads(affinity=3, quota=9.0, environ={}) == 3


def test_the_affinity_mask_counts() -> None:
    assert len(os.sched_getaffinity(0)) == available_cpus()


def groups(tmp_path: Path, own: str, **files: str) -> float | None:
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "fs" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return cgroup_quota(tmp_path / "fs", tmp_path / "own")


def test_version_2_has_quota_and_period_in_one_file(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a/b\n", a__b__cpu_dot_max="50000 100000\n") == 0.5


def test_the_word_max_is_no_limit(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a\n", a__cpu_dot_max="max 100000\n") is None


@pytest.mark.parametrize(("outer", "inner"), [("150000 100000", "400000 100000"), ("400000 100000", "150000 100000")])
def test_the_tightest_limit_of_a_group_and_those_above_it_holds(outer: str, inner: str, tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a/b\n", a__cpu_dot_max=outer, a__b__cpu_dot_max=inner) == 1.5


def test_in_a_container_the_limit_stands_at_the_root_whatever_the_path_says(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/docker/0123\n", cpu_dot_max="200000 100000") == 2.0


def test_version_1_has_two_files(tmp_path: Path) -> None:
    own = "3:memory:/m\n2:cpu,cpuacct:/a\n1:name=systemd:/\n0::/\n"
    files = {"cpu__a__cpu_dot_cfs_quota_us": "300000\n", "cpu__a__cpu_dot_cfs_period_us": "100000\n"}
    assert groups(tmp_path, own, **files) == 3.0


def test_version_1_says_no_limit_with_a_negative_number(tmp_path: Path) -> None:
    files = {"cpu__a__cpu_dot_cfs_quota_us": "-1\n", "cpu__a__cpu_dot_cfs_period_us": "100000\n"}
    assert groups(tmp_path, "2:cpu:/a\n", **files) is None


@pytest.mark.parametrize("own", ["", "nonsense\n", "0::/nowhere\n", "1:cpuset:/\n"])
def test_what_cannot_be_read_is_no_limit(own: str, tmp_path: Path) -> None:
    assert groups(tmp_path, own) is None


@pytest.mark.parametrize("content", ["", "100000", "50000 0", "a b"])
def test_a_malformed_limit_is_none(content: str, tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a\n", a__cpu_dot_max=content) is None
