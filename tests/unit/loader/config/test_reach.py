# SPDX-License-Identifier: Apache-2.0
"""From a flag, a file or a layer to the reader: what a reader's constructor gets, told by a reader of its own."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import document, invoke
from support.files import write_sharded
from support.plugins import Site
from torch import nn

import weight_readers
from weight_readers import ConfigError, NoSuitableReaderError
from weight_readers_loader import LoadConfig, LoadReport, layered, open_checkpoint
from weight_readers_loader.commands.explain import explain
from weight_readers_loader.resolve import resolve

TELLING = """
import json
from dataclasses import replace
from pathlib import Path
from weight_readers import hookimpl
from weight_readers_threaded.plugin import INFO

@hookimpl
def weight_readers_describe():
    return replace(INFO, name="telling", options=INFO.options | {extra!r}, tunable=frozenset())

@hookimpl
def weight_readers_create(options):
    from weight_readers_threaded.reader import ThreadedReader
    Path({heard!r}).write_text(json.dumps(options))
    reader = ThreadedReader(**{{name: v for name, v in options.items() if name not in {extra!r}}})
    reader.info = weight_readers_describe()
    return reader
"""

BARE = """
from dataclasses import replace
from weight_readers import hookimpl
from weight_readers_threaded.plugin import INFO

@hookimpl
def weight_readers_describe():
    return replace(INFO, name="bare", options=frozenset(), tunable=frozenset())

@hookimpl
def weight_readers_create(options):
    from weight_readers_threaded.reader import ThreadedReader
    reader = ThreadedReader()
    reader.info = weight_readers_describe()
    return reader
"""


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, Any]]]:
    """What the constructor of reader ``telling`` was given the last time."""
    path, site = tmp_path / "heard.json", Site(tmp_path / "site")
    site.plugin("telling", TELLING.format(heard=str(path), extra=frozenset({"concurrency", "prefetch"})))
    site.plugin("bare", BARE)
    monkeypatch.syspath_prepend(str(site.folder))
    weight_readers.refresh()
    write_sharded(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    yield lambda: json.loads(path.read_text())
    monkeypatch.undo()
    site.forget_modules()
    weight_readers.refresh()


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--num-weight-load-threads", "3"], {"num_threads": 3, "concurrency": 3}),
        (["--enable-multithread-weight-load"], {}),
        (["--disable-multithread-weight-load"], {"num_threads": 1, "concurrency": 1, "prefetch": 0}),
        (["--disable-broadcast-weight-load"], {}),
        (["--max-in-flight-bytes", "32MiB"], {"max_in_flight_bytes": 32 << 20}),
        (["--direct-io", "auto"], {"direct_io": "auto"}),
        (["--direct-io", "on"], {"direct_io": "on"}),
        (["--prefetch", "2"], {"prefetch": 2}),
        (["--option", "chunk_bytes=4096"], {"chunk_bytes": 4096}),
        (["--option", "num_threads=2", "--num-weight-load-threads", "2"], {"num_threads": 2, "concurrency": 2}),
    ],
)
@pytest.mark.parametrize("command", ["load", "explain"])
def test_a_flag_reaches_the_reader(
    heard: Callable[[], dict[str, Any]], command: str, flags: list[str], options: dict[str, Any]
) -> None:
    done = invoke(command, "m", "--reader", "telling", *flags, "--json")
    assert done.exit_code == 0, done.stderr
    if command == "load" or flags:
        data = document(done)
        assert data.get("made_with", options) == options
        if options:
            assert heard() == options


def test_a_file_and_its_stages_reach_the_reader(heard: Callable[[], dict[str, Any]]) -> None:
    Path("c.toml").write_text("reader='telling'\nnum_weight_load_threads=5\n[stages.vae]\nnum_weight_load_threads=2\n")
    open_checkpoint("m", config="c.toml").state_dict()
    assert heard()["num_threads"] == 5
    open_checkpoint("m", config=layered(file="c.toml", stage_name="vae")).state_dict()
    assert heard()["num_threads"] == 2
    assert invoke("load", "m", "--config", "c.toml", "--stage", "vae", "--num-weight-load-threads", "3").exit_code == 0
    assert heard()["num_threads"] == 3


def test_a_variable_reaches_the_reader(heard: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHT_READERS_READER", "telling")
    monkeypatch.setenv("WEIGHT_READERS_NUM_WEIGHT_LOAD_THREADS", "6")
    open_checkpoint("m").state_dict()
    assert heard()["num_threads"] == 6
    open_checkpoint("m", num_weight_load_threads=2).state_dict()
    assert heard()["num_threads"] == 2


def test_blanks_around_the_value_of_a_variable_are_no_part_of_it(
    heard: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHT_READERS_READER", " telling ")
    monkeypatch.setenv("WEIGHT_READERS_NUM_WEIGHT_LOAD_THREADS", "\t6 ")
    open_checkpoint("m").state_dict()
    assert heard()["num_threads"] == 6


@pytest.mark.parametrize("command", ["load", "explain"])
@pytest.mark.parametrize("name", ["TELLING", "Telling", "teling", "telling "])
def test_a_reader_by_another_spelling_is_refused_with_the_right_one(
    heard: Callable[[], dict[str, Any]], command: str, name: str
) -> None:
    done = invoke(command, "m", "--reader", name)
    assert (done.exit_code, "Did you mean 'telling'?" in done.stderr) == (2, True), done.stderr


# --- what the picked reader does without ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "flags", "told"),
    [
        ("threaded", ["--prefetch", "3"], ["prefetch=3 (--prefetch): reader 'threaded' has no option for it"]),
        (
            "safetensors",
            ["--num-weight-load-threads", "3"],
            ["num_weight_load_threads=3 (--num-weight-load-threads): reader 'safetensors' has no option for it"],
        ),
        ("safetensors", ["--prefetch", "3", "--num-weight-load-threads", "1"], []),
        ("threaded", ["--prefetch", "0", "--num-weight-load-threads", "3"], []),
    ],
)
def test_what_the_picked_reader_does_without_is_told_by_load_and_explain(
    heard: Callable[[], dict[str, Any]], reader: str, flags: list[str], told: list[str]
) -> None:
    given = ("m", "--reader", reader, *flags)
    assert document(invoke("load", *given, "--json"))["report"]["unused"] == told
    assert document(invoke("explain", *given, "--json"))["unused"] == told
    for command, line in (("load", "not used:   "), ("explain", "  not used: ")):
        lines = invoke(command, *given).stdout.splitlines()
        assert [each for each in lines if "not used" in each] == [line + sentence for sentence in told]


def test_the_report_of_a_load_in_python_says_what_the_reader_does_without(heard: Callable[[], dict[str, Any]]) -> None:
    checkpoint = open_checkpoint("m", reader="safetensors", num_weight_load_threads=3)
    checkpoint.state_dict()
    assert checkpoint.report is not None
    assert checkpoint.report.unused == (
        "num_weight_load_threads=3 (argument): reader 'safetensors' has no option for it",
    )
    assert LoadReport.from_json(json.loads(json.dumps(checkpoint.report.to_json()))) == checkpoint.report


def test_explain_names_where_each_value_comes_from(heard: Callable[[], dict[str, Any]]) -> None:
    Path("c.toml").write_text("reader = 'telling'\nprefetch = 4\n")
    done = invoke(
        "explain", "m", "--config", "c.toml", "--disable-multithread-weight-load", "--option", "huge_pages=true"
    )
    assert done.stdout.splitlines()[-5:] == [
        "  option reader='telling' (file c.toml)",
        "  option enable_multithread_weight_load=False (--disable-multithread-weight-load)",
        "  option prefetch=4 (file c.toml)",
        "  option reader_options.huge_pages=True (--option)",
        "  made with: num_threads=1, concurrency=1, prefetch=0, huge_pages=True",
    ]
    data = document(invoke("explain", "m", "--config", "c.toml", "--json"))
    assert data["config"]["enable_broadcast_weight_load"] == {"value": False, "source": "default"}
    assert data["config"]["prefetch"] == {"value": 4, "source": "file c.toml"}


def test_explain_names_the_stage_of_a_file_and_the_variable(
    heard: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("c.toml").write_text("num_weight_load_threads = 5\n[stages.vae]\nnum_weight_load_threads = 2\n")
    monkeypatch.setenv("WEIGHT_READERS_PREFETCH", "3")
    done = invoke("explain", "m", "--config", "c.toml", "--stage", "vae", "--reader", "telling")
    assert done.stdout.splitlines()[-4:] == [
        "  option reader='telling' (--reader)",
        "  option num_weight_load_threads=2 (file c.toml, stage vae)",
        "  option prefetch=3 (environment, WEIGHT_READERS_PREFETCH)",
        "  made with: num_threads=2, concurrency=2, prefetch=3",
    ]


def test_explain_names_the_layers_of_an_engine(heard: Callable[[], dict[str, Any]]) -> None:
    engine = {"reader": "telling", "num_weight_load_threads": 8, "prefetch": 1}
    config = layered(engine=engine, stage={"num_weight_load_threads": 2}, environ={})
    how: dict[str, Any] = {"key_filter": None, "owned": False, "into_existing": False}
    found = explain(lambda options: resolve("m"), scheme="file", config=config, **how)
    assert found.lines("m")[-4:] == [
        "  option reader='telling' (engine)",
        "  option num_weight_load_threads=2 (stage)",
        "  option prefetch=1 (engine)",
        "  made with: num_threads=2, concurrency=2, prefetch=1",
    ]


# --- what excludes itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "stage", "words"),
    [
        (
            {"enable_multithread_weight_load": False},
            {"num_weight_load_threads": 4},
            "num_weight_load_threads=4 needs enable_multithread_weight_load=True (stage), and that is False (engine)",
        ),
        ({"enable_multithread_weight_load": False, "prefetch": 2}, {}, "prefetch=2 needs enable_multithread"),
        ({"enable_broadcast_weight_load": True}, {}, "enable_broadcast_weight_load=True (engine): no rank reads for"),
        (
            {},
            {"prefetch": 2, "reader_options": {"prefetch": 3}},
            "prefetch=2 (stage) and reader_options.prefetch=3 (stage) differ",
        ),
        ({}, {"reader": "bare", "max_in_flight_bytes": "1GiB"}, "cannot be kept by reader 'bare'"),
        ({}, {"reader": "safetensors", "direct_io": "on"}, "no option direct_io"),
    ],
)
def test_what_cannot_be_honoured_together_is_refused(
    heard: Any, engine: dict[str, Any], stage: dict[str, Any], words: str
) -> None:
    config = layered(engine=engine, stage=stage, environ={})
    with pytest.raises((ConfigError, weight_readers.ReaderUnavailableError)) as caught:
        open_checkpoint("m", config=config)
    assert words in str(caught.value)


def test_a_stage_without_threads_beats_the_number_of_the_engine(heard: Callable[[], dict[str, Any]]) -> None:
    engine, stage = {"reader": "telling", "num_weight_load_threads": 8}, {"enable_multithread_weight_load": False}
    open_checkpoint("m", config=layered(engine=engine, stage=stage, environ={})).state_dict()
    assert heard() == {"num_threads": 1, "concurrency": 1, "prefetch": 0}


def test_of_our_name_and_the_readers_the_one_in_the_higher_layer_counts(heard: Callable[[], dict[str, Any]]) -> None:
    low, high = {"reader": "telling", "num_weight_load_threads": 8}, {"reader_options": {"num_threads": 2}}
    open_checkpoint("m", config=layered(engine=low, stage=high, environ={})).state_dict()
    assert heard() == {"num_threads": 2, "concurrency": 8}
    low, high = {"reader": "telling", "reader_options": {"num_threads": 2}}, {"num_weight_load_threads": 8}
    open_checkpoint("m", config=layered(engine=low, stage=high, environ={})).state_dict()
    assert heard() == {"num_threads": 8, "concurrency": 8}


def test_direct_io_takes_only_a_reader_that_has_it(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(NoSuitableReaderError, match="no option direct_io"):
        open_checkpoint(tmp_path / "model.pt", config=LoadConfig(direct_io="on"))
    assert list(open_checkpoint(tmp_path / "model.pt", config=LoadConfig(direct_io="auto")).tensors) == ["w"]


def test_a_mapping_keeps_any_bound_on_bytes_under_way(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    for options in ({}, {"copy": True}):
        config = LoadConfig(reader="safetensors", max_in_flight_bytes=1, reader_options=options)
        assert len(open_checkpoint(tmp_path, config=config).state_dict()) == 2


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Core reads its variables once per scan."""
    monkeypatch.setenv("WEIGHT_READERS_PREFER", "safetensors")
    weight_readers.refresh()
    yield
    monkeypatch.undo()
    weight_readers.refresh()


def test_prefer_of_a_layer_orders_readers_and_beats_the_variable(tmp_path: Path, preferred: None) -> None:
    write_sharded(tmp_path)
    selection = open_checkpoint(tmp_path).selection
    assert (selection.chosen, selection.reason) == ("safetensors", "preferred by WEIGHT_READERS_PREFER")
    checkpoint = open_checkpoint(tmp_path, config=LoadConfig(prefer=("threaded",)))
    assert (checkpoint.selection.chosen, checkpoint.selection.reason) == ("threaded", "preferred by the caller")
    done = invoke("explain", tmp_path, "--prefer", "runai_streamer", "--prefer", "threaded")
    assert "chosen: runai_streamer (preferred by the caller)" in done.stdout


def test_a_misspelt_key_of_the_engine_is_warned_of_and_one_of_its_own_is_not(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    with pytest.warns(UserWarning, match=r"the key 'quantisation'\. Did you mean 'quantization'\?"):
        open_checkpoint(tmp_path, engine={"quantisation": "fp8"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_checkpoint(tmp_path, engine={"quantization": None, "lora_path": "x", "scheduler": "euler"})


# --- what peers do: sequential where threads are forbidden or nobody has any -------------------------------------


def test_without_threads_the_sequential_reader_reads_even_into_existing_tensors(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    target = {"t1": torch.zeros(2), "t2": torch.zeros(2)}
    assert open_checkpoint(tmp_path).load_into(target).reader == "threaded"
    report = open_checkpoint(tmp_path, enable_multithread_weight_load=False).load_into(target)
    assert report.reader == "safetensors"
    assert target["t2"].tolist() == [2.0, 2.5]
    done = invoke("explain", tmp_path, "--into-existing", "--disable-multithread-weight-load")
    assert "chosen: safetensors (" in done.stdout
    assert "enable_multithread_weight_load=False (--disable-multithread-weight-load)" in done.stdout


@pytest.mark.parametrize("suffix", ["pt", "bin"])
def test_other_formats_are_read_sequentially_without_help(tmp_path: Path, suffix: str) -> None:
    name = tmp_path / ("model.pt" if suffix == "pt" else "pytorch_model.bin")
    torch.save(nn.Linear(3, 2).state_dict(), name)
    done = invoke("explain", name, "--num-weight-load-threads", "8")
    assert "chosen: pt (" in done.stdout
    assert "made with" not in done.stdout  # it has no threads, and that keeps nobody from loading
    assert invoke("load", name, "--num-weight-load-threads", "8").exit_code == 0


@pytest.mark.parametrize("given", ["0", "-1", "1025", "four"])
@pytest.mark.parametrize("command", ["load", "explain"])
def test_threads_out_of_range_are_refused_at_parsing(command: str, given: str) -> None:
    done = invoke(command, "no/such/place", "--num-weight-load-threads", given)
    assert done.exit_code == 2
    assert "--num-weight-load-threads" in done.stderr
    assert "no such file" not in done.stderr


def test_shards_come_in_natural_order_with_and_without_threads(tmp_path: Path) -> None:
    write_sharded(tmp_path, 12, index=False)
    for number in range(1, 13):
        old = tmp_path / f"model-{number:05}-of-00012.safetensors"
        old.rename(tmp_path / f"model-{number}.safetensors")
    for enabled in (True, False):
        checkpoint = open_checkpoint(tmp_path, enable_multithread_weight_load=enabled)
        assert [name for name, _ in checkpoint.iter_weights()] == [f"t{number}" for number in range(1, 13)]
        data = document(invoke("explain", tmp_path, "--json"))
        assert [Path(path).name for path in data["files"]] == [f"model-{n}.safetensors" for n in range(1, 13)]
