# SPDX-License-Identifier: Apache-2.0
"""Put tensors where they belong in a module or a mapping, according to an audited plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import nn

from weight_readers import CheckpointError, TensorMeta, TensorPart, TiedWeightsError
from weight_readers_loader.adapters import Adapted
from weight_readers_loader.arguments import device_of
from weight_readers_loader.audit import audit
from weight_readers_loader.distributed.cuts import Cuts
from weight_readers_loader.parts import cut, take_alike
from weight_readers_loader.raw import same_bytes
from weight_readers_loader.sharing import apart
from weight_readers_loader.targets import (
    Target,
    meta_buffers,
    overlapping,
    targets_of,
    tied_groups,
)

Weights = Iterable[tuple[str, torch.Tensor]]


class Placement:
    """One load: the audited plan, and how it is carried out.

    Tensors that exist are written in place as they come. Those on the meta device are replaced all together at
    the end, so that a load that fails leaves them as they were; ``agreed`` is called before that, and may raise.
    """

    def __init__(
        self,
        target: nn.Module | Mapping[str, torch.Tensor],
        tensors: Mapping[str, TensorMeta],
        *,
        aliases: Mapping[str, str],
        resolve_aliases: bool,
        strict: bool,
        cast: bool,
        slices: Mapping[str, TensorPart] | None = None,
        agreed: Callable[[], None] = lambda: None,
    ) -> None:
        self._tensors = tensors
        self.agreed = agreed
        self._targets = cut(targets_of(target), slices or {}, tensors)
        self._tied = tied_groups(self._targets)
        self._groups = {name: group for group in self._tied for name in group}
        self._overlapping = overlapping(self._targets)
        self._left_on_meta = meta_buffers(target)
        self._plan = audit(
            tensors,
            self._targets,
            tied=self._tied,
            aliases=aliases,
            resolve_aliases=resolve_aliases,
            strict=strict,
            cast=cast,
        )
        self._check_parts()
        self._cuts = Cuts.of(self._firsts(), tensors)

    def _check_parts(self) -> None:
        """Raise TargetMismatchError where one tensor, of the checkpoint or the target, would be two parts at once."""
        for source, names in self._plan.assignments.items():
            if len(names) > 1:
                take_alike(f"one tensor, {source!r}", [self._targets[name] for name in names])
        filled = set(chain.from_iterable(self._plan.assignments.values()))
        for group in self._tied:
            take_alike("what fills one tensor", [self._targets[name] for name in group if name in filled])

    def slices(self, adapted: Adapted) -> dict[str, TensorPart]:
        """What to read of tensors of which this rank holds a part, by their names in the files.

        Whole are those that an adapter changes, or of which it makes more than one.
        """
        uses = Counter(source for sources in adapted.sources.values() for source in sources)
        parts = ((source, self._cuts.slices.get(name)) for name, source in adapted.untouched().items())
        return {source: part for source, part in parts if part is not None and uses[source] == 1}

    @property
    def skips_some(self) -> bool:
        return bool(self._plan.unexpected)

    @property
    def all_in_place(self) -> bool:
        return not any(target.is_meta for target in self._targets.values())

    def where(self, device: str | None) -> str:
        """The device that the reader should place tensors on.

        Raises ConfigError for one that is not here, and ValueError where the target says otherwise.
        """
        asked = torch.device(device_of(device or "cpu"))
        if not self.all_in_place:
            return str(asked)
        elsewhere = {t.tensor.device.type: name for name, t in self._targets.items()}
        elsewhere.pop(asked.type, None)
        if device is not None and elsewhere:
            kind, name = next(iter(elsewhere.items()))
            raise ValueError(
                f"device={device!r} is for tensors on the meta device, and {name!r} has memory on {kind!r} already. "
                f"Move the target there first: .to({device!r})"
            )
        return "cpu"

    @property
    def wanted(self) -> Collection[str]:
        """The names of the checkpoint that fill anything."""
        return self._plan.assignments.keys()

    def check_tied(self, read: Callable[[Collection[str]], Weights]) -> None:
        """Raise TiedWeightsError where the checkpoint holds two values for one parameter; reads only those."""
        source_of = {name: source for source, names in self._plan.assignments.items() for name in names}
        for group in self._tied:
            sources = list(dict.fromkeys(source_of[name] for name in group if name in source_of))
            if len(sources) > 1:
                self._check_equal(sources, dict(read(sources)))

    def _check_equal(self, sources: list[str], tensors: Mapping[str, torch.Tensor]) -> None:
        first = sources[0]
        for other in sources[1:]:
            if not same_bytes(tensors[first], tensors[other]):
                raise TiedWeightsError(
                    "two names of one parameter hold different values",
                    path=self._tensors[other].file,
                    tensor=other,
                    expected=f"the bytes of {first!r}",
                    found="other bytes",
                    fix="Untie the parameters in the model, or load a checkpoint that was saved tied",
                )

    def in_memory(self, sources: Set[str]) -> dict[str, torch.Tensor] | None:
        """Checkpoint name -> the tensor that its bytes go to, of those that are in ``sources``.

        None where more than reading is to be done. Two tensors of the checkpoint never go to one memory at a time.
        """
        if not self.fills_directly:
            return None
        return {source: target.tensor for source, target in self._firsts().items() if source in sources}

    @cached_property
    def fills_directly(self) -> bool:
        """Whether bytes of the files are all that the targets need, so that a reader may write to them itself."""
        targets = self._firsts()
        one_each = len({target.identity for target in targets.values()}) == len(targets)
        return self.all_in_place and not self._plan.cast and not self._overlapping and one_each

    def _firsts(self) -> dict[str, Target]:
        return {source: self._targets[names[0]] for source, names in self._plan.assignments.items()}

    def fill_by(self, read: Callable[[], None], sources: Collection[str]) -> None:
        """``read`` fills what `in_memory` gave for ``sources``; other names of the same tensor follow.

        A CheckpointError on the way says in ``written`` which targets were written, wholly or in part.
        """
        try:
            read()
        except CheckpointError as error:
            error.written = self.targets_of(error.written)
            raise
        for first, *others in (self._plan.assignments[source] for source in sources):
            for name in others:
                if self._targets[name].identity != self._targets[first].identity:
                    self._targets[name].write(self._targets[first].tensor)

    def targets_of(self, sources: Iterable[str]) -> tuple[str, ...]:
        """The first target of each."""
        return tuple(self._plan.assignments[source][0] for source in sources)

    def fill(self, weights: Weights, parts: Collection[str] = ()) -> None:
        """Write or replace every target. A CheckpointError on the way says in ``written`` what was written.

        ``parts`` are those of which the part comes that is wanted; the others come whole, also those of which this rank
        holds a part.

        Raises TiedWeightsError where targets that overlap in memory cannot all hold what the checkpoint has.
        """
        written: dict[str, torch.Tensor | None] = {}
        replacements: dict[str, torch.Tensor] = {}
        try:
            for source, read in weights:
                names = self._plan.assignments[source]
                tensor = self._cuts.apply(source, read, whole=source not in parts)
                for name in names:
                    if not self._targets[name].is_meta:
                        self._targets[name].write(tensor)
                        written[name] = tensor if name in self._overlapping else None
                replacements |= self._replacements([n for n in names if self._targets[n].is_meta], tensor)
            self._check_overlaps(written)
            self.agreed()
        except CheckpointError as error:
            error.written = tuple(written)
            raise
        for leader, new in apart(replacements).items():
            self._replace(leader, new)

    def _check_overlaps(self, written: Mapping[str, torch.Tensor | None]) -> None:
        for name, source in written.items():
            held = self._targets[name].tensor
            if source is not None and not same_bytes(held, source.to(held)):
                raise TiedWeightsError(
                    "the target shares memory with another one that was written over it",
                    path=self._tensors[name].file if name in self._tensors else "",
                    tensor=name,
                    expected="values that agree with those of the other",
                    found="other bytes",
                    fix="Load into one of the two",
                )

    def _replacements(self, names: Iterable[str], tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """First name of each tied group -> its tensor. One tensor of the file may fill several parameters that are
        not tied; each beyond the first has memory of its own, or training one would change the other."""
        leaders = dict.fromkeys(self._groups.get(name, (name,))[0] for name in names)
        cast = [(leader, tensor.to(self._targets[leader].tensor.dtype)) for leader in leaders]
        return {leader: new.clone() if place else new for place, (leader, new) in enumerate(cast)}

    def _replace(self, leader: str, tensor: torch.Tensor) -> None:
        new = self._targets[leader].materialised(tensor)
        for name in self._groups.get(leader, (leader,)):
            self._targets[name].replace(new)

    def remarks(self) -> dict[str, Any]:
        """The fields of a `LoadReport` that the plan knows."""
        plan = self._plan
        return {
            "missing": plan.missing,
            "unexpected": plan.unexpected,
            "aliases": plan.aliases,
            "cast": plan.cast,
            "tied": tuple(self._tied),
            "left_on_meta": self._left_on_meta,
        }
