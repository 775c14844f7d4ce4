# SPDX-License-Identifier: Apache-2.0
"""The Hub as huggingface_hub sees it: one repository, its revision resolved once to a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
    hf_raise_for_status,
    http_stream_backoff,
)

from weight_readers_loader.resolve.hub.faults import translated
from weight_readers_loader.resolve.hub.names import HubName
from weight_readers_loader.resolve.hub.stall import watched

__all__ = ["HubCommit", "cache_of", "is_offline", "look_up"]

_LIBRARY = "weight-readers"


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE (or what else huggingface_hub takes for it) forbids every request."""
    return constants.HF_HUB_OFFLINE


@dataclass(frozen=True, kw_only=True)
class HubCommit:
    """One repository at one commit, for a `Listing` and for downloads."""

    repo: str
    commit: str
    revision: str | None = None
    sizes: Mapping[str, int] = field(hash=False)

    @property
    def url(self) -> str:
        return f"hf://{self.repo}@{self.commit}"

    def read_start(self, path: str, limit: int) -> bytes:
        """The first ``limit`` bytes: a file that is no longer is downloaded into the cache, of others only a range."""
        if self.sizes[path] > limit:
            return self.read_range(path, 0, limit)
        with open(self.download(path), "rb") as file:
            return file.read(limit)

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """The bytes ``begin:end``. A server that ignores the range is not read any further."""
        address = hf_hub_url(self.repo, path, revision=self.commit)
        headers = {**build_hf_headers(library_name=_LIBRARY), "Range": f"bytes={begin}-{end - 1}"}
        # Ranges of a compressed answer would be ranges of something else.
        headers["Accept-Encoding"] = "identity"
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with self._translated(path), http_stream_backoff("GET", address, headers=headers, timeout=timeout) as answer:
            hf_raise_for_status(answer)
            whole = answer.status_code == 200
            found = bytearray()
            for part in answer.iter_bytes(chunk_size=1 << 16):
                found += part
                if len(found) >= (end if whole else end - begin):
                    break
        return bytes(found[begin:end] if whole else found[: end - begin])

    def download(self, path: str, *, show_progress: bool = False) -> str:
        """The path of a file in the cache, downloaded where it is not there yet."""
        with self._translated(path), _bars(show_progress), watched(f"{self.url}/{path}", cache_of(self.repo)):
            return hf_hub_download(
                self.repo,
                path,
                revision=self.commit,
                library_name=_LIBRARY,
                etag_timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )

    def keep_ref(self) -> None:
        """Note in the cache what the revision was, once its files are there: offline, that is where it is looked up.

        huggingface_hub would note it before the first file arrives, and again whenever anything asks for one
        (raullenchai/Rapid-MLX#2616).
        """
        revision = self.revision or constants.DEFAULT_REVISION
        if revision != self.commit:
            path = cache_of(self.repo) / "refs" / revision
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.commit)

    def _translated(self, path: str) -> AbstractContextManager[None]:
        return translated(f"{self.url}/{path}", repo=self.repo, revision=self.commit)


def cache_of(repo: str) -> Path:
    """The folder of a repository in the cache of huggingface_hub."""
    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def look_up(name: HubName) -> HubCommit:
    """Ask the Hub which commit the revision is, and what lies there: one request.

    Raises CheckpointNotFoundError (no such repository or revision), UnreadableFileError (no access),
    HubUnreachableError.
    """
    url = f"hf://{name.repo}" + (f"@{name.revision}" if name.revision else "")
    with translated(url, repo=name.repo, revision=name.revision):
        api = HfApi(library_name=_LIBRARY)
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        info = api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=timeout)
    sizes = {file.rfilename: file.lfs.size if file.lfs else file.size or 0 for file in info.siblings or ()}
    return HubCommit(repo=name.repo, commit=info.sha or "", revision=name.revision, sizes=sizes)


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """huggingface_hub's own bars: on a terminal, where they were asked for and nobody has turned them off."""
    if shown or are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
