# SPDX-License-Identifier: Apache-2.0
"""What an object store or the way to it refuses, as the error that says so.

The native library has one sentence, ``File access error``, for nearly all of this: what is wrong is found out by
asking once more, through the client in Python.
"""

from __future__ import annotations

from typing import NamedTuple

from weight_readers import CheckpointError, CheckpointNotFoundError, FileChangedError, UnreadableFileError
from weight_readers_runai.failures import NATIVE_LOG
from weight_readers_runai.settings import StoreSettings
from weight_readers_runai.uris import Uri

_NOT_FOUND = {"404": "no such object", "NoSuchKey": "no such object", "NoSuchBucket": "no such bucket"}
_CHECK_KEYS = (
    "Check the credentials and what they may read; a public bucket may want option unsigned=True. Where they may not "
    "list the bucket, S3 says this of missing objects too"
)
_DENIED = {
    "InvalidAccessKeyId": "the store does not know the access key",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "InvalidObjectState": "the object is archived",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "ExpiredToken": "the credentials have expired",
    "ExpiredTokenException": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
    "TokenRefreshRequired": "the credentials have expired",
}
"""What the store says of a request that it denies, beside plain AccessDenied."""
_ELSEWHERE = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301", "307"})
_NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
    | {"DefaultCredentialsError", "RefreshError", "FileNotFoundError"}
)
"""Of boto3 and of google-auth; and no other file is opened for a request than a key's."""


def of_request(error: Exception, uri: Uri, settings: StoreSettings, timeout: float) -> CheckpointError:
    """The error for what a request of a client in Python ended with."""
    error = _last(error)
    answer = _answer(error)
    if answer is not None:
        return _of_answer(answer, uri, settings)
    name = type(error).__name__
    if name in _NO_CREDENTIALS:
        return _unreadable("no credentials", uri, settings, found=_short(error), fix=settings.ways[0])
    if "Timeout" in name:
        what = f"the store did not answer within {timeout:g} seconds"
        return _unreadable(what, uri, settings, found=name, fix=f"{_check(settings)}; option timeout= waits longer")
    if any(word in name for word in ("Connect", "Connection", "SSL", "Transport")):
        what = "the endpoint cannot be reached"
        return _unreadable(what, uri, settings, found=_short(error), fix=_check(settings))
    return _unreadable("the request failed", uri, settings, found=f"{name}: {_short(error)}", fix=_check(settings))


class _Answer(NamedTuple):
    """HTTP status, the store's own code, and the region that it names."""

    status: str
    code: str
    region: str | None = None


def _last(error: Exception) -> Exception:
    """The failure itself, of an error that says how long it was tried."""
    for _ in range(4):
        inner = getattr(error, "cause", None)
        if not isinstance(inner, Exception) or _answer(error) is not None:
            break
        error = inner
    return error


def _answer(error: Exception) -> _Answer | None:
    """What a store answered; None where none did."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        metadata, said = response.get("ResponseMetadata", {}), response.get("Error", {})
        region = said.get("Region") or metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
        return _Answer(str(metadata.get("HTTPStatusCode", "")), str(said.get("Code", "")), region)
    status = getattr(error, "code", None)  # google-api-core
    if not isinstance(status, int):
        return None
    return _Answer(str(int(status)), "")


def _of_answer(answer: _Answer, uri: Uri, settings: StoreSettings) -> CheckpointError:
    status, code, region = answer
    found = f"HTTP {status} {code if code != status else ''}".strip()
    if code == "412" or status == "412":
        fix = "Load again once its writer has finished"
        return FileChangedError("the object was changed while it was read", path=str(uri), found=found, fix=fix)
    if code == "416" or status == "416":
        return range_refused(uri, found=found, settings=settings)
    if code in _NOT_FOUND or status == "404":
        what = _NOT_FOUND.get(code, "no such object")
        return CheckpointNotFoundError(what, path=str(uri), found=f"{found}; {settings}", fix="Check bucket and key")
    if code in _DENIED:
        return _unreadable(f"access denied: {_DENIED[code]}", uri, settings, found=found, fix=_CHECK_KEYS)
    if status in ("401", "403"):
        return _unreadable("access denied", uri, settings, found=found, fix=_CHECK_KEYS)
    if code in _ELSEWHERE or status in ("301", "307", "400"):
        return elsewhere(uri, region, settings, found=found)
    return _unreadable("the store failed", uri, settings, found=found, fix="Try again later, or ask who runs it")


def elsewhere(uri: Uri, region: str | None, settings: StoreSettings, *, found: str | None = None) -> CheckpointError:
    """The store sends elsewhere, or the signature names another region than the bucket's."""
    if region is None or region == getattr(settings, "region", None):
        fix = "Check region and endpoint: the bucket may be in another region"
        return _unreadable("the store refused the request", uri, settings, found=found, fix=fix)
    fix = f"Set AWS_REGION={region}, or option region={region!r}"
    return _unreadable(f"the bucket is in region {region!r}", uri, settings, found=found, fix=fix)


def _check(settings: StoreSettings) -> str:
    return f"Check endpoint and network; {settings.ways[1]}"


def cut(uri: Uri, *, expected: int, found: int, settings: StoreSettings) -> UnreadableFileError:
    """The connection ended too soon, each time that it was taken up."""
    what = "the connection was cut before all bytes had come"
    return _unreadable(what, uri, settings, expected=f"{expected} bytes", found=f"{found} bytes", fix=_check(settings))


def short(uri: Uri, words: str, settings: StoreSettings) -> UnreadableFileError:
    """Fewer bytes than asked for, in an answer that says they are all there."""
    what = "the store sent fewer bytes than it was asked for"
    fix = "What answers there (a proxy?) cuts ranged responses: see its logs"
    return _unreadable(what, uri, settings, found=words or "the end of a range is missing", fix=fix)


def range_refused(uri: Uri, *, found: str, settings: StoreSettings, expected: str = "HTTP 206") -> UnreadableFileError:
    what = "the store does not serve the range that it was asked for"
    fix = "A store that answers Range requests with 206 and the whole range is needed, not a plain web server"
    return _unreadable(what, uri, settings, expected=expected, found=found, fix=fix)


def native(uri: Uri, words: str, settings: StoreSettings) -> UnreadableFileError:
    """The library failed, and the client in Python finds nothing wrong."""
    return _unreadable("streaming the object failed", uri, settings, found=words, fix=NATIVE_LOG)


def silent(uri: Uri, settings: StoreSettings, timeout: float, *, behind_another: bool) -> UnreadableFileError:
    """``behind_another``: an earlier session of this process still waits, and the library serves them in turn."""
    what = f"no answer for {timeout:g} seconds while streaming"
    if behind_another:
        fix = "An earlier load of this process still waits for a store that does not answer: try again in a minute"
        return _unreadable(what, uri, settings, fix=fix)
    return _unreadable(what, uri, settings, fix=f"{_check(settings)}; option timeout= waits longer. {NATIVE_LOG}")


def _unreadable(
    what: str,
    uri: Uri,
    settings: StoreSettings,
    *,
    expected: str | None = None,
    found: str | None = None,
    fix: str | None = None,
) -> UnreadableFileError:
    said = f"{found}; {settings}" if found else str(settings)
    return UnreadableFileError(what, path=str(uri), expected=expected, found=said, fix=fix)


def _short(error: Exception) -> str:
    text = str(error)
    return text if len(text) < 300 else f"{text[:300]}…"
