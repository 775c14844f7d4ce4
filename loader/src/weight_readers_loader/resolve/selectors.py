# SPDX-License-Identifier: Apache-2.0
"""``:Q4_K_M`` behind a reference: the one model among the GGUF files of a place that is quantized so.

A name matches where it holds the selector between ``-``, ``.`` and ``_`` (and its ends), in either case of letters,
and is no more special there: ``UD-Q4_K_M`` is not ``Q4_K_M``, and ``Q4_K_M`` is not ``Q4_K``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weight_readers.errors import AmbiguousCheckpointError, CheckpointNotFoundError, ConfigError
from weight_readers_loader.resolve.choices import Asked
from weight_readers_loader.resolve.families import Family, Survey, survey
from weight_readers_loader.resolve.listing import Listing
from weight_readers_loader.wording import some

__all__ = ["Selected", "of_selector", "quantizations"]

_DEPTH = 3
_MOST_FOLDERS = 1000
_SPECIAL = frozenset({"ud"})
_SUFFIXES = frozenset({"0", "1", "k", "s", "m", "l", "xl", "xs", "xxs", "xxl", "nl", "moe", "p"})
_QUANTIZATION = re.compile(
    r"(?<![^-._])(?:UD[-_])?(?:I?Q\d+(?:_[0-9A-Z]+?)*?|TQ\d_\d|B?F(?:P?8|P?16|P?32)|(?:MX|NV)FP4(?:_MOE)?)(?=$|[-.])",
    re.IGNORECASE,
)
_BEGUN = re.compile(r"i?q\d+|tq\d+|k|mxfp4|nvfp4")


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The one model: its listing, all that was seen there, and the files."""

    listing: Listing
    seen: Survey
    family: Family


def of_selector(listing: Listing, selector: str, asked: Asked) -> Selected:
    """The GGUF model that ``selector`` means, here or in folders below; the parts of a split are one.

    Raises CheckpointNotFoundError or AmbiguousCheckpointError with the models that are there, ConfigError where
    ``asked`` is of another format or of a variant.
    """
    if asked.format not in (None, "gguf"):
        raise _excluded(selector, "use_format", f"and use_format={asked.format!r} (--format {asked.format})")
    if asked.variant is not None:
        raise _excluded(selector, "variant", f"which has no variant={asked.variant!r} (--variant {asked.variant})")
    here = list(_models(listing))
    found = [each for each in here if _matches(each, selector)]
    found = [each for each in found if not each.family.tier] or found
    if len(found) == 1:
        return found[0]
    raise _several(listing, selector, found) if found else _none(listing, selector, here)


def quantizations(names: Iterable[str]) -> list[str]:
    """What a selector could be, by names that follow the usage of llama.cpp."""
    found = (match[0] for name in names if (match := _last(_stem(name))) is not None)
    return list(dict.fromkeys(found))


def _models(listing: Listing) -> Iterator[Selected]:
    """All GGUF models, those of the place itself first."""
    level, seen_folders = [listing], 0
    for _ in range(_DEPTH):
        below: list[Listing] = []
        for each in level:
            seen = survey(each.names(), form="gguf")
            yield from (Selected(listing=each, seen=seen, family=f) for f in seen.families if f.format == "gguf")
            names = [name for name in each.folders() if not name.startswith(".")]
            names = names[: max(_MOST_FOLDERS - seen_folders, 0)]
            seen_folders += len(names)
            below += [found for name in names if (found := each.below(name)) is not None]
        level = below


def _matches(model: Selected, selector: str) -> bool:
    """By the file's own name; by its folder's, where its own says nothing of a quantization."""
    stem = model.family.stem
    if _says(stem, selector):
        return True
    return _last(stem) is None and _says(model.listing.root.rpartition("/")[2], selector)


def _says(text: str, selector: str) -> bool:
    pattern = re.compile(rf"(?:^|(?<=[-._])){re.escape(selector)}(?=$|[-._])", re.IGNORECASE)
    return any(_is_whole(text, match) for match in pattern.finditer(text))


def _is_whole(text: str, match: re.Match[str]) -> bool:
    """Whether the match is a word of its own, and no part of a longer quantization: ``K_M``, ``Q4_K`` of ``Q4_K_M``."""
    before = re.split("[-._]", text[: match.start()].rstrip("-._"))[-1].lower()
    after = re.split("[-._]", text[match.end() :].lstrip("-._"))[0].lower()
    began_earlier = text[: match.start()].endswith("_") and _BEGUN.fullmatch(before) is not None
    goes_on = text[match.end() :].startswith("_") and after in _SUFFIXES
    return before not in _SPECIAL and not began_earlier and not goes_on


def _last(stem: str) -> re.Match[str] | None:
    return next(iter(reversed(list(_QUANTIZATION.finditer(stem)))), None)


def _stem(name: str) -> str:
    return re.sub(r"(-[0-9]+-of-[0-9]+)?\.gguf$", "", name.rpartition("/")[2], flags=re.IGNORECASE)


def _titles(listing: Listing, models: list[Selected]) -> list[str]:
    def title(model: Selected) -> str:
        return f"{model.listing.root}/{model.family.title}".removeprefix(f"{listing.root}/")

    return [title(model) for model in models]


def _excluded(selector: str, option: str, why: str) -> ConfigError:
    fix = f"Leave out one of them: :{selector}, or {option}="
    return ConfigError(f"the reference chooses a GGUF file (:{selector}), {why}", option=option, fix=fix)


def _none(listing: Listing, selector: str, here: list[Selected]) -> CheckpointNotFoundError:
    if not here:
        return _no_gguf(listing, selector)
    known = quantizations([model.family.members[0].name for model in here])
    fix = f"Give one of those that are there: {', '.join(f':{each}' for each in known)}." if known else None
    return CheckpointNotFoundError(
        "no GGUF file of this quantization",
        path=listing.root,
        expected=f":{selector}",
        found=some(_titles(listing, here)),
        fix=fix or "Give the file, or another reference.",
    )


def _no_gguf(listing: Listing, selector: str) -> CheckpointNotFoundError:
    others = [f"{family.title} (format {family.format})" for family in survey(listing.names()).families]
    return CheckpointNotFoundError(
        f"no GGUF files here, among which :{selector} would choose",
        path=listing.root,
        expected="*.gguf",
        found=some(others or [*listing.names(), *(f"{folder}/" for folder in listing.folders())]),
        fix=f"Leave out :{selector}." if others else "Give the folder or repository that has them.",
    )


def _several(listing: Listing, selector: str, found: list[Selected]) -> AmbiguousCheckpointError:
    return AmbiguousCheckpointError(
        "several GGUF models of this quantization",
        path=listing.root,
        expected=f"one for :{selector}",
        found=some(_titles(listing, found)),
        fix="Give the file that is meant.",
    )
