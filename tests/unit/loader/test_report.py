# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import floats, write_sharded, write_tensors
from torch import nn

from weight_readers import Environment, ReadStats, TensorSlice, explain_selection
from weight_readers_loader import LoadReport, open_checkpoint
from weight_readers_loader.meter import Clock, Meter


def report(**fields: Any) -> LoadReport:
    given = {
        "reference": "m",
        "selection": explain_selection(format="safetensors", requested="safetensors"),
        "files": 1,
        "tensors": 1,
        "bytes_wanted": 1536,
        "bytes_read": 1024,
        "storage_bytes": 0,
        "seconds": 1.5,
        "seconds_to_first": 0.0025,
        "peak_rss_anon": 1 << 20,
        "peak_rss_file": 2 << 20,
        "major_faults": 1,
    }
    return LoadReport(**{**given, **fields})


def lines(report: LoadReport) -> dict[str, str]:
    pairs = (line.partition(":") for line in str(report).splitlines())
    return {label: text.strip() for label, _, text in pairs}


def test_the_figures_are_said_with_their_units() -> None:
    said = lines(report())
    assert said["read"] == "1 tensor, 1.00 KiB of 1.50 KiB wanted, 1 file, 0 B from storage"
    assert said["time"] == "1.500 s, first tensor after 2.5 ms"
    assert said["memory"] == "anonymous 1.00 MiB, file 2.00 MiB (peak of the process), 1 major fault"
    assert said["reader"].startswith("safetensors (")


def test_what_a_system_cannot_tell_is_left_out() -> None:
    said = lines(report(storage_bytes=None, peak_rss_anon=None, peak_rss_file=None, seconds_to_first=None))
    assert said["read"].endswith("1 file")
    assert said["time"] == "1.500 s"
    assert "memory" not in said


def test_remarks_are_said_only_where_there_are_any() -> None:
    assert list(lines(report())) == ["reader", "read", "time", "memory"]
    said = lines(
        report(
            copied=2,
            cast={"float32 -> bfloat16": 3},
            missing=tuple("abcdefg"),
            unexpected=("x",),
            tied=(("embed", "head"),),
            aliases={"head": "embed"},
            left_on_meta=("table",),
            decisions=("read past the page cache",),
        )
    )
    assert said["decided"] == "read past the page cache"
    assert said["copied"] == "2 tensors, unaligned in the file"
    assert said["cast"] == "3 x float32 -> bfloat16"
    assert said["missing"] == "a, b, c, d, e and 2 more"
    assert (said["tied"], said["aliases"], said["on meta"]) == ("embed = head", "head from embed", "table")


def test_dtypes_phases_and_what_was_skipped_are_said() -> None:
    phases = {"resolve": 0.001, "headers": 0.002, "select": 0.0, "read": 1.25, "place": 0.25}
    said = lines(
        report(phases=phases, dtypes={"BF16": 2048, "F32": 4}, skipped=(("x.bin", "of format pt"), ("y", "z")))
    )
    assert said["time"] == (
        "1.500 s (read 1.250, place 0.250), first tensor after 2.5 ms; "
        "before that 0.003 s (resolve 0.001, headers 0.002, select 0.000)"
    )
    assert said["dtypes"] == "BF16 2.00 KiB, F32 4 B"
    assert said["skipped"] == "x.bin: of format pt; y: z"


def test_each_setting_is_said_with_where_it_comes_from() -> None:
    request = {"options": {"num_threads": 3}, "settings": {"direct_io": "off", "prefetch": 2}}
    machine = Environment(cpus=2, page_cache_residency=1.0)
    reader = {"format": "safetensors", "requested": "threaded", "environment": machine}
    said = lines(report(selection=explain_selection(**reader, **request)))["settings"]
    assert said == "direct_io=off (set by the caller), num_threads=3 (required by the caller), the rest by default"
    said = lines(report(selection=explain_selection(**reader)))["settings"]
    assert said == "num_threads=2 (2 CPUs for this process, and 4 threads at most), the rest by default"
    owned = explain_selection(format="safetensors", requested="safetensors", owned=True)
    assert lines(report(selection=owned))["settings"] == "copy=True (owned tensors were asked for), the rest by default"


def test_what_cannot_have_come_from_storage_was_cached() -> None:
    assert report(bytes_read=1024, storage_bytes=1000).bytes_cached == 24
    assert report(bytes_read=1024, storage_bytes=4096).bytes_cached == 0
    assert report(storage_bytes=None).bytes_cached is None


FULL = {
    "phases": {"read": 1.0},
    "dtypes": {"F32": 8},
    "cast": {"x": 1},
    "skipped": (("a.bin", "why"),),
    "missing": ("a",),
    "unexpected": ("u",),
    "tied": (("b", "c"),),
    "aliases": {"d": "b"},
    "left_on_meta": ("m",),
    "notices": ("n",),
    "decisions": ("d",),
}


def test_a_report_comes_back_from_its_json() -> None:
    full = report(**FULL)
    data = json.loads(json.dumps(full.to_json()))
    assert set(data) == {*LoadReport.__dataclass_fields__, "version", "reader", "bytes_cached"}
    assert (data["version"], data["reader"], data["tied"]) == (1, "safetensors", [["b", "c"]])
    assert LoadReport.from_json(data) == full


def test_every_field_is_documented() -> None:
    assert LoadReport.__doc__ is not None
    undocumented = [name for name in LoadReport.__dataclass_fields__ if name not in LoadReport.__doc__]
    assert undocumented == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, ValueError, "a load report of version 2; this is read here: 1"),
        ({"version": None}, ValueError, "version None"),
        ({"speed": 1}, TypeError, r"no field \['speed'\]"),
    ],
)
def test_json_of_another_version_or_kind_is_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LoadReport.from_json({**report().to_json(), **change})


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="not the JSON of a load report"):
        LoadReport.from_json({"tensors": 1})


def test_waiting_for_tensors_is_reading_and_the_rest_is_placing() -> None:
    clock = Clock({"resolve": 5.0})
    with Meter(clock) as meter:
        for _ in clock.waiting(iter([("a", torch.zeros(1)), ("b", torch.zeros(1))])):
            pass
    phases = meter.figures()["phases"]
    assert list(phases) == ["resolve", "headers", "select", "read", "place"]
    assert phases["resolve"] == 5.0
    assert phases["read"] > 0
    assert phases["read"] + phases["place"] == pytest.approx(meter.seconds)


def test_the_meter_keeps_the_last_totals_and_the_time_of_the_first_tensor() -> None:
    with Meter() as meter:
        meter.update(ReadStats(bytes_wanted=8))
        assert meter.seconds_to_first is None
        meter.update(ReadStats(tensors=1, bytes_wanted=8, bytes_read=4))
        first = meter.seconds_to_first
        meter.update(ReadStats(tensors=2, bytes_wanted=8, bytes_read=8))
    figures = meter.figures()
    assert (figures["tensors"], figures["bytes_wanted"], figures["bytes_read"]) == (2, 8, 8)
    assert figures["seconds_to_first"] == first
    assert first is not None
    assert 0 < first <= figures["seconds"]


def test_a_meter_that_saw_nothing_has_zeros() -> None:
    with Meter() as meter:
        pass
    assert (meter.figures()["tensors"], meter.figures()["seconds_to_first"]) == (0, None)


class TestFiguresOfARealLoad:
    def test_of_a_part_they_count_the_part(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [4, 2], floats(*range(8)))})
        checkpoint = open_checkpoint(tmp_path)
        checkpoint.state_dict(slices={"w": TensorSlice(dim=0, start=1, stop=3)})
        assert checkpoint.report is not None
        figures = checkpoint.report
        assert (figures.bytes_wanted, figures.bytes_read, figures.selection.request.bytes_wanted) == (16, 16, 16)

    def test_unaligned_tensors_are_counted_as_copied(self, tmp_path: Path) -> None:
        tensors = {"odd": ("U8", [3], b"abc"), "w": ("F32", [2], floats(1, 2))}
        write_tensors(tmp_path / "model.safetensors", tensors)
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.state_dict()["w"].tolist() == [1, 2]
        assert checkpoint.report is not None
        assert checkpoint.report.copied == 1

    def test_of_a_selection_for_targets_they_say_so(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        found = open_checkpoint(tmp_path).load_into({"t1": torch.zeros(2), "t2": torch.zeros(2)})
        assert found.selection.request.into_targets
        assert (found.files, found.tensors, found.bytes_read) == (2, 2, 16)

    @pytest.mark.parametrize("device", ["cpu", "cpu:0"])
    def test_kept_on_the_host_means_any_spelling_of_it(self, device: str, tmp_path: Path) -> None:
        write_tensors(tmp_path / "model.safetensors", {"weight": ("F32", [1, 2], floats(1, 2))})
        with torch.device("meta"):
            module = nn.Linear(2, 1, bias=False)
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.load_into(module, device=device).selection.request.kept_on_host
        checkpoint.state_dict(device=device)
        assert checkpoint.report is not None
        assert checkpoint.report.selection.request.kept_on_host

    def test_what_was_not_read_is_listed_with_its_reason(self, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        write_tensors(tmp_path / "consolidated.safetensors", {"other": ("F32", [1], floats(1))})
        checkpoint = open_checkpoint(tmp_path)
        checkpoint.state_dict(key_filter="t1".__eq__)
        found = checkpoint.report
        assert found is not None
        assert dict(found.skipped)["1 tensor (8 B)"] == "not asked for"
        assert "consolidated.safetensors" in dict(found.skipped)
        assert found.dtypes == {"F32": 8}

    def test_the_part_outside_of_a_slice_is_listed(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [4, 2], floats(*range(8)))})
        checkpoint = open_checkpoint(tmp_path)
        checkpoint.state_dict(slices={"w": TensorSlice(dim=0, start=1, stop=3)})
        assert checkpoint.report is not None
        assert checkpoint.report.skipped == (("parts of 1 tensor (16 B)", "outside of their slices"),)

    @pytest.mark.parametrize("reader", ["safetensors", "threaded"])
    def test_every_phase_has_its_time_and_reading_and_placing_are_the_load(self, reader: str, tmp_path: Path) -> None:
        write_sharded(tmp_path)
        found = open_checkpoint(tmp_path, reader=reader).load_into({"t1": torch.zeros(2), "t2": torch.zeros(2)})
        assert all(seconds > 0 for seconds in found.phases.values())
        assert found.phases["read"] + found.phases["place"] == pytest.approx(found.seconds)
