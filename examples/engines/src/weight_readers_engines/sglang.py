# SPDX-License-Identifier: Apache-2.0
"""SGLang's ``WeightReader`` protocol over readers of ours.

The protocol is that of ``sglang.multimodal_gen.runtime.loader.weight_readers`` in SGLang 0.5.23.

SGLang has no place to register a reader: `install` puts `select_weight_reader` where its loader calls its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from tqdm import tqdm

import weight_readers
from weight_readers import ReadStats


class EngineReader:
    """A reader as SGLang calls it. One class per reader (`reader_class`): SGLang asks the class before it makes one."""

    name: ClassVar[str]
    supports_key_filter: ClassVar[bool]
    retains_file_mapping: ClassVar[bool]

    def __init__(self, reader: weight_readers.WeightReader | None = None) -> None:
        self._reader = (
            weight_readers.select_weight_reader(requested=self.name, strict=True) if reader is None else reader
        )

    @classmethod
    def is_available(cls) -> bool:
        """Whether this reader can run at all in this install."""
        return cls.name in weight_readers.available_reader_names()

    def iter_weights(
        self,
        files: list[str],
        *,
        device: str,
        to_cpu: bool,
        key_filter: Callable[[str], bool] | None = None,
        clone_tensors: bool = True,
        show_progress: bool = True,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Every wanted ``(name, tensor)``; with ``to_cpu`` on the host and valid for good, as SGLang keeps them."""
        with _Bar(show_progress) as bar:
            yield from self._reader.iter_weights(
                files,
                device="cpu" if to_cpu else device,
                key_filter=key_filter,
                clone_tensors=clone_tensors or to_cpu,
                on_progress=bar.show,
            )


def reader_class(name: str) -> type[EngineReader]:
    """The class for reader ``name``. Raises what `weight_readers.describe_reader` raises where there is none."""
    info = weight_readers.describe_reader(name)
    said = {
        "name": name,
        "supports_key_filter": info.supports_key_filter,
        "retains_file_mapping": info.retains_file_mapping,
    }
    return type(f"{name.title().replace('_', '')}Reader", (EngineReader,), said)


def select_weight_reader(*, requested: str | None = None, needs_key_filter: bool = False) -> EngineReader:
    """SGLang's function of this name, with our policy behind it: a stand-in for what was asked is warned of."""
    reader = weight_readers.select_weight_reader(
        requested=requested, needs_key_filter=needs_key_filter, format="safetensors"
    )
    return reader_class(reader.info.name)(reader)


def install() -> None:
    """Let SGLang's safetensors loader of this process pick its readers here."""
    from sglang.multimodal_gen.runtime.loader import weight_utils

    weight_utils.select_weight_reader = select_weight_reader


class _Bar:
    """Bytes read, as tqdm shows them."""

    def __init__(self, shown: bool) -> None:
        self._bar = tqdm(desc="Loading checkpoint", unit="B", unit_scale=True, disable=not shown)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()

    def show(self, stats: ReadStats) -> None:
        self._bar.total = stats.bytes_wanted
        self._bar.update(stats.bytes_read - self._bar.n)
