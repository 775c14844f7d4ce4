# SPDX-License-Identifier: Apache-2.0
"""Compare the files that a load reads with their digests, from the bytes that arrive: nothing is read twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

import torch

from weight_readers import CheckpointError, CheckpointProblems, DigestMismatchError, ReadStats, TensorMeta
from weight_readers_loader.digests import Digest, Hash, mismatch
from weight_readers_loader.environment import available_cpus
from weight_readers_loader.hashing import FileHash, Piece, ReadAt
from weight_readers_loader.pool import Pool
from weight_readers_loader.streams import Stream, Update, Weights, ended

MAX_THREADS = 4
"""Each hashes one file. One thread hashes faster than most storage delivers."""

AHEAD_BYTES = 256 << 20
"""How far a stream of tensors may run ahead of their hashes: so much of what was handed on is still held."""


class Verifier:
    """One load's. ``digests`` has an entry for each file that is read, ``pieces`` and ``read_at`` too, by path.

    `finish` raises where a file is not what it should be; leaving the context stops all work.
    """

    def __init__(
        self,
        digests: Mapping[str, Digest],
        pieces: Mapping[str, Sequence[Piece]],
        read_at: Callable[[str], ReadAt],
        *,
        again: Hash | None = None,
    ) -> None:
        self._digests = digests
        self._hashes = {path: FileHash(parts, read_at(path), digests[path].algorithm) for path, parts in pieces.items()}
        self._file_of = {p.name: self._hashes[path] for path, parts in pieces.items() for p in parts if p.name}
        self._again = again
        self._stopped = False
        self._error: BaseException | None = None
        self._running = 0
        self._held = 0
        # Taken by itself: a condition takes it in Python, where a signal may be heard before it is known to be held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pool = Pool(max(1, min(MAX_THREADS, available_cpus(), len(pieces))), thread_name_prefix="verify")

    @property
    def files(self) -> int:
        return len(self._hashes)

    @property
    def bytes_read(self) -> int:
        """What was read for this alone: headers, and what the load does not hand out as it is stored."""
        return sum(each.bytes_read for each in self._hashes.values())

    def __enter__(self) -> Verifier:
        for each in self._hashes.values():
            if each.begin():
                self._start(each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._pool.shutdown()

    def stream(self, weights: Weights, nbytes: Mapping[str, TensorMeta]) -> Stream:
        """The same tensors, each hashed beside what the consumer does with it; it must not change them meanwhile."""
        with ended(weights):
            for name, tensor in weights:
                whole = tensor.is_contiguous() and tensor.nbytes == nbytes[name].nbytes
                self._take(name, tensor if whole else None)
                with self._lock:
                    self._changed.wait_for(lambda: self._held <= AHEAD_BYTES or not self._running)
                yield name, tensor

    def following(self, names: Iterable[str], targets: Mapping[str, torch.Tensor]) -> Update:
        """To be told the totals of a reader that fills ``targets`` in this order: hashes those that are whole."""
        left, taken = list(names), 0

        def update(stats: ReadStats) -> None:
            nonlocal taken
            for name in left[taken : stats.tensors]:
                self._take(name, targets[name].detach().contiguous())
            taken = max(taken, stats.tensors)

        return update

    def finish(self) -> None:
        """Wait for the last hash. Raises DigestMismatchError, or CheckpointProblems for several files."""
        with self._lock:
            self._changed.wait_for(lambda: not self._running)
        if self._error is not None:
            raise self._error
        wrong = [path for path, each in self._hashes.items() if each.hexdigest() != self._digests[path].value]
        CheckpointProblems.raise_any(map(self._problem, wrong), path=os.path.dirname(wrong[0]) if wrong else "")

    def _problem(self, path: str) -> CheckpointError:
        expected, found = self._digests[path], self._hashes[path].hexdigest()
        if self._again is not None and self._again(path, expected.algorithm) == expected.value:
            return DigestMismatchError(
                "the bytes that arrived are not those of the file, which has the right digest now",
                path=path,
                expected=f"{expected.algorithm} {expected.value} ({expected.source})",
                found=f"{expected.algorithm} {found} of what the load was given",
                fix="Load again; should it come back, examine the memory and the storage of this machine",
            )
        return mismatch(path, expected, f"{found}")

    def _take(self, name: str, tensor: torch.Tensor | None) -> None:
        file = self._file_of.get(name)
        if file is None:  # no bytes, or bytes that it shares with another
            return
        if tensor is not None:
            tensor = tensor.cpu()
            with self._lock:
                self._held += tensor.nbytes
        if file.give(name, tensor):
            self._start(file)

    def _start(self, file: FileHash) -> None:
        with self._lock:
            self._running += 1
        self._pool.submit(self._run, file)

    def _run(self, file: FileHash) -> None:
        try:
            for nbytes in file.advance(lambda: self._stopped):
                with self._lock:
                    self._held -= nbytes
                    self._changed.notify_all()
        except BaseException as error:  # whatever it is, `finish` has to raise it
            self._error = self._error or error
        finally:
            with self._lock:
                self._running -= 1
                self._changed.notify_all()
