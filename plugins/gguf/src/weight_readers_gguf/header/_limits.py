# SPDX-License-Identifier: Apache-2.0
"""What a header may ask of its reader. Each limit is far above any file known, and small enough to be walked."""

MAX_HEADER_BYTES = 1 << 30
MAX_PAIRS = 1 << 16
"""Metadata keys. A model has some dozens; files of image models have one for each reshaped tensor."""
MAX_TENSORS = 1 << 16
MAX_ITEMS = 1 << 22
"""Strings in all arrays together. The largest vocabularies have 10^6 with their merges."""
NESTED_COST = 64
"""As many strings as an array within an array counts for: it takes that much longer to pass over."""
MAX_NAME_BYTES = (1 << 16) - 1
"""Bytes of a key (docs/gguf.md of ggml) or of a tensor's name."""
MAX_NAMES_BYTES = 1 << 24
"""Bytes of all keys and names, which stay in memory."""
MAX_DEPTH = 4
"""Arrays within arrays. llama.cpp reads none at all."""
MAX_DIMS = 8
"""ggml has 4; convolutions over time have 5 (leejet/stable-diffusion.cpp#1759)."""
MAX_ELEMENTS = 1 << 60
"""Sizes of 0 counted as 1: in 8 bytes each they can be addressed, so that torch can make the shape of any tensor."""
MAX_ALIGNMENT = 1 << 20
MAX_PROBLEMS = 100
"""Problems collected per file before reading its header stops."""
