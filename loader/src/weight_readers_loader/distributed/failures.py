# SPDX-License-Identifier: Apache-2.0
"""How the failure of one rank reaches the others: the same type, with the rank, the file and every other field."""

from __future__ import annotations

import json
from typing import Any

from weight_readers import (
    CheckpointError,
    CheckpointProblems,
    DistributedError,
    RankFailedError,
    TargetMismatchError,
    WeightReadersError,
    errors,
)

_OF_CHECKPOINTS = ("path", "tensor", "expected", "found")
_OF_TARGETS = ("missing", "unexpected", "shapes", "dtypes")


def told(error: BaseException, rank: int) -> bytes:
    """``error`` of ``rank`` for the store. No pickle: what is read there is text."""
    return json.dumps(_plain(error, rank)).encode()


def retold(text: bytes) -> WeightReadersError:
    """The error that `told` described."""
    return _made(json.loads(text))


def with_rank(error: BaseException, rank: int) -> BaseException:
    """``error`` itself, which says on which rank it happened from now on, where it is one of ours."""
    if isinstance(error, WeightReadersError) and not isinstance(error, DistributedError) and error.rank is None:
        error.rank = rank
        error.what = f"rank {rank}: {error.what}"
        error.args = (error.what,)
    return error


def _plain(error: BaseException, rank: int) -> dict[str, Any]:
    if isinstance(error, CheckpointProblems):
        problems = [_plain(problem, rank) for problem in error.problems]
        return {"type": "CheckpointProblems", "rank": rank, "path": error.path, "problems": problems}
    if not isinstance(error, (CheckpointError, TargetMismatchError, DistributedError)) or not _is_public(error):
        return {"type": RankFailedError.__name__, "rank": rank, "what": _said(error, rank), "fix": None}
    fields = _OF_CHECKPOINTS if isinstance(error, CheckpointError) else ()
    fields = _OF_TARGETS if isinstance(error, TargetMismatchError) else fields
    rank = rank if error.rank is None else error.rank
    kept = {name: _text(getattr(error, name)) for name in fields}
    return {"type": type(error).__name__, "rank": rank, "what": error.what, "fix": error.fix, **kept}


def _text(value: object) -> object:
    return value if value is None or isinstance(value, (str, int, tuple)) else str(value)


def _is_public(error: BaseException) -> bool:
    return getattr(errors, type(error).__name__, None) is type(error)


def _said(error: BaseException, rank: int) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"rank {rank} was interrupted"
    if isinstance(error, SystemExit):
        return f"rank {rank} was told to end"
    if isinstance(error, GeneratorExit):
        return f"rank {rank} stopped before it had taken all tensors"
    return f"rank {rank} failed with {type(error).__name__}: {error}".rstrip(": ")


def _made(data: dict[str, Any]) -> WeightReadersError:
    kind = getattr(errors, data.pop("type"))
    rank = data.pop("rank")
    if kind is CheckpointProblems:
        problems = [made for each in data["problems"] if isinstance(made := _made(each), CheckpointError)]
        error: WeightReadersError = CheckpointProblems(problems, path=data["path"])
        return _ranked(error, rank)
    if issubclass(kind, DistributedError):
        return _ranked(kind(data["what"], rank=rank, fix=data["fix"]), rank)
    return _ranked(kind(data.pop("what"), **data), rank)


def _ranked(error: WeightReadersError, rank: int) -> WeightReadersError:
    with_rank(error, rank)
    return error
