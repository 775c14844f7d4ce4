# SPDX-License-Identifier: Apache-2.0
"""Facts of files and processes: each as somebody else tells it, each injectable, each absent where nobody tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.measure import PAGE, cached_pages, new_memory

from weight_readers import Environment
from weight_readers_loader import open_checkpoint
from weight_readers_loader.environment import (
    Places,
    Span,
    filesystem_of,
    gathered,
    local_ranks,
    reachable_memory,
    residency,
    sampled,
)
from weight_readers_loader.environment.filesystem import magic_of
from weight_readers_loader.environment.residency import SAMPLE_BYTES, SAMPLES, by_cachestat, by_mincore

NOWHERE = Places(cgroups=Path("/nowhere"), own=Path("/nowhere"), meminfo=Path("/nowhere"))


class TestFileSystems:
    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (0x6969, "nfs"),
            (0x0BD00BD0, "lustre"),
            (0x00C36400, "ceph"),
            (0xFF534D42, "cifs"),
            (0x01021997, "9p"),
            (0xEF53, "ext4"),
            (0x58465342, "xfs"),
            (0x794C7630, "overlay"),
            (0x01021994, "tmpfs"),
        ],
    )
    def test_numbers_of_statfs_have_names(self, number: int, kind: str, tmp_path: Path) -> None:
        """As linux/magic.h has them; Lustre's is in its own lustre_user.h."""
        assert filesystem_of(str(tmp_path), magic=lambda path: number) == kind

    def test_which_fuse_it_is_stands_in_the_table_of_mounts(self, tmp_path: Path) -> None:
        device = tmp_path.stat().st_dev
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            "22 1 0:1 / /proc rw - proc proc rw\n"
            f"36 35 {os.major(device)}:{os.minor(device)} / /mnt/m rw,noatime shared:1 - fuse.sshfs host:/ rw\n"
        )
        assert filesystem_of(str(tmp_path), magic=lambda path: 0x65735546, mounts=mounts) == "fuse.sshfs"

    @pytest.mark.parametrize("table", ["", "nonsense\n", "1 2 - - -\n", "36 35 999:999 / / rw - fuse x rw\n"])
    def test_what_no_table_names_is_not_known(self, table: str, tmp_path: Path) -> None:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(table)
        assert filesystem_of(str(tmp_path), magic=lambda path: 1, mounts=mounts) is None
        assert filesystem_of(str(tmp_path), magic=lambda path: 1, mounts=tmp_path / "none") is None

    def test_here_statfs_and_the_table_of_mounts_agree(self) -> None:
        assert filesystem_of("/proc") == "proc"
        assert magic_of("/proc") == 0x9FA0

    def test_what_is_not_there_is_not_known(self, tmp_path: Path) -> None:
        assert filesystem_of(str(tmp_path / "none")) is None


@pytest.fixture
def half_cached(tmp_path: Path) -> Path:
    """64 MiB, of which the second half was dropped from the page cache."""
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 32 << 20, 32 << 20, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return path


class TestResidency:
    @pytest.mark.parametrize("ask", [by_cachestat, by_mincore])
    def test_it_is_what_the_kernel_says_of_each_page(self, ask: object, half_cached: Path) -> None:
        told = residency([Span(str(half_cached), 0, 64 << 20)], asks=[ask])  # type: ignore[list-item]
        pages = cached_pages(half_cached)
        if told is None and ask is by_cachestat:
            pytest.skip("this kernel has no cachestat")
        assert told == sum(pages) / len(pages)
        assert 0 < told < 1

    def test_samples_tell_about_the_same(self, half_cached: Path) -> None:
        samples = sampled([Span(str(half_cached), 0, 64 << 20)])
        pages = cached_pages(half_cached)
        told = residency(samples)
        assert told is not None
        assert abs(told - sum(pages) / len(pages)) <= 2 / SAMPLES

    def test_only_the_wanted_bytes_count(self, half_cached: Path) -> None:
        pages = cached_pages(half_cached)
        first = next(number for number in range(16, len(pages)) if not pages[number])
        assert residency([Span(str(half_cached), 0, 16 * PAGE)]) == 1.0
        assert residency([Span(str(half_cached), first * PAGE, (first + 1) * PAGE)]) == 0.0

    @pytest.mark.parametrize("spans", [[], [Span("/no/such/file", 0, 10)], [Span("s3://bucket/file", 0, 10)]])
    def test_without_bytes_or_files_it_is_not_known(self, spans: list[Span]) -> None:
        assert residency(sampled(spans)) is None

    def test_where_nobody_tells_it_is_not_known(self, half_cached: Path) -> None:
        assert residency([Span(str(half_cached), 0, 1)], asks=[lambda *span: None]) is None

    def test_a_fifo_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        assert residency([Span(str(tmp_path / "fifo"), 0, 10)]) is None


class TestSamples:
    def test_few_bytes_are_all_taken(self) -> None:
        spans = [Span("a", 10, 20), Span("b", 0, 0), Span("b", 5, 7)]
        taken = {(s.path, n) for s in sampled(spans) for n in range(s.begin, s.end)}
        assert taken == {*(("a", n) for n in range(10, 20)), ("b", 5), ("b", 6)}

    def test_many_bytes_are_sampled_evenly_in_few_pieces(self) -> None:
        samples = sampled([Span("a", 0, 10 << 30), Span("b", 0, 30 << 30)])
        assert len(samples) == SAMPLES
        assert sum(sample.path == "a" for sample in samples) == SAMPLES // 4
        assert all(sample.end - sample.begin == SAMPLE_BYTES for sample in samples)

    def test_a_piece_ends_with_the_range_it_lies_in(self) -> None:
        spans = [Span("a", n * 100, n * 100 + 3) for n in range(100)]
        assert all(s.begin % 100 < s.end - s.begin + s.begin % 100 <= 3 for s in sampled(spans))


class TestProcess:
    @pytest.mark.parametrize(("told", "ranks"), [("8", 8), ("", None), ("0", None), ("-1", None), ("many", None)])
    def test_ranks_are_those_that_torchrun_tells_of(self, told: str, ranks: int | None) -> None:
        assert local_ranks({"LOCAL_WORLD_SIZE": told}) == ranks

    def test_b124_ranks_share_the_cpus(self) -> None:
        """Each rank took all cores (xLLM-AI/xllm#948)."""
        here = len(os.sched_getaffinity(0))
        many = gathered(environ={"LOCAL_WORLD_SIZE": str(4 * here)})
        assert (many.cpus, many.local_ranks) == (1, 4 * here)

    def test_swap_counts_before_a_process_ends(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemAvailable: 7 kB\nSwapFree: 3 kB\n")
        places = Places(cgroups=tmp_path, own=tmp_path / "own", meminfo=tmp_path / "meminfo")
        assert reachable_memory(places) == 10 * 1024

    def test_what_nobody_tells_is_left_open(self) -> None:
        found = gathered(places=NOWHERE, environ={})
        assert (found.host_memory_free, found.local_ranks, found.filesystem) == (None, None, None)
        assert found.page_cache_residency is None

    def test_memory_of_the_process_is_that_of_the_kernel(self) -> None:
        found = gathered()
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        kept = new_memory(64 << 20)
        assert found.rss_anon is not None
        assert abs(found.rss_anon - int(fields["RssAnon"].split()[0]) * 1024) < 16 << 20
        assert (gathered().rss_anon or 0) - found.rss_anon > len(kept) // 2

    def test_what_is_given_is_not_looked_up(self) -> None:
        given = Environment(
            cpus=77, local_ranks=3, host_memory_free=1, page_cache_residency=0.5, filesystem="nfs", devices={"npu"}
        )
        found = gathered(given, spans=[Span(__file__, 0, 10)])
        assert given.to_json() == {**found.to_json(), "rss_anon": None, "rss_file": None}


class TestOfALoad:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        save_file({"a": torch.zeros(8 << 20), "b": torch.zeros(8 << 20)}, tmp_path / "model.safetensors")
        return tmp_path

    def test_a_load_is_judged_by_the_bytes_that_it_wants(self, model: Path) -> None:
        checkpoint = open_checkpoint(model)
        descriptor = os.open(model / "model.safetensors", os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        meta = checkpoint.tensors["b"]
        os.pread(descriptor, meta.nbytes, meta.offset)
        os.close(descriptor)
        told = {}
        for name in ("b", "a"):
            checkpoint.state_dict(key_filter=name.__eq__)
            assert checkpoint.report is not None
            told[name] = checkpoint.report.selection.environment.page_cache_residency
        assert told["b"] == 1.0
        assert told["a"] < 0.5  # what the kernel read ahead before

    def test_facts_that_are_given_decide(self, model: Path) -> None:
        checkpoint = open_checkpoint(model, environment=Environment(filesystem="nfs", page_cache_residency=0.0))
        checkpoint.state_dict()
        assert checkpoint.report is not None
        candidate = checkpoint.report.selection.candidate("threaded")
        assert candidate is not None
        assert (checkpoint.report.reader, candidate.settings) == ("threaded", {"num_threads": 8})
        assert "settings:   num_threads=8 (nfs: requests wait together" in str(checkpoint.report)
