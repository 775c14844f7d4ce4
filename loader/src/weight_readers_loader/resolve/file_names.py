# SPDX-License-Identifier: Apache-2.0
"""Names of weight files and of indexes, taken apart.

model.safetensors, model.fp16.safetensors              single, with and without a variant
model-00001-of-00002.safetensors                       shards
model.fp16-00001-of-00002.safetensors                  shards of a variant, in both ways of writing it
model-00001-of-00002.fp16.safetensors
model-rank-0-part-0.safetensors                        ranks: split before saving, one part per rank
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from weight_readers_loader.resolve.formats import format_by_name

__all__ = [
    "ADAPTER_TIER",
    "VARIANTS",
    "IndexName",
    "Kind",
    "WeightName",
    "parse_index_name",
    "parse_weight_name",
    "standing_of",
    "why_no_weights",
]

VARIANTS = frozenset(["fp32", "fp16", "bf16", "fp8", "fp4", "nf4", "int8", "int4", "8bit", "4bit", "ema", "non_ema"])
"""What is taken for a variant without being asked for: ``qwen2.5.safetensors`` has none."""

Kind = Literal["single", "shards", "ranks"]

# Six digits are the most that is in use (model-00001-of-000163).
_NUMBERED = re.compile(r"(?P<stem>.+?)-(?P<number>[0-9]{1,6})-of-(?P<total>[0-9]{1,6})(?P<tail>\.[^.]+)?")
_RANK = re.compile(r"(?P<stem>.+)-rank-(?P<rank>[0-9]{1,6})-part-(?P<part>[0-9]{1,6})")
_INDEX = re.compile(r"(?P<stem>.+)(?P<suffix>\.[a-z0-9_]+)\.index(?:\.(?P<variant>[^.]+))?\.json")

_LEFTOVERS = (
    (re.compile(r"(optimizer|optim|scheduler|scaler|sampler)(_states?)?([._-]?[0-9]+)*"), "state of a training run"),
    (re.compile(r"(training_args|trainer_state|(rng|random)_states?)([._-]?[0-9]+)*"), "state of a training run"),
    (re.compile(r".*_optim_states"), "state of a training run"),
    (re.compile(r"openvino_.*"), "weights of an OpenVINO graph"),
    (
        re.compile(r"(?!.*[._-]i?q[0-9])(imatrix([._-].+)?|.+[._-]imatrix)", re.IGNORECASE),
        "an importance matrix, which is no weights",
    ),
)
_SECONDARY = (
    (re.compile(r"consolidated([._-].*)?"), "a second copy under its publisher's own names"),
    (re.compile(r"adapter_model|adapters|pytorch_lora_weights"), "an adapter, not the weights of the model"),
    (re.compile(r"(.+[._-])?mmproj([._-].+)?", re.IGNORECASE), "a projector of images, not the model that it serves"),
)

ADAPTER_TIER = 2
"""The tier of adapters in `_SECONDARY`: they are no weights of a model, whatever their format."""


@dataclass(frozen=True, kw_only=True)
class WeightName:
    """The parts of one weight file's name; ``number`` is its shard number, or its part on ``rank``."""

    name: str
    format: str
    stem: str
    variant: str | None = None
    number: int | None = None
    total: int | None = None
    rank: int | None = None

    @property
    def kind(self) -> Kind:
        return "shards" if self.total is not None else "single" if self.rank is None else "ranks"


@dataclass(frozen=True, kw_only=True)
class IndexName:
    """The parts of one index's name; ``tier`` and ``standing`` as in `Family`."""

    name: str
    format: str
    stem: str
    variant: str | None = None
    tier: int = 0
    standing: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def title(self) -> str:
        return self.name


def parse_weight_name(name: str, *, variant: str | None = None, form: str | None = None) -> WeightName | None:
    """Take a file name apart; None if its suffix is not that of a weight file.

    ``variant`` and ``form``, a format, are those asked for: they decide what several claim.
    """
    form = format_by_name(name, asked=form)
    if form is None:
        return None
    base = name.rpartition(".")[0]
    if match := _NUMBERED.fullmatch(base):
        stem, found = _split_variant(match["stem"] + (match["tail"] or ""), form, variant)
        number, total = int(match["number"]), int(match["total"])
        return WeightName(name=name, format=form, stem=stem, variant=found, number=number, total=total)
    if match := _RANK.fullmatch(base):
        rank, part = int(match["rank"]), int(match["part"])
        return WeightName(name=name, format=form, stem=match["stem"], number=part, rank=rank)
    stem, found = _split_variant(base, form, variant)
    return WeightName(name=name, format=form, stem=stem, variant=found)


def parse_index_name(name: str, *, variant: str | None = None, form: str | None = None) -> IndexName | None:
    """Take an index's name apart, in both ways of writing a variant; None if it is not the name of an index."""
    match = _INDEX.fullmatch(name)
    form = format_by_name(match["stem"] + match["suffix"], asked=form) if match else None
    if match is None or form is None:
        return None
    stem, inner = _split_variant(match["stem"], form, variant)
    tier, standing = standing_of(stem)
    return IndexName(name=name, format=form, stem=stem, variant=match["variant"] or inner, tier=tier, standing=standing)


def _split_variant(stem: str, form: str, asked: str | None) -> tuple[str, str | None]:
    head, _, token = stem.rpartition(".")
    # The GGUF files of one folder differ in their quantization, which their names write in their own way.
    if head and form != "gguf" and (token == asked or token in VARIANTS):
        return head, token
    return stem, None


def standing_of(stem: str) -> tuple[int, str | None]:
    """``tier`` and ``standing`` of a family, as `Family` has them."""
    matches = ((tier, what) for tier, (pattern, what) in enumerate(_SECONDARY, 1) if pattern.fullmatch(stem))
    return next(matches, (0, None))


def why_no_weights(weight: WeightName) -> str | None:
    """What the file is, if it has the suffix of weights only."""
    if weight.name.startswith("."):
        return "a hidden file"
    return next((what for pattern, what in _LEFTOVERS if pattern.fullmatch(weight.stem)), None)
