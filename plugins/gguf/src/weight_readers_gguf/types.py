# SPDX-License-Identifier: Apache-2.0
"""The types of tensors in GGUF files: ids, block sizes, and what torch makes of them.

Our own table, since that of an installed package may be older than the file (city96/ComfyUI-GGUF#457) or wrong
(``Q8_1`` in gguf 0.19: ggml-org/llama.cpp#29036). Source: ``ggml_type`` and ``type_traits`` of ggml.c; tests
compare it with ggml and with the gguf package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class GGMLType(NamedTuple):
    """One type: ``block`` elements take ``nbytes`` bytes. ``dtype`` is the torch dtype where an element is a number."""

    id: int
    name: str
    block: int
    nbytes: int
    dtype: str | None = None

    @property
    def is_packed(self) -> bool:
        """Whether elements come in blocks of quantized numbers, which torch sees as bytes."""
        return self.dtype is None


TYPES: Mapping[int, GGMLType] = {
    each.id: each
    for each in (
        GGMLType(0, "F32", 1, 4, "float32"),
        GGMLType(1, "F16", 1, 2, "float16"),
        GGMLType(2, "Q4_0", 32, 18),
        GGMLType(3, "Q4_1", 32, 20),
        GGMLType(6, "Q5_0", 32, 22),
        GGMLType(7, "Q5_1", 32, 24),
        GGMLType(8, "Q8_0", 32, 34),
        GGMLType(9, "Q8_1", 32, 36),
        GGMLType(10, "Q2_K", 256, 84),
        GGMLType(11, "Q3_K", 256, 110),
        GGMLType(12, "Q4_K", 256, 144),
        GGMLType(13, "Q5_K", 256, 176),
        GGMLType(14, "Q6_K", 256, 210),
        GGMLType(15, "Q8_K", 256, 292),
        GGMLType(16, "IQ2_XXS", 256, 66),
        GGMLType(17, "IQ2_XS", 256, 74),
        GGMLType(18, "IQ3_XXS", 256, 98),
        GGMLType(19, "IQ1_S", 256, 50),
        GGMLType(20, "IQ4_NL", 32, 18),
        GGMLType(21, "IQ3_S", 256, 110),
        GGMLType(22, "IQ2_S", 256, 82),
        GGMLType(23, "IQ4_XS", 256, 136),
        GGMLType(24, "I8", 1, 1, "int8"),
        GGMLType(25, "I16", 1, 2, "int16"),
        GGMLType(26, "I32", 1, 4, "int32"),
        GGMLType(27, "I64", 1, 8, "int64"),
        GGMLType(28, "F64", 1, 8, "float64"),
        GGMLType(29, "IQ1_M", 256, 56),
        GGMLType(30, "BF16", 1, 2, "bfloat16"),
        GGMLType(34, "TQ1_0", 256, 54),
        GGMLType(35, "TQ2_0", 256, 66),
        GGMLType(39, "MXFP4", 32, 17),
        GGMLType(40, "NVFP4", 64, 36),
        GGMLType(41, "Q1_0", 128, 18),
        GGMLType(42, "Q2_0", 64, 18),
    )
}
BY_NAME: Mapping[str, GGMLType] = {each.name: each for each in TYPES.values()}

REMOVED: Mapping[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids that ggml once gave and took back: files with them must be quantized anew."""

ACTIVATIONS = frozenset({"Q8_1", "Q8_K"})
"""Formats of intermediate results, which no file stores weights in."""

DEQUANTIZABLE = frozenset(each.name for each in TYPES.values() if each.is_packed) - ACTIVATIONS
"""The packed types that weights are stored in."""
