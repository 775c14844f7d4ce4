# SPDX-License-Identifier: Apache-2.0
"""``--plot``: bars as long as the numbers that they stand for, read from the SVG that the command wrote."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.commands import Terminal, invoke, run
from support.files import write_tensors

from weight_readers_loader.commands.bench import Bench, Sample
from weight_readers_loader.commands.plot_file import PlotFile
from weight_readers_loader.commands.plots import bench

BAR = re.compile(r'<g id="(?P<bar>[^"]+)">\s*<path d="(?P<line>[^"]+)"')


def bars(picture: Path) -> dict[str, tuple[float, float]]:
    """Each named bar -> its length, and how far down it begins, both in the picture's own units."""
    found = {}
    for match in BAR.finditer(picture.read_text(encoding="utf-8")):
        points = [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", match["line"])]
        across, down = zip(*points, strict=True)
        found[match["bar"]] = (max(across) - min(across), min(down))
    return {name: place for name, place in found.items() if not re.match(r"patch_|line2d_|xtick|ytick", name)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tensors(
        tmp_path / "model.safetensors",
        {
            "model.embed.weight": ("U8", [64], bytes(64)),
            "model.layers.0.a.weight": ("F32", [4], bytes(16)),
            "model.layers.0.b.weight": ("F16", [4], bytes(8)),
            "model.layers.1.a.weight": ("F32", [8], bytes(32)),
            "lm_head.weight": ("U8", [4], bytes(4)),
        },
    )


def test_each_block_is_a_bar_in_the_order_of_the_file_as_long_as_its_bytes_of_each_dtype(model: Path) -> None:
    picture = model.with_name("model.svg")
    assert invoke("inspect", model, "--plot", picture).exit_code == 0
    drawn = bars(picture)
    nbytes = {"model.embed/U8": 64, "model.layers.0/F32": 16, "model.layers.0/F16": 8}
    nbytes |= {"model.layers.1/F32": 32, "lm_head/U8": 4}
    assert set(nbytes) == set(drawn)
    for bar, length in nbytes.items():
        assert drawn[bar][0] == pytest.approx(drawn["model.embed/U8"][0] * length / 64, rel=1e-3)
    assert list(dict.fromkeys(bar.partition("/")[0] for bar in sorted(drawn, key=lambda bar: drawn[bar][1]))) == [
        "model.embed",
        "model.layers.0",
        "model.layers.1",
        "lm_head",
    ]


def test_more_than_a_hundred_blocks_are_one_bar(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.w": ("U8", [2], bytes(2)) for i in range(101)} | {"norm.w": ("U8", [101], bytes(101))}
    write_tensors(tmp_path / "m.safetensors", tensors)
    assert invoke("inspect", tmp_path / "m.safetensors", "--plot", tmp_path / "m.svg").exit_code == 0
    drawn = bars(tmp_path / "m.svg")
    assert {"layers.*/U8", "norm/U8"} == set(drawn)
    assert drawn["layers.*/U8"][0] == pytest.approx(2 * drawn["norm/U8"][0], rel=1e-3)


def test_of_more_than_a_hundred_parts_without_numbers_the_smallest_share_a_bar(tmp_path: Path) -> None:
    tensors = {f"t{i:03}": ("U8", [1 + (i < 99)], bytes(1 + (i < 99))) for i in range(110)}
    write_tensors(tmp_path / "m.safetensors", tensors)
    assert invoke("inspect", tmp_path / "m.safetensors", "--plot", tmp_path / "m.svg").exit_code == 0
    drawn = bars(tmp_path / "m.svg")
    assert {*(f"t{i:03}/U8" for i in range(99)), "11 other parts/U8"} == set(drawn)
    assert drawn["11 other parts/U8"][0] == pytest.approx(5.5 * drawn["t000/U8"][0], rel=1e-3)


def test_a_dollar_sign_in_a_name_is_no_formula(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m.safetensors", {r"a$\frac$b$.w": ("U8", [1], b"\0")})
    assert invoke("inspect", tmp_path / "m.safetensors", "--plot", tmp_path / "m.svg").exit_code == 0
    assert r">a$\frac$b$</text>" in (tmp_path / "m.svg").read_text(encoding="utf-8")


def test_a_name_that_is_long_or_would_break_the_picture_is_shortened_and_escaped(tmp_path: Path) -> None:
    long = "b" * 30 + "\x1b" + "m" * 5000 + "e" * 30
    write_tensors(tmp_path / "m.safetensors", {f"{long}.w": ("U8", [1], b"\0")})
    assert invoke("inspect", tmp_path / "m.safetensors", "--plot", tmp_path / "m.svg").exit_code == 0
    picture = (tmp_path / "m.svg").read_text(encoding="utf-8")
    assert f">{'b' * 30}…{'e' * 30}</text>" in picture
    assert "\x1b" not in picture


def test_a_damaged_checkpoint_is_drawn_as_far_as_it_can_be_listed(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-1])
    assert invoke("inspect", model, "--plot", model.with_name("m.svg")).exit_code == 1
    assert "model.layers.1/F32" in bars(model.with_name("m.svg"))


def test_an_equal_picture_is_an_equal_file(model: Path) -> None:
    pictures = [model.with_name("1.svg"), model.with_name("2.svg")]
    for picture in pictures:
        invoke("inspect", model, "--plot", picture)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("PDF", b"%PDF")])
def test_the_suffix_says_what_kind_of_picture_it_is(suffix: str, begins: bytes, model: Path) -> None:
    picture = model.with_name(f"m.{suffix}")
    assert invoke("inspect", model, "--json", "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(begins)


@pytest.mark.parametrize(("suffix", "words"), [("png", 1), ("pdf", 1), ("svg", 0)])
def test_letters_that_no_font_has_are_said_once_where_they_are_drawn(suffix: str, words: int, tmp_path: Path) -> None:
    name = "\U00012000\U00012001.weight"  # cuneiform, which the usual fonts lack
    path = write_tensors(tmp_path / "m.safetensors", {name: ("F32", [1], bytes(4))})
    done = run("inspect", path, "--plot", tmp_path / f"m.{suffix}")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, words), done.stderr
    assert done.stderr.count("Install a font that has them, or write an .svg") == words


def test_a_bar_of_bench_is_as_long_as_the_median_of_its_rounds(tmp_path: Path) -> None:
    seconds = {"one": [2.0, 1.0, 9.0], "two": [4.0, 4.0, 4.0], "limit": [1.0, 1.0, 1.0]}
    samples = {
        name: [Sample(seconds=each, storage_bytes=None, anon_beyond=None) for each in rounds]
        for name, rounds in seconds.items()
    }
    found = Bench(
        reference="m", format="safetensors", files=1, tensors=1, nbytes=1 << 20, rounds=3, cold=False,
        into_existing=False, owned=False, picked="one", samples=samples,
    )  # fmt: skip
    PlotFile(str(tmp_path / "b.svg")).draw(bench(found))
    drawn = bars(tmp_path / "b.svg")
    assert pytest.approx({name: length / drawn["limit"][0] for name, (length, _) in drawn.items()}, rel=1e-3) == {
        "one": 2.0,
        "two": 4.0,
        "limit": 1.0,
    }


@pytest.mark.parametrize("command", ["inspect", "bench"])
@pytest.mark.parametrize("place", ["m.jpg", "nowhere/m.svg"])
def test_a_picture_that_cannot_be_made_is_refused_before_the_checkpoint_is_looked_at(
    command: str, place: str, tmp_path: Path
) -> None:
    done = invoke(command, tmp_path / "no-model", "--plot", tmp_path / place)
    assert done.exit_code == 2
    assert f"cannot write {tmp_path / place}" in done.stderr
    assert "no-model" not in done.stderr


def test_without_matplotlib_the_command_that_brings_it_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = invoke("inspect", model, "--plot", model.with_name("m.svg"))
    assert done.exit_code == 1
    assert 'Install it: pip install "weight-readers-loader[plot]"' in done.stderr
    assert not model.with_name("m.svg").exists()


def test_on_a_terminal_explain_shows_the_candidates_as_a_table_with_what_each_lacks(model: Path) -> None:
    with Terminal("explain", model.name, "--option", "num_threads=1", cwd=model.parent) as terminal:
        assert terminal.finish(seconds=120) == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", terminal.output.decode()).replace("\r", "")
    rows = {line.split()[0]: line.split()[1] for line in plain.splitlines() if re.match(r"\w+ +\S+ ", line)}
    assert (rows["threaded"], rows["safetensors"], rows["runai_streamer"]) == ("chosen", "no", "no")
    assert "for other formats: gguf, pt" in plain
