# SPDX-License-Identifier: Apache-2.0
"""Copies have paths that nobody knows: what a reader says of them is said of the stored files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from weight_readers import CheckpointError, CheckpointMeta


class Names:
    """``local`` maps each URI to the path of its copy."""

    def __init__(self, local: Mapping[str, str]) -> None:
        self._uris = {path: uri for uri, path in local.items()}
        folders = {path.rpartition("/")[0]: uri.rpartition("/")[0] for path, uri in self._uris.items()}
        # A folder that several copies have in common is said of a set of files.
        for path, uri in list(folders.items()):
            above = path
            for _ in range(3):
                above = above.rpartition("/")[0]
                folders.setdefault(above, uri)
        self._words = sorted({**folders, **self._uris}.items(), key=lambda pair: -len(pair[0]))

    def restore(self, meta: CheckpointMeta) -> CheckpointMeta:
        """The same, with URIs for paths."""
        files = [
            replace(file, path=self._uris[file.path], notices=tuple(map(self._said, file.notices)))
            for file in meta.files
        ]
        return CheckpointMeta({n: replace(t, file=self._uris[t.file]) for n, t in meta.items()}, files)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Let errors of files, and of arguments about them, name the stored ones."""
        try:
            yield
        except CheckpointError as error:
            for each in {id(problem): problem for problem in (error, *error.problems)}.values():
                self._restore_error(each)
            raise
        except (ValueError, IndexError, MemoryError) as error:
            error.args = tuple(self._said(each) if isinstance(each, str) else each for each in error.args)
            raise

    def _restore_error(self, error: CheckpointError) -> None:
        for name in ("what", "path", "expected", "found", "fix"):
            value = getattr(error, name)
            if isinstance(value, str):
                setattr(error, name, self._said(value))
        error.partial = tuple(replace(t, file=self._uris.get(t.file, t.file)) for t in error.partial)

    def _said(self, text: str) -> str:
        for path, uri in self._words:
            text = text.replace(path, uri)
        return text
