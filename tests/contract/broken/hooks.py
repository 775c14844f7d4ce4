# SPDX-License-Identifier: Apache-2.0
"""The hooks of readers that are broken on purpose: one for each rule of the testkit, called as the test that finds it.

Light, as hooks have to be; what is broken in the readers themselves is in the other modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weight_readers import Feature, Lifetime, Order, ReaderInfo, Requirement, WeightReader, Writes, hookimpl

_COMMON = frozenset({Feature.KEY_FILTER, Feature.SLICES, Feature.MULTI_SLICES, Feature.BOUNDED_MEMORY})
MAPPED = ReaderInfo(
    name="x",
    formats=frozenset({"safetensors"}),
    features=_COMMON | {Feature.FILE_MAPPING},
    lifetime=Lifetime.MAPPED,
    writes=Writes.COPY_ON_WRITE,
)
OWNED = ReaderInfo(name="x", formats=frozenset({"safetensors"}), features=_COMMON, lifetime=Lifetime.OWNED)
INTO = replace(OWNED, features=_COMMON | {Feature.READ_INTO, Feature.CONCURRENT})
PACKED = replace(MAPPED, formats=frozenset({"gguf"}), features=MAPPED.features | {Feature.PACKED})
BASES = {"mapped": MAPPED, "owned": OWNED, "into": INTO, "packed": PACKED}


class Declared(ReaderInfo):
    """A declaration that is none of core's own."""


def with_feature(info: ReaderInfo, feature: Feature) -> ReaderInfo:
    return replace(info, features=info.features | {feature})


def without_features(info: ReaderInfo, *features: Feature) -> ReaderInfo:
    return replace(info, features=info.features.difference(features))


DECLARED: dict[str, ReaderInfo] = {
    "test_the_declaration_goes_through_json_and_pickle": Declared(
        **{name: getattr(MAPPED, name) for name in MAPPED.__dataclass_fields__}
    ),
    "test_views_of_the_file_are_declared_as_lifetime_and_as_feature_or_not_at_all": replace(
        MAPPED, lifetime=Lifetime.OWNED
    ),
    "test_every_declared_option_is_checked_and_named_in_the_error": replace(MAPPED, options=frozenset({"turbo"})),
    "test_every_declared_feature_is_one_that_can_be_held_against_it": with_feature(MAPPED, Feature.DISTRIBUTED),
    "test_the_protocols_are_those_of_the_declared_features": with_feature(MAPPED, Feature.LISTS),
    "test_describing_it_imports_no_backend": replace(
        MAPPED, requires=(Requirement(module="pygments", distribution="pygments"),)
    ),
    "test_the_declared_dtypes_are_those_of_its_files": replace(MAPPED, dtypes=frozenset({"float32"})),
    "test_a_filter_decides_or_is_refused": without_features(MAPPED, Feature.KEY_FILTER),
    "test_slices_agree_with_indexing_in_torch_or_are_refused": without_features(
        MAPPED, Feature.SLICES, Feature.MULTI_SLICES
    ),
    "test_the_order_of_the_header_is_told_from_that_of_the_bytes": replace(MAPPED, order=Order.HEADER),
    "test_what_a_write_does_is_declared": replace(MAPPED, writes=Writes.READ_ONLY),
    "test_direct_reads_leave_the_page_cache_alone": with_feature(OWNED, Feature.DIRECT_IO),
}
"""What the readers declare that declare something wrong; the others declare what their base does."""


class Hooks:
    def __init__(self, rule: str, base: str) -> None:
        self.rule = rule
        self.base = base

    @property
    def info(self) -> ReaderInfo:
        return replace(DECLARED.get(self.rule, BASES[self.base]), name=self.rule)

    @hookimpl
    def weight_readers_describe(self) -> ReaderInfo:
        if self.rule == "test_describing_it_imports_no_backend":
            import pygments  # noqa: F401
        return self.info

    @hookimpl
    def weight_readers_create(self, options: Mapping[str, Any]) -> WeightReader:
        from contract.broken import readers

        return readers.make(self.rule, self.info)


def __getattr__(rule: str) -> Hooks:
    """The plugin of a rule: entry points name them as attributes of this module."""
    base, _, name = rule.partition("__")
    if base not in BASES:
        raise AttributeError(rule)
    return Hooks(name, base)
