# SPDX-License-Identifier: Apache-2.0
"""What the native library cannot do twice in a process: serve two kinds of store, or the same one after a fork.

Run:ai 0.17.1 opens the client of the first kind that is asked for and keeps it until the process ends: whatever is
read later goes to that client, whatever its scheme. A ``gs://`` object was read from the bucket of that name in S3,
without an error, where there was one (decision 0012).
"""

from __future__ import annotations

import ctypes
import os
import threading

from weight_readers import UnreadableFileError
from weight_readers_runai.uris import Uri

_LIBRARIES = {"s3": "libstreamers3.so", "gs": "libstreamergcs.so", "az": "libstreamerazure.so"}
_lock = threading.Lock()
_used: tuple[int, str] | None = None
"""Process and scheme of the first session with a store."""


def claim(uri: Uri) -> None:
    """Take the native client for the kind of store that ``uri`` is in.

    Raises UnreadableFileError where it is another kind's already, RuntimeError where a parent of this process used it.
    """
    global _used
    with _lock:
        pid, first = _used or (os.getpid(), uri.scheme)
        scheme = _loaded() or first
        if pid != os.getpid():
            raise RuntimeError(
                "object storage was streamed in the parent of this forked process, and the native client does not "
                "survive a fork: start the process with spawn or forkserver"
            )
        if scheme != uri.scheme:
            raise UnreadableFileError(
                f"this process streamed from {scheme}:// before, and the native client would look for it there",
                path=str(uri),
                fix=f"Load from {uri.scheme}:// in a process of its own",
            )
        _used = (pid, scheme)


def _loaded() -> str | None:
    """The scheme whose client is in this process, whoever used it first."""
    return next((scheme for scheme, library in _LIBRARIES.items() if _is_loaded(library)), None)


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
