# SPDX-License-Identifier: Apache-2.0
"""Readers that break their contract, and targets that cannot be written to: one error that names what is at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import floats, write_tensors

import weight_readers
from weight_readers import Feature, Lifetime, PluginContractError, ReaderInfo, ReadStats, TensorSlice
from weight_readers_loader import open_checkpoint
from weight_readers_safetensors import read_headers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tensors(tmp_path / "model.safetensors", {"w": ("F32", [2, 2], floats(1, 2, 3, 4))})


def good() -> tuple[str, torch.Tensor]:
    return "w", torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Faulty:
    """A reader whose two methods a test brings along."""

    info = ReaderInfo(
        name="faulty",
        formats=frozenset({"safetensors"}),
        lifetime=Lifetime.OWNED,
        features=frozenset({Feature.SLICES, Feature.KEY_FILTER}),
    )
    selection = None

    def __init__(self, weights: Callable[[], Any], meta: Callable[[list[str]], Any] = read_headers) -> None:
        self._weights = weights
        self._meta = meta

    def read_meta(self, files: list[str]) -> Any:
        return self._meta(files)

    def iter_weights(self, files: list[str], *, on_progress: Any = None, **given: Any) -> Any:
        return self._weights()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Faulty], None]:
    """Makes a faulty reader the only one that is installed."""

    def install(reader: Faulty) -> None:
        class Plugin:
            @weight_readers.hookimpl
            def weight_readers_describe(self) -> ReaderInfo:
                return Faulty.info

            @weight_readers.hookimpl
            def weight_readers_create(self, options: object) -> Faulty:
                return reader

        registry = weight_readers.Registry(plugins={"faulty": Plugin()}, distributions=())
        monkeypatch.setattr(weight_readers, "default_registry", lambda: registry)

    return install


def raising(error: BaseException) -> Callable[[], Iterator[Any]]:
    def weights() -> Iterator[Any]:
        raise error
        yield

    return weights


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (lambda: None, "returned NoneType for an iterator"),
        (lambda: ["w"], "yielded str, not a name and a tensor"),
        (lambda: [(*good(), 1)], "yielded tuple, not a name and a tensor"),
        (lambda: [("w", [1])], "yielded 'w' as list"),
        (lambda: [("w", good()[1].to_sparse())], "not a plain dense tensor"),
        (lambda: [("w", good()[1].requires_grad_())], "not a plain dense tensor"),
        (lambda: [("w", good()[1].to("meta"))], "on meta, and it was asked for on cpu"),
        (raising(KeyError("boom")), "raised KeyError: 'boom'"),
        (raising(AttributeError("x")), "raised AttributeError: x"),
    ],
)
def test_a_reader_that_breaks_its_contract_is_named(
    installed: Callable[[Faulty], None], path: Path, weights: Callable[[], Any], said: str
) -> None:
    installed(Faulty(weights))
    with pytest.raises(PluginContractError, match=f"reader 'faulty' .*{said}"):
        open_checkpoint(path).state_dict()


def test_a_reader_that_ignores_slices_is_named(installed: Callable[[Faulty], None], path: Path) -> None:
    installed(Faulty(lambda: [good()]))
    assert open_checkpoint(path).state_dict()["w"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(PluginContractError, match=r"of shape \[2, 2\], and \[1, 2\] was asked for"):
        open_checkpoint(path).state_dict(slices={"w": TensorSlice(dim=0, stop=1)})


@pytest.mark.parametrize("meta", [None, {}, {"a": 1}], ids=str)
def test_a_reader_whose_headers_are_no_checkpoint_meta_is_named(
    installed: Callable[[Faulty], None], path: Path, meta: object
) -> None:
    installed(Faulty(lambda: [good()], lambda files: meta))
    with pytest.raises(PluginContractError, match=r"reader 'faulty' returned .* as read_meta"):
        open_checkpoint(path)


def test_a_signal_handler_that_ends_the_program_in_the_midst_of_a_read_ends_it(
    installed: Callable[[Faulty], None], path: Path
) -> None:
    installed(Faulty(raising(SystemExit(143))))
    with pytest.raises(SystemExit) as caught:
        open_checkpoint(path).state_dict()
    assert caught.value.code == 143


def test_an_error_of_a_reader_about_files_or_memory_goes_through_as_it_is(
    installed: Callable[[Faulty], None], path: Path
) -> None:
    for error in (OSError(5, "input/output error"), MemoryError(), weight_readers.FileChangedError("x", path=path)):
        installed(Faulty(raising(error)))
        with pytest.raises(type(error)):
            open_checkpoint(path).state_dict()


def released() -> torch.Tensor:
    tensor = torch.zeros(2, 2)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("reader", ["safetensors", "threaded"])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        (released(), "has no memory: its storage was released"),
        (torch.zeros(3).as_strided((2, 2), (1, 1)), "its elements share memory"),
        (torch.zeros(2, 1).expand(2, 2), "its elements share memory"),
        (torch.zeros(2, 2).to_sparse(), "layout torch.sparse_coo"),
    ],
    ids=["released", "overlapping", "expanded", "sparse"],
)
def test_a_target_without_memory_of_its_own_is_refused_by_name(
    path: Path, reader: str, target: torch.Tensor, said: str
) -> None:
    with pytest.raises(TypeError, match=f"target 'w' .*{said}"):
        open_checkpoint(path, reader=reader).load_into({"w": target})


@pytest.mark.parametrize("reader", ["safetensors", "threaded"])
def test_the_bytes_of_booleans_are_kept_whatever_they_are(tmp_path: Path, reader: str) -> None:
    write_tensors(tmp_path / "model.safetensors", {"b": ("BOOL", [4], b"\0\1\2\xff")})
    target = torch.zeros(4, dtype=torch.bool)
    open_checkpoint(tmp_path, reader=reader).load_into({"b": target})
    assert target.view(torch.uint8).tolist() == [0, 1, 2, 255]


def test_a_reader_that_tells_no_progress_is_counted_all_the_same(
    installed: Callable[[Faulty], None], path: Path
) -> None:
    installed(Faulty(lambda: [good()]))
    checkpoint = open_checkpoint(path)
    checkpoint.state_dict()
    assert checkpoint.report is not None
    assert (checkpoint.report.tensors, checkpoint.report.bytes_read, checkpoint.report.bytes_wanted) == (1, 16, 16)


def test_progress_that_is_no_stats_is_the_readers_fault(installed: Callable[[Faulty], None], path: Path) -> None:
    class Chatty(Faulty):
        def iter_weights(self, files: list[str], *, on_progress: Any = None, **given: Any) -> Any:
            on_progress(5)
            yield good()

    installed(Chatty(lambda: ()))
    with pytest.raises(PluginContractError, match="reader 'faulty' raised AttributeError"):
        open_checkpoint(path).state_dict()
    assert ReadStats().tensors == 0
