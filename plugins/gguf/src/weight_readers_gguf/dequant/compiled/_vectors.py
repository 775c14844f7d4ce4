# SPDX-License-Identifier: Apache-2.0
"""Short vectors for kernels: bytes in, bit operations on int32 lanes, arithmetic on float32 lanes, numbers out.

A loop over the 16 or 32 numbers of a block is too short for LLVM: it unrolls it before its vectorizer sees it, and the
code is scalar. So kernels say what they mean: ``put(out, i, 0, numbers(bytes16(blocks, i, 2) & 15) * d)``. Vectors are
plain LLVM ones, which every target has. No operation carries a fast-math flag, so none is contracted.

Operators: ``& | << >> + - *`` of two vectors, or of a vector and a number; ``>>`` shifts zeros in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from weight_readers_gguf.dequant.compiled._numba import cgutils, extending, ir, models, templates, types

_INT, _FLOAT = ir.IntType(32), ir.FloatType()


class Lanes(types.Type):  # type: ignore[misc]
    """The type of a vector; ``element`` is int32 or float32."""

    def __init__(self, element: Any, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"{element}x{count}")

    @property
    def llvm(self) -> Any:
        return ir.VectorType(_INT if self.element == types.int32 else _FLOAT, self.count)


@extending.register_model(Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, kind.llvm)


def _reads(element: Any, count: int, widened: str | None = None) -> Any:
    """An intrinsic ``(array, row, column) -> vector`` of the numbers from there on."""
    kind = Lanes(element, count)
    stored = ir.VectorType(ir.IntType(8), count) if widened else kind.llvm

    @extending.intrinsic
    def read(typing: Any, array: Any, row: Any, column: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = builder.load(_place(context, builder, sig.args[0], args, stored), align=1)
            return getattr(builder, widened)(found, kind.llvm) if widened else found

        return kind(array, types.intp, types.intp), emit

    return read


def _place(context: Any, builder: Any, kind: Any, args: Any, pointed: Any) -> Any:
    """The address of ``array[row, column]``."""
    array = context.make_array(kind)(context, builder, args[0])
    _, width = cgutils.unpack_tuple(builder, array.shape)
    at = builder.add(builder.mul(args[1], width), args[2])
    return builder.bitcast(builder.gep(array.data, [at]), pointed.as_pointer())


bytes16 = _reads(types.int32, 16, "zext")
signed16 = _reads(types.int32, 16, "sext")
floats4 = _reads(types.float32, 4)
floats8 = _reads(types.float32, 8)


def _fields(width: int) -> Any:
    """An intrinsic ``(word) -> int32x16``: the word's lowest 16 fields of ``width`` bits, the lowest first."""
    kind = Lanes(types.int32, 16)

    @extending.intrinsic
    def fields(typing: Any, word: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            shifts = ir.Constant(kind.llvm, [width * lane for lane in range(16)])
            mask = ir.Constant(kind.llvm, [(1 << width) - 1] * 16)
            return builder.and_(builder.lshr(_all_lanes(builder, kind, args[0]), shifts), mask)

        return kind(types.int32), emit

    return fields


bits16, pairs16 = _fields(1), _fields(2)


def _writes(*, streamed: bool) -> Any:
    """An intrinsic ``(array, row, column, vector)`` that writes the vector there; ``streamed`` past the caches."""

    @extending.intrinsic
    def write(typing: Any, array: Any, row: Any, column: Any, vector: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = sig.args[3]
            place = _place(context, builder, sig.args[0], args, kind.llvm)
            stored = builder.store(args[3], place, align=4 * (kind.count if streamed else 1))
            if streamed:
                once = ir.Constant(_INT, 1)
                stored.set_metadata("nontemporal", builder.module.add_metadata([once]))
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, vector), emit

    return write


put, put_streamed = _writes(streamed=False), _writes(streamed=True)
STREAM_ALIGNMENT = 64
"""Of the array that `put_streamed` writes to, in bytes: vectors of 16 float32 are written whole."""


@extending.intrinsic
def numbers(typing: Any, vector: Any) -> Any:
    """Integers as float32."""
    kind = Lanes(types.float32, vector.count)
    return kind(vector), lambda context, builder, sig, args: builder.sitofp(args[0], kind.llvm)


def _define(operation: Any, of_ints: str, of_floats: str | None = None) -> None:
    """Give vectors an operator: by the names of LLVM's instructions."""

    class Template(templates.AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) != 2 or not isinstance(args[0], Lanes) or (args[0].element == types.float32 and not of_floats):
                return None
            other = args[0] if isinstance(args[1], Lanes) else args[0].element
            return templates.signature(args[0], args[0], other)

    templates.infer_global(operation)(Template)
    emit = _emitter({types.int32: of_ints, types.float32: of_floats or ""})
    for other in (Lanes, types.Integer, types.Float):
        extending.lower_builtin(operation, Lanes, other)(emit)


def _emitter(instructions: dict[Any, str]) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, (left, right) = sig.args[0], args
        if not isinstance(sig.args[1], Lanes):
            right = _all_lanes(builder, kind, right)
        return getattr(builder, instructions[kind.element])(left, right)

    return emit


def _all_lanes(builder: Any, kind: Lanes, scalar: Any) -> Any:
    undefined = ir.Constant(kind.llvm, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_INT, 0))
    zeros = ir.Constant(ir.VectorType(_INT, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, undefined, zeros)


_define(operator.and_, "and_")
_define(operator.or_, "or_")
_define(operator.lshift, "shl")
_define(operator.rshift, "lshr")
_define(operator.add, "add", "fadd")
_define(operator.sub, "sub", "fsub")
_define(operator.mul, "mul", "fmul")
