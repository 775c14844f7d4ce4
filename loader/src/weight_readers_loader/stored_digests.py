# SPDX-License-Identifier: Apache-2.0
"""Contents in an object store: their digests as the store keeps them, and as the bytes arrive, through a reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weight_readers import (
    CheckpointError,
    DigestsFiles,
    Feature,
    PluginContractError,
    StoredDigest,
)
from weight_readers_loader.digests import Digest
from weight_readers_loader.resolve import LayoutFile
from weight_readers_loader.resolve.stores import reader_there


def digester(scheme: str, options: Mapping[str, Any]) -> DigestsFiles:
    """A reader that compares contents there. Raises what `reader_there` raises."""
    reader = reader_there(scheme, Feature.DIGESTS, options)
    if not isinstance(reader, DigestsFiles):
        name = reader.info.name
        breach = "declares that it compares digests and has no stored_digest and digest"
        raise PluginContractError(f"reader {name!r} {breach}", name=name, reason=breach, code="broken")
    return reader


def kept(files: Iterable[LayoutFile], reader: DigestsFiles) -> tuple[dict[str, Digest], dict[str, str]]:
    """By file name, the digests that the store keeps; and why there is none for the others."""
    digests: dict[str, Digest] = {}
    without: dict[str, str] = {}
    for file in files:
        try:
            found = reader.stored_digest(file.path)
        except CheckpointError as error:
            found = StoredDigest(remark=error.what)
        if found.algorithm is None or found.value is None:
            without[file.name] = found.remark
        else:
            digests[file.name] = Digest(value=found.value, source=found.remark, algorithm=found.algorithm)
    return digests, without
