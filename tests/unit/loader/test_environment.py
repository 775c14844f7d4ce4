# SPDX-License-Identifier: Apache-2.0
"""What machine and cgroups leave to a process, told by files that are written here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weight_readers_loader.environment import Places, available_cpus, available_memory

V1 = 2**63 - 4096
"""What version 1 writes for no limit."""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Nothing is there yet."""
    return Places(cgroups=tmp_path / "fs", own=tmp_path / "own", meminfo=tmp_path / "meminfo")


def write(places: Places, own: str = "", meminfo: str = "", **groups: dict[str, object]) -> Places:
    """``groups`` are folders, with ``__`` for a slash."""
    places.own.write_text(own)
    places.meminfo.write_text(meminfo)
    for name, files in groups.items():
        folder = places.cgroups / name.replace("__", "/").replace("root", "")
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file.replace("_", ".", 1)).write_text(f"{content}\n")
    return places


class TestMemory:
    def test_where_nothing_tells_it_is_not_known(self, places: Places) -> None:
        assert available_memory(places) is None

    def test_without_limits_it_is_what_the_machine_has_available(self, places: Places) -> None:
        write(places, "0::/\n", "MemTotal:  99 kB\nMemFree:  1 kB\nMemAvailable:  7 kB\n", root={"memory_max": "max"})
        assert available_memory(places) == 7 * 1024

    def test_a_limit_of_version_2_counts_less_what_is_used_and_not_cached_files(self, places: Places) -> None:
        stat = "anon 40\nactive_file 5\ninactive_file 20\nshmem 9"
        group = {"memory_max": 100, "memory_current": 70, "memory_stat": stat}
        assert available_memory(write(places, "0::/a\n", "MemAvailable: 9 kB\n", a=group)) == 100 - 70 + 25

    def test_the_tightest_of_a_group_and_those_above_it_holds(self, places: Places) -> None:
        outer = {"memory_max": 50, "memory_current": 40}
        inner = {"memory_max": 1000, "memory_current": 10}
        assert available_memory(write(places, "0::/a/b\n", a=outer, a__b=inner)) == 10

    def test_in_a_container_the_limit_is_that_of_the_root_it_sees(self, places: Places) -> None:
        write(places, "0::/not/visible/here\n", root={"memory_max": 30, "memory_current": 12})
        assert available_memory(places) == 18

    def test_version_1_has_its_own_names_below_its_controller(self, places: Places) -> None:
        group = {
            "memory_limit_in_bytes": 100,
            "memory_usage_in_bytes": 60,
            "memory_stat": "total_inactive_file 7\ninactive_file 1",
        }
        write(places, "5:cpu,cpuacct:/x\n4:memory:/a\n", memory__a=group)
        assert available_memory(places) == 47

    def test_version_1_without_a_limit_has_a_number_that_is_larger_than_any_machine(self, places: Places) -> None:
        write(
            places,
            "4:memory:/a\n",
            "MemAvailable: 2 kB\n",
            memory__a={"memory_limit_in_bytes": V1, "memory_usage_in_bytes": 60},
        )
        assert available_memory(places) == 2048

    def test_a_group_that_is_over_its_limit_has_nothing_left(self, places: Places) -> None:
        assert available_memory(write(places, "0::/a\n", a={"memory_max": 10, "memory_current": 11})) == 0

    @pytest.mark.parametrize("own", ["", "nonsense\n", "1:2\n", "0::/a\n"])
    @pytest.mark.parametrize("limit", ["", "lots", "-5"])
    def test_what_cannot_be_read_is_no_limit(self, own: str, limit: str, places: Places) -> None:
        assert available_memory(write(places, own, "MemAvailable: 3 kB\n", a={"memory_max": limit})) == 3072

    def test_of_this_process_it_is_less_than_the_machine_has(self) -> None:
        left = available_memory()
        assert left is not None
        assert 0 < left < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class TestCpus:
    def test_without_a_quota_they_are_those_of_the_affinity_mask(self, places: Places) -> None:
        assert available_cpus(places) == len(os.sched_getaffinity(0))

    @pytest.mark.parametrize(("quota", "expected"), [("50000 100000", 1), ("max 100000", None), ("1 0", None)])
    def test_a_quota_of_version_2_counts(self, quota: str, expected: int | None, places: Places) -> None:
        write(places, "0::/a\n", a={"cpu_max": quota})
        assert available_cpus(places) == (expected or len(os.sched_getaffinity(0)))

    def test_a_quota_of_version_1_counts(self, places: Places) -> None:
        group = {"cpu_cfs_quota_us": 100, "cpu_cfs_period_us": 200}
        assert available_cpus(write(places, "5:cpu,cpuacct:/a\n", cpu__a=group)) == 1
