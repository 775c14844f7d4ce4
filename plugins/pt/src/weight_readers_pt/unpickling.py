# SPDX-License-Identifier: Apache-2.0
"""Pickles taken apart without importing or calling anything that they name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any, BinaryIO, ClassVar

from weight_readers_pt.records import Storage, StorageType
from weight_readers_pt.stand_ins import IGNORED, STAND_INS, Call

MAX_PICKLE_BYTES = 256 << 20
"""The longest pickle that is read. That of 100,000 tensors has about 20 MiB."""


class Bounded:
    """The bytes of a pickle, and no more than `MAX_PICKLE_BYTES` of them however many it asks for at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MAX_PICKLE_BYTES

    def read(self, count: int) -> bytes:
        left = self._left - count
        if count < 0 or left < 0:
            raise self._too_long()
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        self._left = left
        return data

    def readline(self) -> bytes:
        line = self._file.readline(self._left + 1)
        if len(line) > self._left:
            raise self._too_long()
        if not line.endswith(b"\n"):
            raise EOFError
        self._left -= len(line)
        return line

    def _too_long(self) -> pickle.UnpicklingError:
        return pickle.UnpicklingError(f"it asks for more than {MAX_PICKLE_BYTES} bytes")


# The one written in Python: that in C makes room for whatever number a memo entry claims (64 GB from 5 bytes), and
# does not let opcodes be replaced.
class InertUnpickler(pickle._Unpickler):
    """Builds dicts, lists, tuples, texts, numbers and the records of this package, and nothing else.

    ``unknown`` are the names that the file asked for and that have no stand-in, in its order; ``storages`` are those
    that its tensors use, by key. Raises whatever a broken pickle makes Python raise; see `load_inert`.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    # What the machine has, and its type stubs do not say.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]

    def __init__(self, file: Bounded | BytesIO) -> None:
        super().__init__(file, encoding="utf-8", errors="replace")
        self.unknown: dict[str, None] = {}
        self.storages: dict[str, Storage] = {}
        self._pairs = 0

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return Call(self._ordered)
        if full not in STAND_INS:
            self.unknown.setdefault(full)
        return STAND_INS.get(full, IGNORED)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"it uses code {code} of Python's extension registry")

    def persistent_load(self, pid: Any) -> Storage:
        """``("storage", type, key, location, elements)``; in old files also ``(key, offset, elements)`` of a view."""
        match pid:
            case ("storage", StorageType() as kind, str(key), _, int(count), *view) if 0 <= count < 1 << 60:
                storage = Storage(key, kind.dtype, count * kind.itemsize)
                self._remember(storage)
                return _view(storage, kind, view[0] if view else None)
        raise pickle.UnpicklingError("it refers to something that is no storage")

    def _remember(self, storage: Storage) -> None:
        known = self.storages.setdefault(storage.key, storage)
        if known.nbytes < storage.nbytes:
            self.storages[storage.key] = storage

    def _ordered(self, pairs: Any = ()) -> dict[Any, Any]:
        # One list may be named a million times: what copies of it take is bounded as the pickle is.
        self._pairs += len(pairs)
        if self._pairs > MAX_PICKLE_BYTES // 64:
            raise pickle.UnpicklingError("it builds too many mappings of one list")
        return dict(pairs)

    def _called(self, what: Any, arguments: Any) -> Any:
        if not isinstance(what, Call) or not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("it calls something that is nothing to call")
        return what.build(*arguments)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._called(self.stack[-1], arguments)

    def _reduce_with_keywords(self) -> None:
        self.stack.pop()
        self._reduce()

    def _instance(self) -> None:
        module, name = (self.readline()[:-1].decode() for _ in range(2))
        arguments = tuple(self.pop_mark())
        self.append(self._called(self.find_class(module, name), arguments))

    def _object(self) -> None:
        what, *arguments = self.pop_mark()
        self.append(self._called(what, tuple(arguments)))

    def _state(self) -> None:
        """What a class would take as its state: nothing here has any."""
        self.stack.pop()

    def _bytearray(self) -> None:
        """As long as the bytes that are there: Python makes room for what the opcode claims, and clears it, first."""
        count = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(count)))

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.NEWOBJ[0]] = _reduce
    dispatch[pickle.NEWOBJ_EX[0]] = _reduce_with_keywords
    dispatch[pickle.INST[0]] = _instance
    dispatch[pickle.OBJ[0]] = _object
    dispatch[pickle.BUILD[0]] = _state
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray


def _view(storage: Storage, kind: StorageType, view: Any) -> Storage:
    match view:
        case None:
            return storage
        case (_, int(offset), int(count)) if min(offset, count) >= 0:
            skip, nbytes = offset * kind.itemsize, count * kind.itemsize
            if skip + nbytes <= storage.nbytes:
                return storage._replace(skip=skip, nbytes=nbytes)
    raise pickle.UnpicklingError("it refers to a part of a storage that is none")


class Malformed(Exception):
    """The bytes are no pickle that can be taken apart."""


def load_inert(file: Bounded | BytesIO) -> tuple[Any, InertUnpickler]:
    """One pickle from ``file``, and the unpickler that saw it. Raises Malformed, and OSError as reading does."""
    unpickler = InertUnpickler(file)
    try:
        return unpickler.load(), unpickler
    except OSError:
        raise
    except Exception as error:  # Python's machine raises nearly anything for bytes that are no pickle
        raise Malformed(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends early"
    return str(error) if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
