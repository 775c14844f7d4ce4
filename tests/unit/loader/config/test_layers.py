# SPDX-License-Identifier: Apache-2.0
"""Layers: the higher one decides, None inherits, every value has its source."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from weight_readers import ConfigError
from weight_readers_loader import LoadConfig, layered, open_checkpoint
from weight_readers_loader.config import Layer, LayeredConfig

TOML = """
num_weight_load_threads = 2
prefetch = 1
[reader_options]
huge_pages = true
[stages.transformer]
num_weight_load_threads = 6
[stages.text_encoder]
enable_multithread_weight_load = false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.toml"
    path.write_text(TOML)
    return path


def threads(config: LayeredConfig) -> tuple[Any, str]:
    setting = config.setting("num_weight_load_threads")
    assert setting is not None
    return setting.value, setting.source


def test_each_layer_beats_the_ones_below_it(file: Path) -> None:
    environ = {"WEIGHT_READERS_NUM_WEIGHT_LOAD_THREADS": "3"}
    engine, stage = {"num_weight_load_threads": 4}, {"num_weight_load_threads": 5}
    argument = Layer(source="argument", values=LoadConfig(num_weight_load_threads=7))
    assert threads(layered(file=file, environ={})) == (2, f"file {file}")
    in_environment = "environment, WEIGHT_READERS_NUM_WEIGHT_LOAD_THREADS"
    assert threads(layered(file=file, environ=environ)) == (3, in_environment)
    assert threads(layered(file=file, environ=environ, engine=engine)) == (4, "engine")
    of_stage = layered(file=file, environ=environ, engine=engine, stage_name="transformer")
    assert threads(of_stage) == (6, f"file {file}, stage transformer")
    top = layered(file=file, environ=environ, engine=engine, stage_name="transformer", stage=stage)
    assert threads(top) == (5, "stage")
    assert threads(top.over(argument)) == (7, "argument")


def test_none_inherits_and_false_does_not() -> None:
    engine = {"enable_multithread_weight_load": False, "num_weight_load_threads": None}
    config = layered(engine=engine, stage={"enable_multithread_weight_load": None}, environ={})
    assert [str(setting) for setting in config.settings()] == ["enable_multithread_weight_load=False (engine)"]
    config = layered(engine={"strict": True}, stage={"strict": False}, environ={})
    assert config.value("strict") is False


def test_what_no_layer_says_has_its_default() -> None:
    assert layered(environ={}).to_json() == {
        "enable_multithread_weight_load": {"value": True, "source": "default"},
        "enable_broadcast_weight_load": {"value": False, "source": "default"},
        "verify": {"value": False, "source": "default"},
    }


def test_options_of_a_reader_add_up_over_the_layers(file: Path) -> None:
    environ = {"WEIGHT_READERS_READER_OPTIONS": '{"chunk_bytes": 4096}'}
    config = layered(file=file, environ=environ, stage={"reader_options": {"huge_pages": False, "chunk_bytes": None}})
    assert {name: (s.value, s.source) for name, s in config.reader_options().items()} == {
        "huge_pages": (False, "stage"),
        "chunk_bytes": (4096, "environment, WEIGHT_READERS_READER_OPTIONS"),
    }


def test_variables_are_read_as_their_options_are_typed() -> None:
    environ = {
        "WEIGHT_READERS_ENABLE_MULTITHREAD_WEIGHT_LOAD": "off",
        "WEIGHT_READERS_MAX_IN_FLIGHT_BYTES": "64MiB",
        "WEIGHT_READERS_PREFETCH": "0",
        "WEIGHT_READERS_PREFER": "threaded, safetensors",
        "WEIGHT_READERS_DEVICE": "",
    }
    assert {setting.name: setting.value for setting in layered(environ=environ).settings()} == {
        "prefer": ("threaded", "safetensors"),
        "enable_multithread_weight_load": False,
        "max_in_flight_bytes": 64 << 20,
        "prefetch": 0,
    }


def test_a_variable_names_the_file(file: Path) -> None:
    assert threads(layered(environ={"WEIGHT_READERS_CONFIG": str(file)})) == (2, f"file {file}")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("NUM_WEIGHT_LOAD_THREADS", "0", "must be at least 1, not 0"),
        ("NUM_WEIGHT_LOAD_THREADS", "four", "must be a whole number, not 'four'"),
        ("ENABLE_MULTITHREAD_WEIGHT_LOAD", "maybe", "must be true or false, not 'maybe'"),
        ("DIRECT_IO", "yes", "must be 'on', 'off' or 'auto', not 'yes'"),
        ("READER_OPTIONS", "huge_pages", "must be JSON, as {"),
        ("READER_OPTIONS", "[1]", "must be a table of names and values"),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^WEIGHT_READERS_{variable}") as caught:
        layered(environ={f"WEIGHT_READERS_{variable}": value})
    assert words in str(caught.value)


def test_a_misspelt_variable_is_warned_of_and_a_foreign_one_is_not() -> None:
    with pytest.warns(UserWarning, match="Did you mean 'WEIGHT_READERS_NUM_WEIGHT_LOAD_THREADS'"):
        layered(environ={"WEIGHT_READERS_NUM_WEIGHT_LOAD_THREAD": "4"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layered(environ={"WEIGHT_READERS_FUZZ": "10", "WEIGHT_READERS_DISABLE": "x"})


@pytest.mark.parametrize(
    ("place", "values"),
    [("engine", {"num_weight_load_thread": 4}), ("stage", {"enable_multithreaded_weight_load": True})],
)
def test_an_unknown_option_names_its_layer_and_the_close_match(place: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^{place}: there is no option '{next(iter(values))}'\. Did you mean '"):
        layered(**{place: values}, environ={})  # type: ignore[arg-type]


def test_layers_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="engine must be a LoadConfig, a mapping of options or None, not str"):
        layered(engine="threads=4", environ={})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a LoadConfig, layers of them, the path"):
        open_checkpoint("m", config={"reader": "x"})  # type: ignore[arg-type]


# --- files ------------------------------------------------------------------------------------------------------


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text('{"num_weight_load_threads": 2, "stages": {"vae": {"num_weight_load_threads": 1}}}')
    assert threads(layered(file=path, stage_name="vae", environ={})) == (1, f"file {path}, stage vae")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.toml", "prefetch = ", "is no TOML"),
        ("c.json", "[" * 100_000, "is no JSON: maximum recursion depth"),
        ("c.json", '{"prefetch": 1, "prefetch": 2}', "is no JSON: 'prefetch' is given twice"),
        ("c.json", "[]", "must hold an object with options, not list"),
        ("c.yaml", "prefetch: 1", "a configuration file is .toml or .json"),
        ("c.toml", "stages = 3", "'stages' must be a table of tables"),
        ("c.toml", "prefech = 1", "there is no option 'prefech'. Did you mean 'prefetch'?"),
        ("c.toml", 'prefetch = "1"', "option 'prefetch' must be a whole number, not '1'"),
        ("c.toml", "[stages.vae]\nprefech = 1", "stage vae: there is no option 'prefech'. Did you mean 'prefetch'?"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_message(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        layered(file=path, environ={})
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_a_file_that_is_not_there_and_a_stage_that_it_does_not_have_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        layered(file=tmp_path / "no.toml", environ={})
    with pytest.raises(ConfigError, match=r"has no stage 'transfomer'\. Did you mean 'transformer'\?"):
        layered(file=file, stage_name="transfomer", environ={})
    with pytest.raises(ConfigError, match="no configuration file that could have it"):
        layered(stage_name="transformer", environ={})
