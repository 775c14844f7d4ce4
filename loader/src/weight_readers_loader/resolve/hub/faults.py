# SPDX-License-Identifier: Apache-2.0
"""What huggingface_hub raises, in this project's words: one error each, with the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from weight_readers.errors import CheckpointError, CheckpointNotFoundError, UnreadableFileError
from weight_readers_loader.arguments import short

__all__ = ["HubUnreachableError", "translated"]

_LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN"

# The base of all that httpx raises, whichever of its successors huggingface_hub was built on.
_TRANSPORT: type[BaseException] = HfHubHTTPError.__bases__[0]


class HubUnreachableError(UnreadableFileError):
    """The Hub did not answer, or only with a fault of its own: what the cache holds may stand in."""


@contextmanager
def translated(url: str, *, repo: str, revision: str | None = None) -> Iterator[None]:
    """Raise CheckpointNotFoundError for what is not there, UnreadableFileError for what may not be read or is not
    answered, about ``url``, in place of what huggingface_hub raises."""
    try:
        yield
    except CheckpointError:
        raise
    except (_TRANSPORT, OSError, EntryNotFoundError) as error:
        raise _meant(error, url, repo, revision or constants.DEFAULT_REVISION) from error


def _meant(error: BaseException, url: str, repo: str, revision: str) -> CheckpointError:
    cause = error.__cause__
    if isinstance(error, LocalEntryNotFoundError) and cause is not None:  # "no connection": by the cause it is known
        return _meant(cause, url, repo, revision)
    page = f"{constants.ENDPOINT}/{repo}"
    if isinstance(error, GatedRepoError):
        fix = f"Ask for access at {page}. {_LOG_IN} with the account that was granted it."
        return UnreadableFileError("the repository is gated, and this account has no access", path=url, fix=fix)
    if isinstance(error, DisabledRepoError):
        return UnreadableFileError("the repository was disabled on the Hub", path=url, fix=f"See {page}.")
    if isinstance(error, RepositoryNotFoundError):
        fix = f"Check the name at {page}. For a private repository: {_LOG_IN}."
        return CheckpointNotFoundError("no such repository, or none that this account may see", path=url, fix=fix)
    if isinstance(error, RevisionNotFoundError):
        fix = f"Give a branch, tag or commit that is listed at {page}."
        return CheckpointNotFoundError(
            "no such revision in the repository", path=url, expected=f"revision {revision}", found="none", fix=fix
        )
    if isinstance(error, EntryNotFoundError):
        return CheckpointNotFoundError("no such file in the repository", path=url, fix=f"See the files at {page}.")
    if isinstance(error, HfHubHTTPError):
        return _refused(error, url, page)
    if isinstance(error, _TRANSPORT):
        return _unreachable(url, type(error).__name__, error)
    return UnreadableFileError(
        "the download failed", path=url, found=_line(error), fix="Make sure that the cache has room, and run it again."
    )


def _refused(error: HfHubHTTPError, url: str, page: str) -> CheckpointError:
    status = error.response.status_code
    if status >= 500 or status in (408, 429):
        return _unreachable(url, f"status {status}", error)
    if status in (401, 403):
        fix = f"{_LOG_IN} with an account and token that may read {page}."
        return UnreadableFileError("the Hub refuses this account", path=url, found=f"status {status}", fix=fix)
    return UnreadableFileError(
        "the Hub refuses the request", path=url, found=f"status {status}: {_line(error)}", fix=f"See {page}."
    )


def _unreachable(url: str, what: str, error: BaseException) -> HubUnreachableError:
    fix = f"Check the connection to {constants.ENDPOINT} and run it again; HF_HUB_OFFLINE=1 reads the cache only."
    return HubUnreachableError("the Hub does not answer", path=url, found=f"{what}: {_line(error)}", fix=fix)


def _line(error: BaseException) -> str:
    """The first line that says something."""
    lines = (line.strip() for line in str(error).splitlines())
    return short(next((line for line in lines if line), type(error).__name__))
