# SPDX-License-Identifier: Apache-2.0
"""The Hub's HTTP API on loopback, as far as huggingface_hub asks it for models: info, files with ranges, refusals."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import socket
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from support.loopback import Loopback

_LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt")


class Asked(NamedTuple):
    """One request: its method, the path (unquoted), the range asked for, and the bytes that were sent."""

    method: str
    path: str
    span: tuple[int, int | None] | None
    sent: int


@dataclass
class Repo:
    """``commits`` maps each commit to its files; ``refs`` branches and tags to commits. ``refuses`` is a status and
    the code that the Hub gives with it, for whoever does not send ``token``."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    refuses: tuple[int, str] | None = None
    token: str | None = None


def commit_of(number: int) -> str:
    return f"{number:040x}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class HubServer(Loopback):
    """``cut`` ends that many answers with a file in their middle, and ``stalls`` leaves that many unfinished;
    ``ignores_ranges`` sends all whatever was asked."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.repos: dict[str, Repo] = {}
        self.asked: list[Asked] = []
        self.cut = 0
        self.stalls = 0
        self.ignores_ranges = False
        self.status: int | None = None
        self.never = False

    def put(self, repo: str, files: dict[str, bytes], *, ref: str = "main", commit: str = commit_of(1)) -> str:
        """A commit with these files, to which ``ref`` then leads."""
        held = self.repos.setdefault(repo, Repo())
        held.commits[commit] = files
        held.refs[ref] = commit
        return commit

    def sent(self, path_part: str) -> int:
        """Bytes of file contents sent for paths that hold ``path_part``."""
        return sum(each.sent for each in self.asked if path_part in each.path and "/resolve/" in each.path)

    def downloads(self) -> list[str]:
        """The names of the files of which content was sent, in order, once each."""
        paths = (each.path.split("/resolve/")[1] for each in self.asked if each.sent and "/resolve/" in each.path)
        return list(dict.fromkeys(path.partition("/")[2] for path in paths))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: HubServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def do_GET(self) -> None:
        if self.served.never:
            self._log(None, 0)
            self.served.wait(60)
            self.close_connection = True
        elif self.served.status is not None:
            self._refuse(self.served.status, "")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", self._path()):
            self._info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", self._path()):
            self._tree(match[1], match[2])
        else:
            self._file(with_body=True)

    def _info(self, name: str, revision: str) -> None:
        found = self._commit(name, revision)
        if found is None:
            return
        commit, files = found
        siblings = [_sibling(path, data) for path, data in files.items()]
        self._json({"id": name, "sha": commit, "siblings": siblings})

    def _tree(self, name: str, revision: str) -> None:
        found = self._commit(name, revision)
        if found is not None:
            self._json([_leaf(path, data) for path, data in found[1].items()])

    def _json(self, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self._log(None, 0)
        self.end_headers()
        self.wfile.write(body)

    def _file(self, *, with_body: bool) -> None:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._path(decoded=False))
        if match is None:
            self._refuse(404, "")
            return
        found = self._commit(unquote(match[1]), unquote(match[2]))
        if found is None:
            return
        commit, files = found
        data = files.get(unquote(match[3]))
        if data is None:
            self._refuse(404, "EntryNotFound", commit)
            return
        self._send(data, commit, with_body)

    def _send(self, data: bytes, commit: str, with_body: bool) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        span = (int(match[1]), int(match[2]) + 1 if match[2] else None) if match else None
        body = data[slice(*span)] if span and not self.served.ignores_ranges else data
        partial = body is not data or (span is not None and not self.served.ignores_ranges)
        self.send_response(206 if partial else 200)
        if partial and span:
            self.send_header("Content-Range", f"bytes {span[0]}-{span[0] + len(body) - 1}/{len(data)}")
        self.send_header("ETag", f'"{digest(data)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Linked-Etag", f'"{digest(data)}"')
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        cut = with_body and self.served.cut > 0 and len(body) > 1
        if cut:
            self.served.cut -= 1
            body = body[: len(body) // 2]
        stalls = with_body and self.served.stalls > 0 and len(body) > 1
        if stalls:
            self.served.stalls -= 1
            body = body[: len(body) // 2] if span is None else b""
        self._log(span, len(body) if with_body else 0)
        self.end_headers()
        if with_body:
            self._write(body)
        if stalls:
            self.served.wait(60)
            self.close_connection = True
        if cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _write(self, body: bytes) -> None:
        try:
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:  # the client has seen enough
            self.close_connection = True

    def _commit(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        repo = self.served.repos.get(name)
        if repo is None:
            self._refuse(401, "RepoNotFound")
            return None
        if repo.refuses and (repo.token is None or self.headers.get("Authorization") != f"Bearer {repo.token}"):
            self._refuse(*repo.refuses)
            return None
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            self._refuse(404, "RevisionNotFound")
            return None
        return commit, repo.commits[commit]

    def _refuse(self, status: int, code: str, commit: str | None = None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", "told to")
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self._log(None, 0)
        self.end_headers()

    def _path(self, *, decoded: bool = True) -> str:
        path = urlsplit(self.path).path
        return unquote(path) if decoded else path

    def _log(self, span: tuple[int, int | None] | None, sent: int) -> None:
        self.served.asked.append(Asked(self.command, self._path(), span, sent))


def _sibling(path: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
    if path.endswith(_LFS_SUFFIXES):
        found["lfs"] = {"size": len(data), "sha256": digest(data), "pointerSize": 130}
    return found


def _leaf(path: str, data: bytes) -> dict[str, Any]:
    """The same in a listing of the repository's tree."""
    sibling = _sibling(path, data)
    found = {"type": "file", "path": path, "size": len(data), "oid": sibling["blobId"]}
    if "lfs" in sibling:
        found["lfs"] = {"oid": digest(data), "size": len(data), "pointerSize": 130}
    return found


def only_loopback(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: str, *, offline: bool = False) -> None:
    """huggingface_hub in this process as its variables would set it, which it has read when it was imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", f"{cache}/no-token")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def variables(endpoint: str, cache: str, *, offline: bool = False) -> dict[str, str]:
    """The same for a process of its own."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": cache,
        "HF_HUB_CACHE": cache,
        "HF_HUB_OFFLINE": "1" if offline else "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "",
    }
