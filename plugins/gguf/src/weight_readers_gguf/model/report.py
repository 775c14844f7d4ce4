# SPDX-License-Identifier: Apache-2.0
"""What became of each tensor of a checkpoint: packed, plain, dequantized and why, or left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from weight_readers_gguf.model.wording import counted, size, some


class How(str, Enum):
    """What a tensor is in the model."""

    PACKED = "packed"
    """Its bytes as they are in the file."""
    PLAIN = "plain"
    """Numbers in the file and in the model."""
    DEQUANTIZED = "dequantized"
    """Quantized in the file, numbers in the model."""
    IGNORED = "ignored"
    """Not in the model."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One tensor of the checkpoint.

    ``names`` are those in the prepared model's state dict (several where weights are tied, none where ignored),
    ``type`` the file's type and ``dtype`` the torch dtype in the model. ``file_nbytes`` and ``nbytes`` are its bytes
    in the file and in the model. ``reason`` says why it is neither packed nor plain.
    """

    source: str
    names: tuple[str, ...]
    how: How
    type: str
    dtype: str | None
    file_nbytes: int
    nbytes: int
    reason: str | None = None

    @property
    def kinds(self) -> str:
        """``Q8_0 to bfloat16``, or the type alone where the model does not have the tensor."""
        return self.type if self.dtype is None else f"{self.type} to {self.dtype}"


@dataclass(frozen=True, kw_only=True)
class PlacementReport:
    """Every tensor of the checkpoint, and what the model has beyond it.

    ``missing`` are names that the rules let the checkpoint lack; ``unset`` are buffers on the meta device that no
    checkpoint has and the model must compute.
    """

    files: tuple[str, ...]
    placements: tuple[Placement, ...]
    missing: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()

    def of(self, how: How) -> tuple[Placement, ...]:
        return tuple(each for each in self.placements if each.how is how)

    @property
    def packed_nbytes(self) -> int:
        """Bytes of packed weights in the model, tied ones once."""
        return sum(each.nbytes for each in self.of(How.PACKED))

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in the model, tied ones once."""
        return sum(each.nbytes for each in self.placements)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        placements = [{**vars(each), "how": each.how.value, "names": list(each.names)} for each in self.placements]
        names = {"missing": list(self.missing), "unset": list(self.unset)}
        return {"files": list(self.files), "nbytes": self.nbytes, "placements": placements, **names}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        in_file = sum(each.file_nbytes for each in self.placements)
        head = f"{counted(len(self.placements), 'tensor')} of {some(self.files, 2)}"
        yield f"{head}: {size(in_file)} in the file, {size(self.nbytes)} in the model"
        for how in How:
            if found := self.of(how):
                types = Counter(each.type for each in found).most_common()
                kinds = ", ".join(f"{number} {name}" for name, number in types)
                total = size(sum(each.nbytes for each in found))
                yield f"  {how.value:<11} {counted(len(found), 'tensor')}, {total} ({kinds})"
                yield from (f"    {each.source} ({each.kinds}): {each.reason}" for each in found if each.reason)
        for word, names in (("missing", self.missing), ("unset", self.unset)):
            if names:
                yield f"  {word:<11} {some(names)}"
