# SPDX-License-Identifier: Apache-2.0
"""The arms: each reads the same files by the calls that its users make, with its own defaults.

``into`` fills tensors that exist, ``stream`` yields tensors that own their memory (or are valid for ever),
``rows`` gives a slice of every 2-D tensor. What a peer cannot do is done as its users have to: read more, then
cut. An arm that cannot run here says why in ``absent``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import limit
from benchmarks.delivered import touch
from benchmarks.entries import Entry, matrix_rows, read_entries, row_range
from benchmarks.settings import FALLBACK, LATE_THREADS, LIMIT, READER, THREADS

if TYPE_CHECKING:
    from weight_readers import WeightReader

Files = Sequence[str]
Targets = Mapping[str, torch.Tensor]
Tensors = Iterator[tuple[str, torch.Tensor]]
Keys = Collection[str] | None


class Arm:
    """One way of reading. ``environment`` is set before anything of the peer is imported."""

    name = ""
    module: str | None = None
    environment: Mapping[str, str] = {}
    of_twin = False
    streams = True
    owns = False
    """Whether what `views` yields stays valid by itself."""
    late = False
    """Whether the storage answers late. Of use to us, whose policy asks for more at a time then, and to the limit."""

    @classmethod
    def absent(cls) -> str | None:
        """Why this arm cannot run here; None where it can."""
        if cls.module is None or importlib.util.find_spec(cls.module) is not None:
            return None
        return f"{cls.module} is not installed (requirements-bench.txt)"

    def prepare(self, wanted: Sequence[Entry], targets: Targets | None) -> None:
        """Before the clock starts. Of use to the limit only: every other arm is told nothing beforehand."""

    def into(self, files: Files, targets: Targets) -> None:
        for name, tensor in self.views(files, None):
            targets[name].copy_(tensor)

    def owned(self, files: Files, keys: Keys = None) -> dict[str, torch.Tensor]:
        tensors = dict(self.stream(files, keys))
        for tensor in tensors.values():
            touch(tensor)
        return tensors

    def rows(self, files: Files) -> dict[str, torch.Tensor]:
        sliced = {}
        for name, tensor in self.views(files, None):
            if tensor.ndim == 2:
                start, stop = row_range(tensor.shape[0])
                sliced[name] = tensor[start:stop].clone()
                touch(sliced[name])
        return sliced

    def stream(self, files: Files, keys: Keys = None) -> Tensors:
        for name, tensor in self.views(files, keys):
            yield name, tensor if self.owns else tensor.clone()

    def views(self, files: Files, keys: Keys) -> Tensors:
        """Tensors as the peer hands them out: valid until the next one is taken, and longer where it `owns`."""
        raise NotImplementedError


class Ours(Arm):
    """A reader of this project, through core, as anybody asks for it."""

    reader = ""
    late_options: Mapping[str, Any] = {}

    @classmethod
    def absent(cls) -> str | None:
        import weight_readers

        if cls.reader in weight_readers.available_reader_names():
            return None
        return f"reader {cls.reader!r} is not installed"

    def made(self, **options: Any) -> Any:
        import weight_readers

        known = self.late_options if self.late else {}
        return weight_readers.select_weight_reader(
            requested=self.reader, format="safetensors", strict=True, options={**known, **options}
        )

    def views(self, files: Files, keys: Keys) -> Tensors:
        return _filtered(self.made(), files, keys)

    def rows(self, files: Files) -> dict[str, torch.Tensor]:
        from weight_readers import TensorSlice

        reader = self.made(**self._owning())
        slices = {}
        for name, meta in reader.read_meta(files).items():
            if len(meta.shape) == 2:
                start, stop = row_range(meta.shape[0])
                slices[name] = TensorSlice(dim=0, start=start, stop=stop)
        tensors = dict(reader.iter_weights(files, key_filter=slices.__contains__, slices=slices))
        for tensor in tensors.values():
            touch(tensor)
        return tensors

    def stream(self, files: Files, keys: Keys = None) -> Tensors:
        return _filtered(self.made(**self._owning()), files, keys)

    def _owning(self) -> Mapping[str, Any]:
        return {}


def _filtered(reader: WeightReader, files: Files, keys: Keys) -> Tensors:
    return reader.iter_weights(files, key_filter=None if keys is None else keys.__contains__)


class Threaded(Ours):
    name = READER
    reader = "threaded"
    late_options = {"num_threads": LATE_THREADS}

    def into(self, files: Files, targets: Targets) -> None:
        self.made().read_into(files, targets)


class Mapped(Ours):
    name = FALLBACK
    reader = "safetensors"
    late_options = {"prefetch": LATE_THREADS}

    def _owning(self) -> Mapping[str, Any]:
        return {"copy": True}


class Limit(Arm):
    """Told the ranges beforehand, and nothing but ``preadv`` within the clock; see `benchmarks.limit`."""

    name = LIMIT
    streams = False

    def prepare(self, wanted: Sequence[Entry], targets: Targets | None) -> None:
        self._wanted = wanted
        self._descriptors = {file: os.open(file, os.O_RDONLY) for file in {entry.file for entry in wanted}}
        self._calls = [] if targets is None else limit.calls(wanted, targets, self._descriptors)

    def into(self, files: Files, targets: Targets) -> None:
        limit.read_all(self._calls, LATE_THREADS if self.late else THREADS)

    def owned(self, files: Files, keys: Keys = None) -> dict[str, torch.Tensor]:
        tensors = {entry.name: torch.empty(entry.shape, dtype=entry.dtype) for entry in self._wanted}
        limit.read_all(limit.calls(self._wanted, tensors, self._descriptors))
        for tensor in tensors.values():
            touch(tensor)
        return tensors

    def rows(self, files: Files) -> dict[str, torch.Tensor]:
        return self.owned(files)


class SafetensorsMmap(Arm):
    name = "safetensors mmap + copy"
    module = "safetensors"
    keywords: Mapping[str, Any] = {}

    def views(self, files: Files, keys: Keys) -> Tensors:
        from safetensors import safe_open

        for path in files:
            with safe_open(path, framework="pt", **self.keywords) as file:
                for name in file.offset_keys():
                    if keys is None or name in keys:
                        yield name, file.get_tensor(name)

    def rows(self, files: Files) -> dict[str, torch.Tensor]:
        from safetensors import safe_open

        sliced = {}
        for path in files:
            with safe_open(path, framework="pt", **self.keywords) as file:
                for name in file.offset_keys():
                    part = file.get_slice(name)
                    if len(part.get_shape()) == 2:
                        start, stop = row_range(part.get_shape()[0])
                        sliced[name] = part[start:stop] if self.owns else part[start:stop].clone()
                        touch(sliced[name])
        return sliced


class SafetensorsPread(SafetensorsMmap):
    name = "safetensors pread"
    keywords = {"backend": "pread"}
    owns = True

    @classmethod
    def absent(cls) -> str | None:
        import safetensors

        if tuple(int(part) for part in safetensors.__version__.split(".")[:2]) >= (0, 8):
            return super().absent()
        return f"safetensors {safetensors.__version__} has no backend='pread' (0.8 has)"


class VllmRecipe(Arm):
    """``multi_thread_safetensors_weights_iterator`` of vLLM: its calls, written anew, with its eight workers."""

    name = "vLLM multi-thread recipe"
    module = "safetensors"

    def views(self, files: Files, keys: Keys) -> Tensors:
        from safetensors.torch import load_file

        with ThreadPoolExecutor(max_workers=8) as pool:
            for future in as_completed([pool.submit(load_file, path) for path in files]):
                for name, tensor in future.result().items():
                    if keys is None or name in keys:
                        yield name, tensor


class RunaiDirect(Arm):
    """Run:ai 0.17.1; without its silent step down to buffered reads, which are an arm of their own."""

    name = "Run:ai direct"
    module = "runai_model_streamer"
    environment = {"RUNAI_STREAMER_FS_STRATEGY": "io_uring_direct,libaio_direct"}
    owns = True

    def views(self, files: Files, keys: Keys) -> Tensors:
        from runai_model_streamer import SafetensorsStreamer  # type: ignore[import-untyped]

        with SafetensorsStreamer() as streamer:
            names = None if keys is None else list(keys)
            streamer.stream_files(list(files), device="cpu", tensor_names=names, owned=True)
            yield from streamer.get_tensors()

    def rows(self, files: Files) -> dict[str, torch.Tensor]:
        # Its reader of safetensors has no slices; its reader of ranges has, for whoever parses the headers.
        from runai_model_streamer import FileChunks, FileStreamer

        wanted = matrix_rows(read_entries(files))
        by_file = {n: [entry for entry in wanted if entry.file == file] for n, file in enumerate(files)}
        requests = [
            FileChunks(n, files[n], [entry.offset for entry in entries], [entry.nbytes for entry in entries])
            for n, entries in by_file.items()
        ]
        sliced = {}
        with FileStreamer() as streamer:
            streamer.stream_files(requests)
            for number, index, raw in streamer.get_chunks():
                entry = by_file[number][index]
                sliced[entry.name] = raw.reshape(-1).view(entry.dtype).view(entry.shape)
                touch(sliced[entry.name])
        return sliced


class RunaiBuffered(RunaiDirect):
    name = "Run:ai buffered"
    environment = {"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered"}


class FastDirect(Arm):
    """fastsafetensors without GDS, a file at a time as vLLM uses it."""

    name = "fastsafetensors direct"
    module = "fastsafetensors"
    environment = {"FASTSAFETENSORS_ODIRECT": "1"}
    owns = True

    def views(self, files: Files, keys: Keys) -> Tensors:
        from fastsafetensors import SafeTensorsFileLoader  # type: ignore[import-untyped]

        for path in files:
            loader = SafeTensorsFileLoader(None, device="cpu", nogds=True)
            if keys is not None:
                loader.set_tensor_filter(keys.__contains__)
            loader.add_filenames({0: [path]})
            names = [name for name in loader.get_keys() if keys is None or name in keys]
            if names:
                buffers = loader.copy_files_to_device()
                for name in names:
                    yield name, buffers.get_tensor(name)
                buffers.close()
            loader.close()


class FastBuffered(FastDirect):
    name = "fastsafetensors buffered"
    environment = {"FASTSAFETENSORS_ODIRECT": "0"}


class TorchMmap(Arm):
    name = "torch.load(mmap=True)"
    of_twin = True

    def views(self, files: Files, keys: Keys) -> Tensors:
        for path in files:
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            for name, tensor in state.items():
                if keys is None or name in keys:
                    yield name, tensor


ARMS: dict[str, type[Arm]] = {
    arm.name: arm
    for arm in (
        Threaded,
        Mapped,
        Limit,
        SafetensorsMmap,
        SafetensorsPread,
        VllmRecipe,
        RunaiDirect,
        RunaiBuffered,
        FastDirect,
        FastBuffered,
        TorchMmap,
    )
}
