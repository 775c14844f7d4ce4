# SPDX-License-Identifier: Apache-2.0
"""A store that goes wrong within the tensors, in children: the right error in time, no wrong tensor, no dead process.

In children, because a server that does not answer holds the native library of a process for up to a minute.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from support.files import write_tensors
from support.measure import run_child
from support.object_server import ObjectServer, only_loopback
from support.tensors import noise

MIB = 1 << 20
URI = "s3://models/model.safetensors"
TENSORS = {f"t{number:02}": noise(MIB, number) for number in range(16)}
BEYOND = 20.0
"""Seconds beyond the timeout: four to ask what is wrong, and a busy machine. Who waits for the library takes 30."""


class Case(NamedTuple):
    """What is wrong with ranges in the second half of the object, and what is to be said of it within the timeout."""

    fault: str
    said: str
    timeout: float = 20.0
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.fault


SHORT = "the store sent fewer bytes than it was asked for"
RANGE = "the store does not serve the range that it was asked for"
CHILDREN: Sequence[tuple[Mapping[str, str], Sequence[Case]]] = [
    (
        {},
        [
            Case("short", f"{SHORT}|{RANGE}"),
            Case("short-unsaid", SHORT),
            Case("shorter-total", f"{SHORT}|{RANGE}"),
            Case("ignore-range", RANGE),
            Case("html", RANGE),
            Case("denied", "access denied"),
        ],
    ),
    (
        {},
        [
            Case("busy", "the store failed.*HTTP 503 SlowDown"),
            Case("broken", "the store failed.*HTTP 500 InternalError"),
        ],
    ),
    (
        {},
        [
            Case("cut", "the connection was cut before all bytes had come"),
            Case("killed", "the endpoint cannot be reached"),
        ],
    ),
    (
        {},
        [
            Case("never", "no answer for 3 seconds while streaming.*RUNAI_STREAMER_LOG_TO_STDERR=1", 3),
            # The library still waits for the server before, as long as that one is silent.
            Case("drip", "no answer for 3 seconds while streaming.*An earlier load of this process still waits", 3),
        ],
    ),
    # With this variable the library asks 18 times, for 19 seconds.
    ({"RUNAI_STREAMER_S3_TIMEOUT": "10"}, [Case("busy", "no answer for 4 seconds", 4, "busy, asked for longer")]),
]
CASES = [case for _, cases in CHILDREN for case in cases]

LOADS = """
import hashlib, json, sys, time
from weight_readers import CheckpointError
from weight_readers_runai.reader import StreamerReader

def load(uri, endpoint, timeout):
    reader, got, said = StreamerReader(timeout=timeout, endpoint=endpoint), {}, None
    reader.read_meta([uri])
    began = time.monotonic()
    try:
        for name, values in reader.iter_weights([uri]):
            got[name] = hashlib.sha256(values.numpy()).hexdigest()
    except CheckpointError as error:
        said = [type(error).__name__, error.path, error.tensor, str(error)]
    return {"got": got, "said": said, "seconds": time.monotonic() - began}

print(json.dumps([load(sys.argv[1], *each) for each in json.loads(sys.argv[2])]))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By case, what its load gave and said. The children run at the same time: most of them wait."""
    tensors = {name: ("U8", [MIB], data) for name, data in TENSORS.items()}
    data = write_tensors(tmp_path_factory.mktemp("faults") / "model.safetensors", tensors).read_bytes()
    with ExitStack() as stack, ThreadPoolExecutor(len(CHILDREN)) as pool:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        only_loopback(environment, "http://127.0.0.1:1")
        servers = [stack.enter_context(ObjectServer({"models/model.safetensors": data}).running()) for _ in CASES]
        for server, case in zip(servers, CASES, strict=True):
            server.fault, server.strikes = case.fault, lambda span: span[0] > 8 * MIB
        left = iter(servers)
        run = [
            pool.submit(_run, variables, [[next(left).endpoint, case.timeout] for case in cases])
            for variables, cases in CHILDREN
        ]
        found = [outcome for child in run for outcome in child.result(timeout=600)]
    return {str(case): outcome for case, outcome in zip(CASES, found, strict=True)}


def _run(variables: Mapping[str, str], loads: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    done = run_child(LOADS, URI, json.dumps(loads), **variables)
    assert (done.returncode, done.stderr) == (0, "")
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_of_its_class_and_says_what_is_wrong(outcomes: dict[str, dict[str, Any]], case: Case) -> None:
    kind, path, tensor, text = outcomes[str(case)]["said"]
    assert (kind, path, tensor in TENSORS) == ("UnreadableFileError", URI, True)
    with pytest.raises(ValueError, match=case.said):
        raise ValueError(text)
    assert all(word in text for word in ("us-east-1 (AWS_REGION)", "AWS_SECRET_ACCESS_KEY"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_case_takes_longer_than_its_deadline(outcomes: dict[str, dict[str, Any]], case: Case) -> None:
    assert outcomes[str(case)]["seconds"] < case.timeout + BEYOND


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_handed_out_before_is_right(outcomes: dict[str, dict[str, Any]], case: Case) -> None:
    right = {name: hashlib.sha256(data).hexdigest() for name, data in TENSORS.items()}
    assert outcomes[str(case)]["got"].items() < right.items()
