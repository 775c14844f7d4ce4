# SPDX-License-Identifier: Apache-2.0
"""`Checkpoint`: one that is open and checked, and the ways to its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch
from torch import nn

from weight_readers import Selection, TensorMeta, TensorPart
from weight_readers_loader.arguments import device_of, flags, instance, real_device
from weight_readers_loader.config import LayeredConfig
from weight_readers_loader.lazy import LazyTensor
from weight_readers_loader.loading import Load, Source, load_placed
from weight_readers_loader.report import LoadReport
from weight_readers_loader.side_files import SideFiles
from weight_readers_loader.streams import Stream
from weight_readers_loader.verifying import Verify
from weight_readers_loader.wanted import KeyFilter


class Checkpoint:
    """One checkpoint, checked and ready. Nothing is read until a method asks for tensors.

    ``tensors`` maps each name in the files to its `TensorMeta`, and ``adapted`` each one after the adapters (the same
    where there are none); ``aliases`` are names recorded in the files' metadata for
    tensors that are stored under another name; ``notices`` say what a person should know. ``config`` is how it is
    loaded, with the source of each value. ``selection`` is that of the reader that checked the headers, and
    ``report`` the `LoadReport` of the latest `state_dict` or `load_into`, with a selection of its own. ``source`` is
    for other modules of this package.
    """

    def __init__(self, source: Source, selection: Selection, config: LayeredConfig) -> None:
        contents = source.contents
        self.reference = source.reference
        self.layout = source.layout
        self.tensors: Mapping[str, TensorMeta] = contents.tensors
        self.aliases = contents.aliases
        self.adapted: Mapping[str, TensorMeta] = contents.adapted.tensors
        self.metadata = {file.path: dict(file.metadata) for file in source.headers}
        self.notices = source.notices
        self.selection = selection
        self.config = config
        self.report: LoadReport | None = None
        self.source = source

    def iter_weights(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        owned: bool = False,
        verify: Verify | None = None,
    ) -> Stream:
        """Yield ``(name, tensor)`` in the reader's declared order, each valid after the next one is taken.

        device: by default that of ``config``, or else the host.
        key_filter: called once with each name in the files; what it declines is never read.
        slices: the part wanted of a tensor, by its name in the files, in elements of its logical shape; not of one that
            an adapter changes.
        owned: tensors that do not depend on the files, even if somebody writes to those later.
        verify: as `load_into` has it. What is wrong is raised at the end of the iteration, after the tensors.

        Raises MissingTensorError for a slice of a name that is not there, SliceError for one that its tensor cannot be
        cut by, ConfigError for a device that cannot be used here, FileChangedError where a file is no longer the one
        that was opened.
        """
        flags(owned=owned)
        device = self._usable(device)
        wanted, adapted = self.source.contents.wanted_and_adapted(key_filter, slices)
        return adapted.adapt(self.source.stream(wanted, device, owned=owned, verify=self._verify(verify))[0])

    def iter_stored(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        owned: bool = False,
    ) -> Stream:
        """As `iter_weights`, with the tensors as the files have them: without the adapters, and not verified."""
        flags(owned=owned)
        device = self._usable(device)
        return self.source.stream(self.source.contents.wanted(key_filter, slices), device, owned=owned)[0]

    def state_dict(
        self,
        *,
        device: str | torch.device | None = None,
        key_filter: KeyFilter | None = None,
        slices: Mapping[str, TensorPart] | None = None,
        owned: bool = False,
        resolve_aliases: bool = False,
        touch: bool = False,
        verify: Verify | None = None,
        show_progress: bool = False,
    ) -> dict[str, torch.Tensor]:
        """All wanted tensors by name; on the host and not ``owned`` they are views of the files where that is best.

        touch: bring in every page of contiguous tensors, so that a view's bytes are in memory and the report's time
            covers them. Raises UnreadableFileError where one cannot be had (Linux 5.14; before, that ends the process).
        resolve_aliases: also give each of ``aliases`` its tensor, shared with the name it is stored under.
        verify: as `load_into` has it; every byte is touched then.
        """
        flags(owned=owned, resolve_aliases=resolve_aliases, touch=touch, show_progress=show_progress)
        device = self._usable(device)
        contents = self.source.contents
        contents.check_aliases(resolve_aliases)
        wanted, adapted = contents.wanted_and_adapted(key_filter, slices)
        kept = device.split(":")[0] == "cpu"
        how: dict[str, Any] = {"device": device, "owned": owned, "kept_on_host": kept}
        load = Load(self.source, wanted, verify=self._verify(verify), show_progress=show_progress, **how)
        tensors = load.collect(adapted, touch=touch)
        aliases = contents.named(tensors, resolve_aliases=resolve_aliases)
        self.report = load.report(aliases=aliases, cast=adapted.converted())
        return tensors | {alias: tensors[name] for alias, name in aliases.items()}

    def load_into(
        self,
        target: nn.Module | Mapping[str, torch.Tensor],
        *,
        strict: bool = True,
        cast: bool = False,
        slices: Mapping[str, TensorPart] | None = None,
        device: str | torch.device | None = None,
        owned: bool = False,
        resolve_aliases: bool = False,
        verify: Verify | None = None,
        show_progress: bool = False,
    ) -> LoadReport:
        """Fill a module, or a mapping of tensors, after a two-way audit of names, shapes and dtypes.

        Existing tensors are written in place. Parameters and buffers on the meta device are replaced by tensors
        on ``device`` (the host by default): there by views of the files, unless ``owned``. Tied parameters stay
        tied, and parameters that are not tied never share memory.

        strict: missing and unexpected names are an error; otherwise they are in the report.
        cast: convert where a dtype differs; otherwise that is an error. Packed weights are never converted.
        slices: the part that a target takes of its tensor, by the tensor's name after the adapters, in elements of its
            logical shape; no more is read, save of what an adapter changes, and of two tensors for one parameter, which
            are compared whole. A DTensor needs none.
        resolve_aliases: fill a missing name from the tensor that the files' metadata records for it.
        verify: True, False, or the path of a manifest, by default what ``config`` has. Hash the files from the bytes
            that arrive, beside the load, and raise DigestMismatchError before it is over where one does not have its
            digest; what is in place by then is not to be used. True takes the digests of the Hugging Face cache, and
            ValueError says where there is none. Files are hashed whole: of a local one the rest is read besides
            (``verify_bytes`` of the report), of one in a store it is refused. Files of which nothing is wanted are
            not looked at.

        Raises TargetMismatchError before anything is read or written, MissingTensorError for a slice of a name that is
        not there, ValueError for one that no target takes and for a ``device`` that the target is not on,
        TiedWeightsError where two names of one parameter hold different values. Should reading fail later, the error's
        ``written`` names the targets that were written by then; a module on the meta device is untouched.
        """
        flags(strict=strict, cast=cast, owned=owned, resolve_aliases=resolve_aliases, show_progress=show_progress)
        device = self._named(device)
        audit: dict[str, Any] = {"resolve_aliases": resolve_aliases, "strict": strict, "cast": cast}
        placement = self.source.contents.placement(target, slices=slices, **audit)
        how: dict[str, Any] = {"verify": self._verify(verify), "show_progress": show_progress}
        self.report = load_placed(self.source, placement, device=device, owned=owned, **how)
        return self.report

    def _usable(self, given: str | torch.device | None) -> str:
        device, source = self._device(given)
        return device_of("cpu" if device is None else device, source=source)

    def _named(self, given: str | torch.device | None) -> str | None:
        device, source = self._device(given)
        return None if device is None else real_device(device, source=source)

    def _device(self, given: str | torch.device | None) -> tuple[str | torch.device | None, str | None]:
        """What counts, and where it was given if that is not the argument."""
        setting = self.config.setting("device")
        return (given, None) if given is not None or setting is None else (setting.value, setting.source)

    def _verify(self, given: Verify | None) -> Verify:
        configured: Verify = self.config.value("verify")
        return configured if given is None else given

    def get_tensor(self, name: str, *, device: str | torch.device | None = None, owned: bool = False) -> torch.Tensor:
        """One tensor as the files have it, by its name in them. Raises MissingTensorError for any other name."""
        instance("name", name, str, "a str")
        self.source.contents.must_have([name])
        with closing(self.iter_stored(device=device, key_filter=name.__eq__, owned=owned)) as weights:
            return next(tensor for _, tensor in weights)

    def get_slice(self, name: str) -> LazyTensor:
        """One tensor of the files, read as it is indexed, as by torch: ``checkpoint.get_slice("w")[2:4, ::2]``."""
        instance("name", name, str, "a str")
        self.source.contents.must_have([name])
        return LazyTensor(self, self.tensors[name])

    def side_files(self) -> SideFiles:
        """What lies beside the weights: config, tokenizer, templates. ``copy_to(folder)`` takes them."""
        return SideFiles(self.layout)
