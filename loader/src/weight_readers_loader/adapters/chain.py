# SPDX-License-Identifier: Apache-2.0
"""Several adapters one after the other: one plan over the headers, one pass over the tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import torch

from weight_readers import AdapterError, TensorMeta, WeightReadersError
from weight_readers_loader.adapters.made import Adapter, Made, Tensors, is_packed
from weight_readers_loader.streams import Stream, ended
from weight_readers_loader.wording import NUMBERS, some

Weights = Iterable[tuple[str, torch.Tensor]]
Stage = Mapping[str, Made]


class Adapted:
    """What ``adapters`` make of ``tensors``; without any, the tensors themselves.

    ``tensors`` maps each name after all adapters to its header, and ``sources`` to the names in the checkpoint that it
    is made of. Raises AdapterError for whatever does not fit, before anything is read.
    """

    def __init__(self, adapters: Sequence[Adapter], tensors: Tensors, *, check: bool = False) -> None:
        self._before = tensors
        self._stages: list[tuple[Adapter, Stage]] = []
        for adapter in adapters:
            if not isinstance(adapter, Adapter):
                raise TypeError(f"adapters must be a list of Adapter, not of {type(adapter).__name__}")
            stage = _planned(adapter, tensors, check=check)
            self._stages.append((adapter, stage))
            tensors = {name: made.meta for name, made in stage.items()}
        self.tensors: Tensors = tensors

    def __bool__(self) -> bool:
        return bool(self._stages)

    def only(self, names: Collection[str]) -> Adapted:
        """The part that ``names``, after all adapters, are made by."""
        part = object.__new__(Adapted)
        wanted = set(names)
        part.tensors = {name: meta for name, meta in self.tensors.items() if name in wanted}
        part._before, part._stages = self._before if self._stages else part.tensors, []
        for adapter, stage in reversed(self._stages):
            kept = {name: made for name, made in stage.items() if name in wanted}
            part._stages.insert(0, (adapter, kept))
            wanted = {source for made in kept.values() for source in made.sources}
        return part

    @cached_property
    def needs(self) -> Set[str]:
        """The names in the checkpoint that anything is made of."""
        if not self._stages:
            return self.tensors.keys()
        return frozenset(source for sources in self.sources.values() for source in sources)

    def untouched(self) -> dict[str, str]:
        """Name after all adapters -> name in the checkpoint, of tensors that are as the file has them."""
        found = {name: name for name in self._before}
        for _, stage in self._stages:
            found = {n: found[m.sources[0]] for n, m in stage.items() if m.make is None and m.sources[0] in found}
        return {name: found[name] for name in self.tensors if name in found}

    def converted(self) -> dict[str, int]:
        """``"float32 -> bfloat16"`` -> how many tensors, of those that are made of one and have another dtype."""
        if not self._stages:
            return {}
        pairs = ((self._before[s[0]].dtype, self.tensors[n].dtype) for n, s in self.sources.items() if len(s) == 1)
        return dict(Counter(f"{found} -> {made}" for found, made in pairs if found != made))

    def adapt(self, weights: Weights) -> Stream:
        """The tensors of the checkpoint, as they come, made into those after all adapters.

        A tensor that is made of several comes when the last of them did; until then the others are held. Raises
        AdapterError for one that is made otherwise than its plan says. Closing the generator closes ``weights``.
        """
        with ended(weights):
            stream = weights
            for adapter, stage in self._stages:
                stream = _made(adapter, stage, stream)
            yield from stream

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Name after all adapters -> the names in the checkpoint that it is made of."""
        found: dict[str, tuple[str, ...]] = {name: (name,) for name in self._before}
        for _, stage in self._stages:
            found = {n: tuple(dict.fromkeys(s for of in m.sources for s in found[of])) for n, m in stage.items()}
        return {name: found[name] for name in self.tensors}


def _planned(adapter: Adapter, tensors: Tensors, *, check: bool) -> dict[str, Made]:
    stage: dict[str, Made] = {}
    if check:
        _called(adapter, adapter.check, tensors)
    for made in _called(adapter, lambda given: list(adapter.plan(given)), tensors):
        problem = _problem(adapter, made, tensors, stage)
        if problem is not None:
            raise problem
        stage[made.meta.name] = made
    return stage


def _problem(adapter: Adapter, made: Made, tensors: Tensors, stage: Stage) -> AdapterError | None:
    name = made.meta.name
    unknown = [source for source in made.sources if source not in tensors]
    if not made.sources or unknown or (made.make is None and len(made.sources) != 1):
        return _breach(adapter, f"plans {name!r} of {some(unknown or made.sources)}, which is not there", made.meta)
    first = tensors[made.sources[0]]
    if name in stage:
        both = f"{', '.join(stage[name].sources)} and {', '.join(made.sources)}"
        return AdapterError(
            f"adapter {_name(adapter)} gives {both} one name",
            path=first.file,
            tensor=name,
            expected="names of their own",
        )
    packed = [source for source in made.sources if is_packed(tensors[source])]
    if made.make is not None and packed and not adapter.supports_packed:
        kind = tensors[packed[0]].source_dtype
        fix = NUMBERS if tensors[packed[0]].ggml_type is not None else None
        what = f"adapter {_name(adapter)} cannot change packed tensors"
        return AdapterError(what, path=first.file, tensor=packed[0], expected="numbers", found=kind, fix=fix)
    return None


def _made(adapter: Adapter, stage: Stage, weights: Weights) -> Stream:
    users: dict[str, list[Made]] = {}
    for made in stage.values():
        for source in dict.fromkeys(made.sources):
            users.setdefault(source, []).append(made)
    held: dict[str, torch.Tensor] = {}
    left = {name: len(dict.fromkeys(made.sources)) for name, made in stage.items()}
    open_users = {source: len(each) for source, each in users.items()}
    for name, tensor in weights:
        if name not in users:
            continue
        held[name] = tensor
        for made in users.pop(name):
            left[made.meta.name] -= 1
            if not left[made.meta.name]:
                result = _one(adapter, made, [held[source] for source in made.sources])
                _release(made, held, open_users)
                yield made.meta.name, result


def _release(made: Made, held: dict[str, torch.Tensor], open_users: dict[str, int]) -> None:
    for source in dict.fromkeys(made.sources):
        open_users[source] -= 1
        if not open_users[source]:
            del held[source]


def _one(adapter: Adapter, made: Made, sources: Sequence[torch.Tensor]) -> torch.Tensor:
    if made.make is None:
        return sources[0]
    result = _called(adapter, lambda _: made.make(*sources), None, made.meta)  # type: ignore[misc]
    if not isinstance(result, torch.Tensor):
        raise _breach(adapter, f"made {type(result).__name__} of it, not a tensor", made.meta)
    found = f"{str(result.dtype).removeprefix('torch.')} {list(result.shape)}"
    expected = f"{made.meta.dtype} {list(made.meta.stored_shape)}"
    if found != expected:
        raise _breach(adapter, "made another tensor than it planned", made.meta, expected=expected, found=found)
    return result


def _called(adapter: Adapter, call: Callable[[Any], Any], given: Any, meta: TensorMeta | None = None) -> Any:
    """Foreign code: what it raises is an error that names the adapter."""
    try:
        return call(given)
    except (WeightReadersError, OSError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        first = meta or next(iter(given.values()), None)
        said = f"adapter {_name(adapter)} raised {type(error).__name__}: {error}"
        path, tensor = ("", None) if first is None else (first.file, first.name if meta else None)
        raise AdapterError(said, path=path, tensor=tensor) from error


def _breach(adapter: Adapter, what: str, meta: TensorMeta, **said: Any) -> AdapterError:
    return AdapterError(f"adapter {_name(adapter)} {what}", path=meta.file, tensor=meta.name, **said)


def _name(adapter: Adapter) -> str:
    return type(adapter).__name__
