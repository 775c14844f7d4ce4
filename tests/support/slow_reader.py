# SPDX-License-Identifier: Apache-2.0
"""A reader plugin for tests: as slow as its options say, or failing in the way that they say.

Installed by hand: a ``.dist-info`` whose entry point names this module (`install`), on the path of the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weight_readers import Feature, Lifetime, ReaderInfo, ReadStats, hookimpl

NAME = "slow"
INFO = ReaderInfo(
    name=NAME,
    summary="for tests",
    formats=frozenset({"safetensors"}),
    features=frozenset({Feature.KEY_FILTER}),
    lifetime=Lifetime.OWNED,
    options=frozenset({"seconds_per_kib", "fail", "at"}),
)


class Stop(BaseException):
    """No Exception: what a framework raises to end a thread."""


class SlowReader:
    """``fail`` is what happens in place of the tensor ``at``."""

    def __init__(self, *, seconds_per_kib: float = 0, fail: str | None = None, at: str = "") -> None:
        self.info = INFO
        self.selection: Any = None
        self._seconds_per_kib = seconds_per_kib
        self._fail = fail
        self._at = at

    def read_meta(self, files: Sequence[str]) -> Any:
        from weight_readers_safetensors import read_headers

        return read_headers(files)

    def iter_weights(
        self,
        files: Sequence[str],
        *,
        device: str = "cpu",
        key_filter: Any = None,
        slices: Any = None,
        clone_tensors: bool = True,
        on_progress: Any = None,
    ) -> Iterator[tuple[str, Any]]:
        wanted = [m for m in self.read_meta(files).values() if key_filter is None or key_filter(m.name)]
        stats = ReadStats(bytes_wanted=sum(meta.nbytes for meta in wanted))
        for meta in wanted:
            for _ in range(0, meta.nbytes, 1024):
                time.sleep(self._seconds_per_kib)
            if meta.name == self._at and self._fail == "end":
                return
            stats = ReadStats(
                tensors=stats.tensors + 1,
                bytes_wanted=stats.bytes_wanted,
                bytes_read=stats.bytes_read + meta.nbytes,
            )
            if on_progress is not None:
                on_progress(stats)
            yield from self._yielded(meta)

    def _yielded(self, meta: Any) -> Iterator[tuple[str, Any]]:
        tensor = _read(meta)
        fail = self._fail if meta.name == self._at else None
        if fail in _RAISED:
            raise _RAISED[fail](f"at {meta.name}")
        changed = {"dtype": tensor.double, "shape": lambda: tensor[:1]}.get(fail or "", lambda: tensor)
        yield ("stranger" if fail == "name" else meta.name), changed()
        if fail == "twice":
            yield meta.name, tensor


_RAISED: Mapping[str | None, type[BaseException]] = {
    "MemoryError": MemoryError,
    "RuntimeError": RuntimeError,
    "Stop": Stop,
}


def _read(meta: Any) -> Any:
    import torch

    with open(meta.file, "rb") as file:
        file.seek(meta.offset)
        data = bytearray(file.read(meta.nbytes))
    raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return raw.view(getattr(torch, meta.dtype)).view(meta.stored_shape)


@hookimpl
def weight_readers_describe() -> ReaderInfo:
    return INFO


@hookimpl
def weight_readers_create(options: Mapping[str, Any]) -> SlowReader:
    return SlowReader(**options)


def install(folder: Path) -> tuple[Path, Path]:
    """Put the metadata of a distribution with this reader into ``folder``; returns what belongs on the path."""
    from support.plugins import Site

    Site(folder).distribution("slow-reader", {NAME: "support.slow_reader"}, version="1.2.3")
    return folder, Path(__file__).parents[1]
