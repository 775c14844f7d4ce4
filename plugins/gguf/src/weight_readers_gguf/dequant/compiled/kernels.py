# SPDX-License-Identifier: Apache-2.0
"""Which kernel decodes which type, and the tables that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from weight_readers_gguf.dequant.compiled import codebook, k, legacy, looked_up, tables
from weight_readers_gguf.dequant.compiled._bits import Floats

Function = Callable[..., None]


class Kernel(NamedTuple):
    """``function(blocks, out, *tables)`` decodes blocks ``[n, nbytes]`` into ``out`` ``[n, elements of a block]``."""

    function: Function
    tables: tuple[Callable[[], Floats], ...] = ()


def _with_grid(name: str, function: Function, *more: Callable[[], Floats]) -> Kernel:
    return Kernel(function, (partial(tables.codebook, name), *more))


def _with_values(name: str, function: Function, *more: Callable[[], Floats]) -> Kernel:
    return Kernel(function, (partial(tables.values, name), *more))


KERNELS: Mapping[str, Kernel] = {
    "Q4_0": Kernel(legacy.q4_0),
    "Q4_1": Kernel(legacy.q4_1),
    "Q5_0": Kernel(legacy.q5_0),
    "Q5_1": Kernel(legacy.q5_1),
    "Q8_0": Kernel(legacy.q8_0),
    "Q1_0": Kernel(legacy.q1_0),
    "Q2_0": Kernel(legacy.q2_0),
    "TQ1_0": Kernel(legacy.tq1_0),
    "TQ2_0": Kernel(legacy.tq2_0),
    "Q2_K": Kernel(k.q2_k),
    "Q3_K": Kernel(k.q3_k),
    "Q4_K": Kernel(k.q4_k),
    "Q5_K": Kernel(k.q5_k),
    "Q6_K": Kernel(k.q6_k),
    "IQ4_NL": _with_values("IQ4_NL", looked_up.iq4_nl),
    "IQ4_XS": _with_values("IQ4_XS", looked_up.iq4_xs),
    "MXFP4": _with_values("MXFP4", looked_up.mxfp4, partial(tables.scales, "MXFP4")),
    "NVFP4": _with_values("NVFP4", looked_up.nvfp4, partial(tables.scales, "NVFP4")),
    "IQ2_XXS": _with_grid("IQ2_XXS", codebook.iq2_xxs, tables.signs_of_codes),
    "IQ2_XS": _with_grid("IQ2_XS", codebook.iq2_xs, tables.signs_of_codes),
    "IQ2_S": _with_grid("IQ2_S", codebook.iq2_s, tables.signs_of_bytes),
    "IQ3_XXS": _with_grid("IQ3_XXS", codebook.iq3_xxs, tables.signs_of_codes),
    "IQ3_S": _with_grid("IQ3_S", codebook.iq3_s, tables.signs_of_bytes),
    "IQ1_S": _with_grid("IQ1_S", codebook.iq1_s),
    "IQ1_M": _with_grid("IQ1_M", codebook.iq1_m),
}
