# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from weight_readers import MissingTensorError, PluginContractError, ReadStats, TensorMeta, TensorSlice
from weight_readers_loader.streams import Totals, by_file, delivered, touched
from weight_readers_loader.wanted import Wanted


def meta(name: str, file: str = "f", shape: tuple[int, ...] = (2,)) -> TensorMeta:
    nbytes = 4 * shape[0]
    return TensorMeta(
        name=name,
        dtype="float32",
        source_dtype="F32",
        shape=shape,
        stored_shape=shape,
        nbytes=nbytes,
        file=file,
        offset=0,
    )


def wanted(*metas: TensorMeta, **slices: TensorSlice) -> Wanted:
    return Wanted.of({m.name: m for m in metas}, None, slices)


class Source:
    """A stream that knows whether it was closed."""

    def __init__(self, *pairs: tuple[str, torch.Tensor]) -> None:
        self.closed = False
        self.weights = self._run(pairs)

    def _run(self, pairs: tuple[tuple[str, torch.Tensor], ...]) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            yield from pairs
        finally:
            self.closed = True


A, B = ("a", torch.ones(2)), ("b", torch.ones(2))


def test_what_was_asked_for_goes_through_untouched() -> None:
    found = list(delivered([B, A], wanted(meta("a"), meta("b")), "r", "cpu"))
    assert [name for name, _ in found] == ["b", "a"]
    assert found[0][1] is B[1]


def test_a_tensor_that_does_not_come_is_missed() -> None:
    stream = delivered([A], wanted(meta("a"), meta("b", "g")), "r", "cpu")
    assert next(stream)[0] == "a"
    with pytest.raises(MissingTensorError, match="reader 'r' ended early") as failed:
        next(stream)
    assert (failed.value.path, failed.value.tensor) == ("g", "b")


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("c", torch.ones(2)), "which nobody asked for"),
        (("a", torch.ones(2, dtype=torch.float64)), "as float64, and the file says float32"),
        (("a", torch.ones(3)), r"of shape \[3\], and \[2\] was asked for"),
    ],
)
def test_a_tensor_that_is_not_what_was_asked_for_is_not_handed_on(pair: tuple[str, torch.Tensor], words: str) -> None:
    source = Source(pair, A)
    with pytest.raises(PluginContractError, match=words):
        next(delivered(source.weights, wanted(meta("a")), "r", "cpu"))
    assert source.closed


def test_a_tensor_that_comes_twice_is_refused() -> None:
    with pytest.raises(PluginContractError, match="which it had yielded before"):
        list(delivered([A, A], wanted(meta("a")), "r", "cpu"))


def test_a_part_of_a_tensor_may_have_another_shape() -> None:
    part = TensorSlice(dim=0, start=0, stop=1)
    found = list(delivered([("a", torch.ones(1))], wanted(meta("a"), a=part), "r", "cpu"))
    assert found[0][1].shape == (1,)


def test_closing_the_last_stream_closes_the_first() -> None:
    source = Source(A, B)
    asked = wanted(meta("a"), meta("b"))
    stream = touched(by_file(delivered(source.weights, asked, "r", "cpu"), asked, lambda path: None), str)
    next(stream)
    assert not source.closed
    stream.close()
    assert source.closed


def test_an_error_of_the_consumer_closes_the_source_even_while_its_traceback_is_kept() -> None:
    source = Source(A, B)
    stream = touched(delivered(source.weights, wanted(meta("a"), meta("b")), "r", "cpu"), str)
    next(stream)
    with pytest.raises(KeyboardInterrupt) as kept:
        stream.throw(KeyboardInterrupt())
    assert source.closed
    assert kept.tb is not None


def test_a_reader_may_return_a_plain_iterator() -> None:
    assert len(list(delivered(iter([A]), wanted(meta("a")), "r", "cpu"))) == 1


def test_files_are_announced_before_their_first_tensor() -> None:
    said: list[str] = []
    metas = (meta("a", "f"), meta("b", "g"))
    for name, _ in by_file([A, B], wanted(*metas), said.append):
        assert said[-1] == {"a": "f", "b": "g"}[name]
    assert said == ["f", "g"]


def test_totals_go_on_over_groups_and_want_the_same_from_the_start() -> None:
    seen: list[ReadStats] = []
    totals = Totals(seen.append, 12)
    totals.update(ReadStats(tensors=1, bytes_wanted=8, bytes_read=8, copied=1))
    totals.next_group()
    totals.update(ReadStats(tensors=1, bytes_wanted=4, bytes_read=4))
    assert seen == [
        ReadStats(tensors=1, bytes_wanted=12, bytes_read=8, copied=1),
        ReadStats(tensors=2, bytes_wanted=12, bytes_read=12, copied=1),
    ]


def test_what_every_group_decided_alike_is_said_once() -> None:
    seen: list[ReadStats] = []
    totals = Totals(seen.append, 3)
    for decisions in (("a",), ("a", "b"), ("b",)):
        totals.update(ReadStats(decisions=decisions))
        totals.update(ReadStats(decisions=decisions))
        totals.next_group()
    assert seen[-1].decisions == ("a", "b")
