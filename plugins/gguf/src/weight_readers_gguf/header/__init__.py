# SPDX-License-Identifier: Apache-2.0
"""The header of one GGUF file: metadata and the table of tensors, held against every rule of the format."""

from weight_readers_gguf.header._held import held_header
from weight_readers_gguf.header._read import GGUFHeader, read_header, scan_header
from weight_readers_gguf.header._tensor_infos import TensorInfo, is_addressable
from weight_readers_gguf.header.metadata import Metadata

__all__ = ["GGUFHeader", "Metadata", "TensorInfo", "held_header", "is_addressable", "read_header", "scan_header"]
