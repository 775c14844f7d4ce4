# SPDX-License-Identifier: Apache-2.0
"""A small S3 on loopback that does wrong when told to: HEAD, ranged GET and one page of a listing, unsigned or not."""

from __future__ import annotations

import hashlib
import http.server
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from support.loopback import Loopback

_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
_OTHERS = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL_S3",
    "RUNAI_STREAMER_S3_ENDPOINT",
    "RUNAI_STREAMER_S3_UNSIGNED",
    "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING",
)


def only_loopback(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """An environment in which S3 is at ``endpoint``, and nothing leaves this machine."""
    for name in _OTHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**_VARIABLES, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)


_FAILURES = {"busy": (503, "SlowDown"), "broken": (500, "InternalError"), "denied": (403, "AccessDenied")}
"""The status and the word of faults that are an answer of their own."""


class Asked(NamedTuple):
    """One request: its method, ``bucket/key``, the range asked for as ``(begin, end)``, the bytes that were sent.

    ``signer`` is the access key that it was signed with, empty where it was not.
    """

    method: str
    key: str
    span: tuple[int, int] | None
    sent: int
    signer: str

    @property
    def signed(self) -> bool:
        return bool(self.signer)


class ObjectServer(Loopback):
    """``objects`` maps ``bucket/key`` to bytes; ``fault`` names what goes wrong with ranged reads of objects.

    ``short`` (half the body, and Content-Range says so), ``short-unsaid`` (half the body, and Content-Range claims
    all of it), ``shorter-total`` (half the body, and the object is said to end there), ``ignore-range``, ``html`` (a
    page in place of the object), ``cut`` (the connection ends within the body), ``cut-thrice``, ``busy`` (503),
    ``busy-thrice``, ``broken`` (500), ``drip`` (a byte a second), ``never`` (no answer), ``denied`` (403),
    ``other-etag`` (another object's, and If-Match is not heeded), ``killed`` (no server from then on).
    ``strikes`` says which requests the fault befalls, by their range; all where it is None.
    ``deaf`` has HEAD and listings go without an answer too. ``region`` is where all buckets are: a request that is
    signed for another is sent there (301). ``checksums`` are headers by object, for HEAD requests that want them.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(_Handler)
        self.objects = objects
        self.fault: str | None = None
        self.strikes: Callable[[tuple[int, int]], bool] | None = None
        self.asked: list[Asked] = []
        self.deaf = False
        self.is_dead = False
        self.region: str | None = None
        self.times = 3
        self.checksums: dict[str, dict[str, str]] = {}
        self.before: Callable[[Asked], None] = lambda asked: None
        self._etags: dict[str, tuple[bytes, str]] = {}

    def die(self) -> None:
        """As a process that is killed: no connection is taken any more, and those that are there end."""
        self.is_dead = True
        self.stop()

    def etag(self, key: str) -> str:
        data = self.objects[key]
        if self._etags.get(key, (None,))[0] is not data:
            self._etags[key] = (data, hashlib.md5(data).hexdigest())
        return f'"{self._etags[key][1]}"'

    def sent_bytes(self) -> int:
        return sum(each.sent for each in self.asked)

    def befalls(self, span: tuple[int, int]) -> str | None:
        if self.fault is None or not (self.strikes is None or self.strikes(span)):
            return None
        if self.fault.endswith("-thrice"):
            self.times -= 1
            return self.fault.removesuffix("-thrice") if self.times >= 0 else None
        return self.fault


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: ObjectServer

    def log_message(self, *args: Any) -> None:
        pass

    def parse_request(self) -> bool:
        self.close_connection = self.served.is_dead
        return not self.served.is_dead and super().parse_request()

    def do_HEAD(self) -> None:
        key = self._key()
        if self._is_elsewhere(key):
            return
        if self.served.deaf:
            self._be_silent(key, None)
            return
        if self._is_bucket(key.strip("/")):
            self._answer(200, b"", key, None)
            return
        if key not in self.served.objects:
            self._answer(404, b"", key, None)
            return
        if self.served.fault == "denied" and self.served.strikes is None:
            self._answer(403, b"", key, None)
            return
        self._log(key, None, 0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.served.objects[key])))
        self.send_header("ETag", self.served.etag(key))
        if self.headers.get("x-amz-checksum-mode") == "ENABLED":
            for name, value in self.served.checksums.get(key, {}).items():
                self.send_header(name, value)
        self.end_headers()

    def _is_bucket(self, name: str) -> bool:
        return any(key.startswith(f"{name}/") for key in self.served.objects)

    def _is_elsewhere(self, key: str) -> bool:
        region = self.served.region
        if region is None or f"/{region}/s3/" in self.headers.get("Authorization", ""):
            return False
        self._fail(301, "PermanentRedirect", key)
        return True

    def _be_silent(self, key: str, span: tuple[int, int] | None) -> None:
        self._log(key, span, 0)
        self.served.wait(120)
        self.close_connection = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if self._is_elsewhere(self._key()):
            return
        if self.served.deaf:
            self._be_silent(self._key(), None)
            return
        if "list-type" in query:
            self._list(unquote(parts.path).strip("/"), query.get("prefix", [""])[0])
            return
        key = self._key()
        if key not in self.served.objects:
            self._fail(404, "NoSuchKey" if self._is_bucket(key.partition("/")[0]) else "NoSuchBucket", key)
            return
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != self.served.etag(key) and self.served.fault != "other-etag":
            self._fail(412, "PreconditionFailed", key)
            return
        data = self.served.objects[key]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(match[1]), min(int(match[2]) + 1, len(data))) if match else (0, len(data))
        if begin >= len(data):
            self._fail(416, "InvalidRange", key)
            return
        self._body(key, data, begin, end, self.served.befalls((begin, end)))

    def _body(self, key: str, data: bytes, begin: int, end: int, fault: str | None) -> None:
        body, status, last, total = data[begin:end], 206, end - 1, len(data)
        if fault == "never":
            self._be_silent(key, (begin, end))
            return
        if fault == "killed":
            self.served.die()
            self.close_connection = True
            return
        if fault in _FAILURES:
            self._fail(*_FAILURES[fault], key)
            return
        if fault in ("short", "short-unsaid", "shorter-total"):
            body = body[: max(1, len(body) // 2)]
            last = last if fault == "short-unsaid" else begin + len(body) - 1
            total = last + 1 if fault == "shorter-total" else total
        if fault in ("ignore-range", "html"):
            body, status = (data, 200) if fault == "ignore-range" else (b"<html>Log in, please</html>", 200)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if fault == "html":
            self.send_header("Content-Type", "text/html")
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{last}/{total}")
        self.send_header("ETag", '"other"' if fault == "other-etag" else self.served.etag(key))
        self._log(key, (begin, end), len(body))
        self.end_headers()
        self._write(body, fault)

    def _write(self, body: bytes, fault: str | None) -> None:
        try:
            if fault == "cut":
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            elif fault == "drip":
                for index in range(len(body)):
                    self.wfile.write(body[index : index + 1])
                    self.wfile.flush()
                    self.served.wait(1)
            else:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def _list(self, bucket: str, prefix: str) -> None:
        if not self._is_bucket(bucket):
            self._fail(404, "NoSuchBucket", bucket)
            return
        contents, folders = "", set()
        for name, data in sorted(self.served.objects.items()):
            key = name.removeprefix(f"{bucket}/")
            if not name.startswith(f"{bucket}/") or not key.startswith(prefix):
                continue
            inner, slash, _ = key.removeprefix(prefix).partition("/")
            if slash:
                folders.add(f"{prefix}{inner}/")
            else:
                contents += f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size></Contents>"
        common = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        xml = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        self._answer(200, xml.encode(), bucket, None)

    def _fail(self, status: int, code: str, key: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode(), key, None)

    def _answer(self, status: int, body: bytes, key: str, span: tuple[int, int] | None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.served.region is not None:
            self.send_header("x-amz-bucket-region", self.served.region)
        self._log(key, span, len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _key(self) -> str:
        # The native client sends the absolute form, http://127.0.0.1:5555/bucket/key.
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _log(self, key: str, span: tuple[int, int] | None, sent: int) -> None:
        signer = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        asked = Asked(self.command, key, span, sent, signer)
        self.served.asked.append(asked)
        self.served.before(asked)
