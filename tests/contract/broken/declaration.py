# SPDX-License-Identifier: Apache-2.0
"""Readers that are registered or declared wrongly, or cannot be made."""

from __future__ import annotations

from contract.broken.bases import Sound
from contract.broken.registry import breaks

for _rule in (
    "one_distribution_registers_the_reader",
    "importing_its_hook_module_adds_no_package_but_its_own",
    "describing_it_imports_no_backend",
    "the_declaration_goes_through_json_and_pickle",
    "made_without_options_it_is_what_it_declared",
    "views_of_the_file_are_declared_as_lifetime_and_as_feature_or_not_at_all",
    "every_declared_option_is_checked_and_named_in_the_error",
    "every_declared_feature_is_one_that_can_be_held_against_it",
    "the_protocols_are_those_of_the_declared_features",
):
    breaks(_rule)(Sound)


@breaks("its_hooks_are_sound_and_make_a_reader")
class _CannotBeMade(Sound):
    def __init__(self) -> None:
        raise OSError("libacme.so: cannot open shared object file")
