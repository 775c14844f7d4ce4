# SPDX-License-Identifier: Apache-2.0
"""The device that a caller names for tensors: one that can be used here, or refused before anything is read.

Torch is an argument: core works without it, and readers and loader, which have it, say the same.
"""

from __future__ import annotations

from typing import Any

from weight_readers._caller_errors import ConfigError
from weight_readers._text import rendered, shown

_REFUSALS = (RuntimeError, AssertionError, NotImplementedError, ImportError)
"""What torch raises for a device that it was not built for, whose package is missing, or that is not plugged in."""

_COUNTED = ("cuda", "xpu", "mps")


def known_device(device: object, torch: Any, *, source: str | None = None) -> Any:
    """The ``torch.device`` of that name, which torch knows and this machine need not have.

    ``source`` is where the name was given, where that is no argument. Raises ConfigError.
    """
    try:
        found = torch.device(device) if isinstance(device, (str, torch.device)) else None
    except RuntimeError:
        found = None
    if found is None or (found.type == "cpu" and found.index):  # torch takes any number of a CPU
        raise _refused(device, torch, source)
    return found


def usable_device(device: object, torch: Any, *, source: str | None = None) -> Any:
    """The ``torch.device`` of that name, after torch has made a tensor without elements on it.

    Raises ConfigError with the devices that there are.
    """
    found = known_device(device, torch, source=source)
    try:
        torch.empty(0, device=found)
    except _REFUSALS as error:
        raise _refused(device, torch, source, error) from error
    return found


def devices_here(torch: Any) -> list[str]:
    """``cpu``, and each device that torch counts: ``cuda:0``, ``cuda:1``."""
    modules = {kind: getattr(torch, kind, None) for kind in _COUNTED}
    counts = {kind: module.device_count() for kind, module in modules.items() if module is not None}
    return ["cpu", *(f"{kind}:{number}" for kind, count in counts.items() for number in range(count))]


def _refused(device: object, torch: Any, source: str | None, error: Exception | None = None) -> ConfigError:
    given = shown(str(device) if isinstance(device, torch.device) else device)
    here = ", ".join(map(repr, devices_here(torch)))
    why = _first_sentence(error) if error is not None else ""
    return ConfigError(
        f"device={given}{f' ({source})' if source else ''} is no device that can be used here; there is {here}"
        + (f" ({why})" if why else ""),
        option="device",
        source=source,
        fix="Pass device='cpu' (--device cpu), or another of those",
    )


def _first_sentence(error: Exception) -> str:
    # Of a backend that it was built without, torch says in pages which others there are.
    said = rendered(str, error, longest=2000).partition("\n")[0].partition(". ")[0]
    # A kind of device that it has only a name for is a fault of its own to torch.
    return "" if "INTERNAL ASSERT" in said else said
