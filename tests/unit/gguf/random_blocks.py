# SPDX-License-Identifier: Apache-2.0
"""Bytes of packed blocks: any bit pattern of the codes is legal, so they are drawn at random, not quantized.

Each function returns uint8 ``[blocks, nbytes]``; reshape to ``[rows, row_bytes]`` as needed.
"""

from __future__ import annotations

import itertools

import numpy as np

from weight_readers_gguf.types import BY_NAME

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

HALVES = {
    **dict.fromkeys(["Q4_0", "Q5_0", "Q8_0", "Q1_0", "Q2_0", "IQ4_NL", "IQ4_XS"], (0,)),
    **dict.fromkeys(["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"], (0,)),
    **dict.fromkeys(["Q4_1", "Q5_1", "Q4_K", "Q5_K"], (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
"""Where a block has its float16 scales (and minimums), in bytes. Source: block_* of ggml-common.h."""

SPREAD = {"IQ1_M": (49, 51, 53, 55)}
"""Where it has one float16 in the high four bits of four bytes, the lowest four bits first."""

BYTES = {"MXFP4": (0,), "NVFP4": (0, 1, 2, 3)}
"""Where it has scales of one byte (E8M0, UE4M3)."""

SPECIAL_HALVES = {
    "zero": 0x0000,
    "minus zero": 0x8000,
    "smallest denormal": 0x0001,
    "largest denormal": 0x03FF,
    "negative denormal": 0x8155,
    "smallest normal": 0x0400,
    "half": 0x3800,
    "one": 0x3C00,
    "largest": 0x7BFF,
    "most negative": 0xFBFF,
    "infinity": 0x7C00,
    "minus infinity": 0xFC00,
    "nan": 0x7E00,
    "negative nan": 0xFE01,
    "signalling nan": 0x7D55,
}
SPECIAL_BYTES = (0x00, 0x01, 0x02, 0x07, 0x08, 0x38, 0x7D, 0x7E, 0x7F, 0x80, 0x81, 0x88, 0xC0, 0xFD, 0xFE, 0xFF)


def random_blocks(name: str, blocks: int, seed: int = 0) -> Bytes:
    """Random codes under random finite scales, denormal ones and both signs among them."""
    kind = BY_NAME[name]
    random = np.random.default_rng([kind.id, seed])
    found = random.integers(0, 256, (blocks, kind.nbytes), dtype=np.uint8)
    finite = random.integers(0, 0x7C00, (blocks, 2), dtype=np.uint16) | random.integers(0, 2, (blocks, 2)).astype(
        np.uint16
    ) << np.uint16(15)
    for each in range(blocks):
        _set_halves(name, found[each], [int(value) for value in finite[each]])
    return found


def every_position(name: str) -> Bytes:
    """One random block, and after it as many as it has bytes: each with the bits of one byte flipped.

    A code that is read for another's place, or not at all, shows. The scale is 1, the minimum 0.5.
    """
    kind = BY_NAME[name]
    base = np.random.default_rng(kind.id).integers(0, 256, kind.nbytes, dtype=np.uint8)
    found = np.tile(base, (kind.nbytes + 1, 1))
    found[1:] ^= np.eye(kind.nbytes, dtype=np.uint8) * np.uint8(0xFF)
    for block in found:
        _set_halves(name, block, [SPECIAL_HALVES["one"], SPECIAL_HALVES["half"]])
        block[list(BYTES.get(name, ()))] = 0x38 if name == "NVFP4" else 0x7F
    return found


def places_of_scales(name: str) -> set[int]:
    """The bytes of a block that `every_position` sets."""
    return {at + byte for at in HALVES.get(name, ()) for byte in (0, 1)} | set(BYTES.get(name, ()))


def adversarial_blocks(name: str, seed: int = 0) -> Bytes:
    """Random codes, all ones and all zeros, under every special scale (all pairs of them, where there are two)."""
    if name in BYTES:
        return _with_special_bytes(name, seed)
    scales = list(itertools.product(SPECIAL_HALVES.values(), repeat=len(HALVES.get(name, (0,)))))
    found = _filled(name, len(scales), seed)
    for block, values in zip(found, scales * 3, strict=True):
        _set_halves(name, block, values)
    return found


def _with_special_bytes(name: str, seed: int) -> Bytes:
    """All 256 codes of a scale, and the special ones in each place."""
    places = BYTES[name]
    codes = [(code,) * len(places) for code in range(256)]
    codes += [tuple(SPECIAL_BYTES[(at + shift) % 16] for shift in range(len(places))) for at in range(16)]
    found = _filled(name, len(codes), seed)
    for block, values in zip(found, codes * 3, strict=True):
        block[list(places)] = values
    return found


def _filled(name: str, blocks: int, seed: int) -> Bytes:
    kind = BY_NAME[name]
    random = np.random.default_rng([kind.id, seed, 1]).integers(0, 256, (blocks, kind.nbytes), dtype=np.uint8)
    return np.concatenate([random, np.full_like(random, 0xFF), np.zeros_like(random)])


def _set_halves(name: str, block: Bytes, values: list[int] | tuple[int, ...]) -> None:
    for at, value in zip(HALVES.get(name, ()), values, strict=False):
        block[at : at + 2] = value & 0xFF, value >> 8
    for shift, at in zip((0, 4, 8, 12), SPREAD.get(name, ()), strict=False):
        block[at] = (block[at] & 0x0F) | ((values[0] >> shift & 0x0F) << 4)
