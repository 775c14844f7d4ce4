# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: one parser, one dtype table and one set of byte-range rules for every reader."""

from weight_readers_safetensors.content import foreign_content
from weight_readers_safetensors.dtypes import DTYPES, Dtype, dtype_of, torch_dtype
from weight_readers_safetensors.header import Header, read_header, scan_header
from weight_readers_safetensors.known import HeaderCache
from weight_readers_safetensors.ranges import sliced_shape, stored_shape, wanted_ranges
from weight_readers_safetensors.shards import read_headers
from weight_readers_safetensors.wanted import plan

__all__ = [
    "DTYPES",
    "Dtype",
    "Header",
    "HeaderCache",
    "dtype_of",
    "foreign_content",
    "plan",
    "read_header",
    "read_headers",
    "scan_header",
    "sliced_shape",
    "stored_shape",
    "torch_dtype",
    "wanted_ranges",
]
