# SPDX-License-Identifier: Apache-2.0
"""Warnings that point at the line of the user, however deep in this project they arise."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_PROJECT = "weight_readers"  # and weight_readers_loader, weight_readers_mmap, …


def warn_caller(warning: Warning) -> None:
    """Issue ``warning`` for the first line outside this project.

    The depth differs with the way that led here (a first scan, a selection, a load), so no fixed ``stacklevel``
    is right.
    """
    frame = _outside(sys._getframe(1))
    warnings.warn_explicit(
        warning,
        type(warning),
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _outside(frame: FrameType) -> FrameType:
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_PROJECT):
        frame = frame.f_back
    return frame
