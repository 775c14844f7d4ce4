# SPDX-License-Identifier: Apache-2.0
"""Faults of a reader's own code become one error that names the reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weight_readers import PluginContractError

_SLIPS = (AssertionError, AttributeError, KeyError, NameError)
"""What readers never raise on purpose. Theirs are CheckpointError, and what Python has for arguments and I/O.

Not SystemExit: a signal handler of the program may raise it while the reader's code happens to run.
"""


@contextmanager
def kept_contract(reader: str) -> Iterator[None]:
    """Turn a slip in the code of ``reader`` into PluginContractError; all else goes through."""
    try:
        yield
    except _SLIPS as error:
        said = f"raised {type(error).__name__}: {error}"
        raise PluginContractError(f"reader {reader!r} {said}", name=reader, reason=said, code="broken") from error
