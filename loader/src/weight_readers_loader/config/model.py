# SPDX-License-Identifier: Apache-2.0
"""`LoadConfig`: everything that can be said of how weights are loaded, with its kinds and ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from weight_readers import ConfigError
from weight_readers_loader.config.refusals import refusal

MOST_THREADS = 1024
"""As many as a reader with threads takes."""

MOST_PREFETCH_THREADS = 64

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")


def as_bytes(value: object) -> object:
    """Bytes of a text with a unit (``"256MiB"``); what is no text is left as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or match["unit"].upper() not in _UNITS:
        raise ValueError("a whole number of bytes, or a text with a unit, as '256MiB'")
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def _as_budget(value: object) -> object:
    return value if value in ("auto", "off") else as_bytes(value)


def _as_verify(value: object) -> object:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise ValueError("true, false, or the path of a manifest")


def _as_tuple(value: object) -> object:
    # A single text would become the tuple of its letters.
    return tuple(value) if isinstance(value, list) else value


Bytes = Annotated[int, BeforeValidator(as_bytes), Field(ge=1, le=1 << 50)]
"""A whole number of bytes, or a text with a unit: ``"256MiB"`` (binary) or ``"1.5GB"`` (decimal)."""

Budget = Annotated[Annotated[int, Field(ge=1, le=1 << 50)] | Literal["auto", "off"], BeforeValidator(_as_budget)]
"""`Bytes`, ``"auto"`` or ``"off"``."""

Verify = Annotated[bool | str | None, BeforeValidator(_as_verify)]
"""Whether to verify, or the path of a manifest."""

Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_tuple)]
FloatDtype = Literal["float64", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"]
Text = Annotated[str, Field(min_length=1)]


class LoadConfig(BaseModel):
    """How weights are loaded. Every field may be None: then a lower layer decides, and in the end the default.

    Values have to be of the right kind (``"8"`` is no number of threads); sizes may be texts with a unit, lists may
    stand for tuples. Raises `ConfigError` with the close match for a name that is no option.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reader: Text | None = Field(None, description="The reader by name; otherwise the policy picks one.")
    prefer: Names | None = Field(None, description="Readers by name, the best first, for the policy.")
    strict: bool | None = Field(
        None, description="No reader stands in for another, and nothing is left that the index does not name."
    )
    enable_multithread_weight_load: bool | None = Field(
        None, description="Several threads may read; false reaches a sequential reader."
    )
    num_weight_load_threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = Field(
        None, description="Threads of a reader that has any; others run without, and the report says so."
    )
    enable_broadcast_weight_load: bool | None = Field(
        None, description="One of several ranks reads for all, where `open_distributed` is not told how."
    )
    max_in_flight_bytes: Bytes | None = Field(
        None, description="Bytes under way at most, of a reader that copies; a mapping has none under way."
    )
    host_budget: Budget | None = Field(
        None,
        description="Host memory that a load may take besides existing tensors; auto for what is left, or off.",
    )
    direct_io: Literal["on", "off", "auto"] | None = Field(
        None, description="Past the page cache; on takes only readers that can."
    )
    prefetch: Annotated[int, Field(ge=0, le=MOST_PREFETCH_THREADS)] | None = Field(
        None, description="Threads that read ahead in mapped files; others are read without, and the report says so."
    )
    verify: Verify = Field(
        None, description="Loads compare what they read with the files' digests: those that are known, or a manifest's."
    )
    device: Text | None = Field(None, description="Where tensors go if the call does not say.")
    dequantize: Literal["float32", "bfloat16", "float16", "fp32", "bf16", "fp16"] | None = Field(
        None, description="Numbers of this dtype for what the files hold in quantized blocks."
    )
    cache_dir: Text | None = Field(
        None, description="Where copies of stored files go whose format no reader reads in their store."
    )
    adapters: Annotated[tuple[Mapping[str, Any], ...], BeforeValidator(_as_tuple)] | None = Field(
        None, description="Adapters by name, each with its options, one after the other."
    )
    dtype: FloatDtype | None = Field(None, description="Floating-point tensors are converted to this dtype at last.")
    keep_dtype: Names | None = Field(
        None, description="Patterns of names (`*`, `?`) that keep the dtype of the file; needs `dtype`."
    )
    reader_options: Mapping[str, Any] | None = Field(
        None, description="Constructor options of the reader; only readers that have them are considered."
    )

    if not TYPE_CHECKING:  # type checkers have the fields from the class itself

        def __init__(self, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise refusal(error, source="LoadConfig", known=type(self).model_fields) from error

    @classmethod
    def of(cls, given: Mapping[str, Any], *, source: str) -> LoadConfig:
        """A layer of plain data. Raises ConfigError that names the option and its ``source``."""
        try:
            return cls(**given)
        except ConfigError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            raise refusal(error.__cause__, source=source, known=cls.model_fields) from error.__cause__

    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
