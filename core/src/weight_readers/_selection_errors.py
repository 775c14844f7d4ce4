# SPDX-License-Identifier: Apache-2.0
"""What a selection can end with. The tree is drawn in `weight_readers.errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weight_readers._error import Pickles, WeightReadersError

if TYPE_CHECKING:
    from weight_readers.selection import Selection


class UnknownReaderError(WeightReadersError, ValueError):
    """No installed reader and no plugin of this project has the requested ``name``."""

    def __init__(self, name: str, *, available: Sequence[str], fix: str | None = None) -> None:
        super().__init__(f"unknown weight reader {name!r}; available: {list(available)}", fix=fix)
        self.name = name
        self.available = tuple(available)


class NoSuitableReaderError(WeightReadersError, LookupError):
    """No installed reader fits the request; ``selection`` lists each candidate with its reason."""

    def __init__(self, what: str, *, selection: Selection, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.selection = selection


class BudgetInfeasibleError(NoSuitableReaderError, MemoryError):
    """Every reader of these files takes more host memory than the budget; raised before a tensor is read.

    ``needed`` is the least of them, ``budget`` what there is, ``largest_tensor`` one that has to be held at least where
    it is not mapped (None where the request does not say): all in bytes.
    """

    def __init__(
        self,
        what: str,
        *,
        selection: Selection,
        needed: int,
        budget: int,
        largest_tensor: int | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, selection=selection, fix=fix)
        self.needed = needed
        self.budget = budget
        self.largest_tensor = largest_tensor


class NoSuitableQuantMethodError(WeightReadersError, LookupError):
    """No installed quant method computes with ``weight_type`` on ``device_type``."""

    def __init__(self, weight_type: str, device_type: str, *, available: Sequence[str], fix: str | None = None) -> None:
        offered = "; available: " + ", ".join(available) if available else "; none is installed"
        super().__init__(f"no quant method for weight type {weight_type!r} on device {device_type!r}{offered}", fix=fix)
        self.weight_type = weight_type
        self.device_type = device_type
        self.available = tuple(available)


class ReaderFallbackWarning(Pickles, UserWarning):
    """Reader ``used`` stands in for ``asked``: the caller's word, or the policy's pick that failed to start."""

    def __init__(self, *, asked: str, used: str, reason: str, fix: str | None = None) -> None:
        self.asked = asked
        self.used = used
        self.reason = reason
        self.fix = fix
        why = f"{reason}. {fix}" if fix else reason
        super().__init__(f"weight reader {used!r} is used in place of {asked!r}: {why}")
