# SPDX-License-Identifier: Apache-2.0
"""Twenty cases that GGUF readers are known to get wrong, and the tests that hold this one to each of them.

The table is read by people; the tests below see to it that what it names is there, each under the name it is given.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

CASES: dict[str, tuple[str, ...]] = {
    "1 a truncated payload": (
        "unit/gguf/test_header_refused.py::a_cut_file_is_told_with_its_sizes_and_the_first_tensor_that_is_not_whole",
        "reports/test_gguf.py::the_size_is_held_against_the_header_before_any_tensor",
    ),
    "2 hostile lengths": (
        "unit/gguf/test_header_refused.py::a_count_that_the_file_has_no_room_for_is_refused",
        "unit/gguf/test_header_refused.py::a_length_beyond_the_end_of_the_file_is_refused",
        "unit/gguf/test_header_refused.py::an_endless_array_of_a_tiny_file_is_refused",
        "unit/gguf/test_header_refused.py::arrays_nested_deeper_than_4_are_refused",
        "unit/gguf/test_header_refused.py::more_than_8_dimensions_are_refused",
        "unit/gguf/test_header_cost.py::a_hostile_header_is_refused_or_read_in_less_than_20_megabytes",
        "unit/gguf/test_header_fuzz.py::a_mutated_header_is_refused_by_name_or_read_as_the_gguf_package_reads_it",
    ),
    "3 arithmetic beyond 64 bits, and tensors without elements": (
        "unit/gguf/test_header_refused.py::shapes_that_no_tensor_can_have_are_refused_even_without_elements",
        "unit/gguf/test_header_refused.py::an_offset_beyond_the_end_of_the_file_is_refused",
        "unit/gguf/test_header.py::a_tensor_without_elements_is_one_of_no_bytes",
        "unit/gguf/test_tensors.py::a_packed_matrix_without_rows_or_columns_is_packed",
    ),
    "4 overlaps, unaligned offsets, gaps": (
        "unit/gguf/test_header_refused.py::an_overlap_is_refused_naming_both_tensors",
        "unit/gguf/test_header_refused.py::an_unaligned_offset_is_refused",
        "unit/gguf/test_header.py::tensors_may_lie_in_any_order_and_with_gaps",
    ),
    "5 the alignment key": (
        "unit/gguf/test_header_refused.py::an_alignment_that_is_none_is_refused_with_its_value_and_type",
        "unit/gguf/test_header.py::the_alignment_may_be_up_to_a_mebibyte",
    ),
    "6 byte order and versions": (
        "unit/gguf/test_header_refused.py::the_opposite_byte_order_is_named_before_the_version",
        "unit/gguf/test_header_refused.py::a_version_that_is_not_read_is_named",
    ),
    "7 names": (
        "unit/gguf/test_header.py::a_name_may_be_that_long",
        "unit/gguf/test_header_refused.py::a_name_that_cannot_be_shown_is_refused",
        "unit/gguf/test_header_refused.py::two_tensors_of_one_name_are_refused",
        "unit/gguf/test_splits.py::a_name_in_two_files_is_a_duplicate",
        "unit/gguf/test_methods_config.py::two_tensors_that_get_one_name_are_refused",
        "unit/gguf/test_tensors.py::a_tensor_of_the_name_of_packed_blocks_is_a_duplicate",
    ),
    "8 types nobody knows, and removed ones": (
        "unit/gguf/test_header.py::a_type_that_is_not_known_spoils_neither_metadata_nor_other_tensors",
        "unit/gguf/test_tensors.py::an_unknown_type_is_refused_naming_its_id_and_the_known_ones",
        "unit/gguf/test_tensors.py::a_removed_type_is_refused_by_its_old_name",
        "unit/gguf/test_reader.py::a_tensor_of_an_unknown_type_stops_only_those_who_want_it",
    ),
    "9 Q8_1 has 36 bytes, and holds no weights": (
        "unit/gguf/test_header.py::q8_1_takes_36_bytes_whatever_the_gguf_package_says",
        "unit/gguf/test_tensors.py::formats_of_activations_are_refused",
        "unit/gguf/test_dequant_dispatch.py::intermediate_results_are_refused",
    ),
    "10 BF16 is reinterpreted": (
        "unit/gguf/test_reader.py::numbers_keep_their_dtype_and_bits",
        "unit/gguf/test_reader.py::numbers_of_any_rank_keep_their_bits_wherever_they_begin",
    ),
    "11 integers and F64 are numbers": (
        "unit/gguf/test_tensors.py::numbers_are_delivered_as_they_are_at_any_rank",
        "unit/gguf/test_reader.py::numbers_of_any_rank_keep_their_bits_wherever_they_begin",
    ),
    "12 original shapes": (
        "unit/gguf/test_tensors.py::an_original_shape_of_whole_blocks_stays_packed_in_its_own_rows",
        "unit/gguf/test_tensors.py::an_original_shape_of_rows_that_cut_blocks_is_dequantized",
        "unit/gguf/test_tensors.py::an_original_shape_may_have_1_to_5_dimensions",
        "unit/gguf/test_tensors.py::an_original_shape_that_is_none_of_the_tensor_is_refused",
        "unit/gguf/test_tensors.py::an_original_shape_that_is_no_array_of_integers_is_refused",
    ),
    "13 quantized tensors that no layer takes packed": (
        "unit/gguf/test_tensors.py::a_quantized_tensor_that_no_layer_takes_packed_is_dequantized",
        "unit/gguf/test_reader.py::what_no_layer_takes_packed_is_dequantized_and_says_why",
        "unit/gguf/test_model_prepare.py::are_refused_where_strict_is_asked_for",
        "unit/gguf/test_model_fill.py::says_what_became_of_every_tensor",
    ),
    "14 float32 islands": (
        "unit/gguf/test_model_fill.py::of_an_island_are_float32_with_no_step_between",
        "unit/gguf/test_minimax_h3.py::of_either_kind_fills_float32_parameters_with_all_their_bits",
        "unit/gguf/test_methods_linear.py::the_output_is_that_of_the_dense_weight",
    ),
    "15 partitions that cut blocks, and those that do not": (
        "unit/gguf/test_methods_linear.py::an_input_partition_that_cuts_a_block_is_refused_before_anything_is_allocated",
        "unit/gguf/test_parallel.py::a_cut_through_a_block_is_refused_with_the_sizes_that_fit",
        "unit/gguf/test_parallel.py::a_columns_part_holds_the_numbers_of_the_dense_slice",
        "unit/gguf/test_parallel.py::heads_of_a_fused_qkv_are_split_by_themselves",
        "unit/gguf/test_methods_ranks.py::ranks_that_split_the_output_hold_and_compute_the_whole",
        "unit/gguf/test_methods_ranks.py::ranks_that_split_the_input_hold_and_compute_the_whole",
    ),
    "16 fused layers of several types": (
        "unit/gguf/test_methods_fused.py::shards_of_several_types_lie_in_one_buffer_without_padding",
        "unit/gguf/test_methods_fused.py::a_fused_layer_of_several_types_computes_in_its_own_order",
        "unit/gguf/test_methods_fused.py::a_shard_of_plain_numbers_lies_beside_packed_ones",
        "unit/gguf/test_model_fill.py::rows_are_reordered_as_packed_bytes_and_stay_packed",
    ),
    "17 empty and odd activations": (
        "unit/gguf/test_methods_linear.py::no_tokens_give_no_rows",
        "unit/gguf/test_methods_linear.py::strides_of_the_input_do_not_matter",
        "unit/gguf/test_methods_linear.py::a_bias_of_another_dtype_takes_part_in_that_of_the_input",
    ),
    "18 more than 2^31 elements": (
        "unit/gguf/test_methods_fused.py::offsets_beyond_four_gibibytes_are_exact_and_shapes_beyond_two_thirty_one_elements_too",
        "unit/gguf/test_parallel.py::offsets_of_tensors_beyond_two_thirty_one_elements_are_exact",
        "unit/gguf/test_dequant_torch.py::a_chunk_beyond_the_range_of_32_bits_is_found",
        "gpu/test_gguf_triton.py::weights_of_more_than_2_31_elements_are_decoded_to_the_last",
    ),
    "19 lifetime of mappings": (
        "unit/gguf/test_reader.py::tensors_outlive_the_reader_and_the_name_of_the_file",
        "unit/gguf/test_reader.py::a_write_into_a_packed_tensor_never_reaches_the_file",
        "unit/gguf/test_header.py::no_descriptor_and_no_mapping_of_the_file_stays_open",
        "unit/gguf/test_model_fill.py::copies_what_a_reader_maps_read_only",
    ),
    "20 split sets, references and conflicts": (
        "unit/gguf/test_splits.py::any_file_of_a_set_finds_the_whole_set_in_order",
        "unit/gguf/test_splits.py::a_missing_file_of_a_set_is_named",
        "unit/gguf/test_splits.py::one_number_twice_is_refused_naming_both_files",
        "unit/gguf/test_splits.py::a_file_of_another_set_is_foreign",
        "unit/loader/test_selectors.py::a_selector_means_exactly_one_model",
        "unit/loader/test_selectors.py::several_models_of_a_quantization_are_listed",
        "unit/loader/test_references.py::the_hub_is_asked_for_what_is_nothing_here",
        "reports/test_gguf.py::no_file_is_opened_and_no_socket",
    ),
    "and: factors of NVFP4, scales that are no numbers": (
        "unit/gguf/test_tensors.py::nvfp4_with_a_factor_beside_it_is_refused_rather_than_delivered_without",
        "unit/gguf/test_tensors.py::so_it_is_with_its_factor_in_another_file_of_the_set",
        "unit/gguf/test_dequant_torch.py::special_scales_have_the_bits_of_ggml",
    ),
}


@cache
def defined_in(path: str) -> frozenset[str]:
    return frozenset(re.findall(r"def test_(\w+)\(", (TESTS / path).read_text()))


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_the_tests_that_the_table_names(case: str) -> None:
    named = [name.split("::") for name in CASES[case]]
    assert [f"{path}::{test}" for path, test in named if test not in defined_in(path)] == []


def test_all_twenty_are_there() -> None:
    assert [int(case.split()[0]) for case in list(CASES)[:20]] == list(range(1, 21))
