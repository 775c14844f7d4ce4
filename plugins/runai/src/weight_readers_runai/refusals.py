# SPDX-License-Identifier: Apache-2.0
"""What an object store or the way to it refuses, as the error that says so.

The native library has one sentence, ``File access error``, for nearly all of this: what is wrong is found out by
asking once more, through the client in Python.
"""

from __future__ import annotations

from weight_readers import CheckpointError, CheckpointNotFoundError, FileChangedError, UnreadableFileError
from weight_readers_runai.failures import NATIVE_LOG
from weight_readers_runai.settings import StoreSettings
from weight_readers_runai.uris import Uri

_NOT_FOUND = {"404": "no such object", "NoSuchKey": "no such object", "NoSuchBucket": "no such bucket"} | {
    "BlobNotFound": "no such object",
    "ContainerNotFound": "no such container",
}
_CHECK_KEYS = "Check the credentials and what they may read; a public bucket may want option unsigned=True"
_DENIED = frozenset(
    {"403", "401", "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}
)
_NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
    | {"DefaultCredentialsError", "RefreshError", "ClientAuthenticationError"}
)
"""Of boto3, of google-auth and of azure-identity."""


def of_request(error: Exception, uri: Uri, settings: StoreSettings, timeout: float) -> CheckpointError:
    """The error for what a request of a client in Python ended with."""
    error = _last(error)
    status, code = _answer(error)
    if status or code:
        return _of_answer(status, code, uri, settings)
    name = type(error).__name__
    if name in _NO_CREDENTIALS or isinstance(error, FileNotFoundError):  # the file that was to hold them
        return _unreadable("no credentials", uri, settings, found=_short(error), fix=settings.ways[0])
    if "Timeout" in name:
        what = f"the store did not answer within {timeout:g} seconds"
        return _unreadable(what, uri, settings, found=name, fix=f"{_check(settings)}; option timeout= waits longer")
    if any(word in name for word in ("Connect", "Connection", "SSL", "Transport", "ServiceRequest")):
        what = "the endpoint cannot be reached"
        return _unreadable(what, uri, settings, found=_short(error), fix=_check(settings))
    return _unreadable("the request failed", uri, settings, found=f"{name}: {_short(error)}", fix=_check(settings))


def _last(error: Exception) -> Exception:
    """The failure itself, of an error that says how long it was tried, or that another client wraps."""
    for _ in range(4):
        inner = getattr(error, "cause", None) or getattr(error, "inner_exception", None)
        if not isinstance(inner, Exception) or _answer(error)[0]:
            break
        error = inner
    return error


def _answer(error: Exception) -> tuple[str, str]:
    """HTTP status and the store's own code; both empty where no store answered."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        details, metadata = response.get("Error"), response.get("ResponseMetadata")
        code = str(details.get("Code", "")) if isinstance(details, dict) else ""
        return str(metadata.get("HTTPStatusCode", "")) if isinstance(metadata, dict) else "", code
    status = getattr(error, "status_code", None) or getattr(error, "code", None)  # azure-core, google-api-core
    if not isinstance(status, int):
        return "", ""
    named = getattr(error, "error_code", None)
    return str(int(status)), str(getattr(named, "value", named) or "")


def _of_answer(status: str, code: str, uri: Uri, settings: StoreSettings) -> CheckpointError:
    found = f"HTTP {status} {code if code != status else ''}".strip()
    if code == "412" or status == "412":
        fix = "Load again once its writer has finished"
        return FileChangedError("the object was changed while it was read", path=str(uri), found=found, fix=fix)
    if code == "416" or status == "416":
        return range_refused(uri, found=found, settings=settings)
    if code in _NOT_FOUND or status == "404":
        what = _NOT_FOUND.get(code, "no such object")
        return CheckpointNotFoundError(what, path=str(uri), found=f"{found}; {settings}", fix="Check bucket and key")
    if code in _DENIED or status in ("401", "403"):
        return _unreadable("access denied", uri, settings, found=found, fix=_CHECK_KEYS)
    if status in ("301", "307", "400"):
        fix = "Check region and endpoint: the bucket may be in another region"
        return _unreadable("the store refused the request", uri, settings, found=found, fix=fix)
    return _unreadable("the store failed", uri, settings, found=found, fix="Try again later, or ask who runs it")


def _check(settings: StoreSettings) -> str:
    return f"Check endpoint and network; {settings.ways[1]}"


def short(uri: Uri, *, expected: int, found: int, settings: StoreSettings) -> UnreadableFileError:
    """Fewer bytes than asked for, in an answer that says they are all there."""
    what = "the store sent fewer bytes than it was asked for"
    fix = "What answers there (a proxy?) cuts ranged responses: see its logs"
    return _unreadable(what, uri, settings, expected=f"{expected} bytes", found=f"{found} bytes", fix=fix)


def range_refused(uri: Uri, *, found: str, settings: StoreSettings) -> UnreadableFileError:
    what = "the store does not serve the range that it was asked for"
    fix = "A store that answers Range requests with 206 is needed, not a plain web server"
    return _unreadable(what, uri, settings, expected="HTTP 206", found=found, fix=fix)


def native(uri: Uri, words: str, settings: StoreSettings) -> UnreadableFileError:
    """The library failed, and the client in Python finds nothing wrong."""
    return _unreadable("streaming the object failed", uri, settings, found=words, fix=NATIVE_LOG)


def silent(uri: Uri, settings: StoreSettings, timeout: float) -> UnreadableFileError:
    what = f"no answer for {timeout:g} seconds while streaming"
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
