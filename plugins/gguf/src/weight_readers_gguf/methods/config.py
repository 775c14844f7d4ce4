# SPDX-License-Identifier: Apache-2.0
"""Which quant method each layer of a model gets, decided from the headers of GGUF files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weight_readers.errors import MissingTensorError, TargetMismatchError, UnsupportedDtypeError
from weight_readers.spelling import did_you_mean
from weight_readers_gguf.checkpoint import read_checkpoint
from weight_readers_gguf.methods.compute import ACTIVATIONS
from weight_readers_gguf.methods.embedding import GGUFEmbeddingMethod
from weight_readers_gguf.methods.fit import Source
from weight_readers_gguf.methods.layers import Kind, kind_of
from weight_readers_gguf.methods.linear import GGUFLinearMethod
from weight_readers_gguf.methods.names import FUSED, Rename, parameter_name, renamed, sources_of
from weight_readers_gguf.methods.unquantized import UnquantizedLinearMethod
from weight_readers_gguf.methods.workspace import DEFAULT_BYTES, Workspace
from weight_readers_gguf.splits import split_siblings
from weight_readers_gguf.tensors import WEIGHT
from weight_readers_gguf.types import DEQUANTIZABLE, TYPES

if TYPE_CHECKING:
    from weight_readers_gguf.checkpoint import GGUFCheckpoint
    from weight_readers_gguf.tensors import GGUFTensor

Method = GGUFLinearMethod | GGUFEmbeddingMethod | UnquantizedLinearMethod


class GGUFConfig:
    """The quantization of a model, tensor by tensor, as its files have it.

    ``rename`` maps names in the file to names in the model, ``packed_modules_mapping`` says which layers stand for
    several (engines set it to their model's), ``tied`` names layers without a tensor of their own, with the layer
    whose tensor is theirs too. ``workspace_bytes`` bounds the memory of dense weights, for each thread.
    ``selected`` are the layers that took a packed method. Raises `DuplicateTensorError` where two tensors get one
    name.
    """

    supported_act_dtypes = ACTIVATIONS

    def __init__(
        self,
        checkpoint: GGUFCheckpoint,
        *,
        rename: Rename | None = None,
        packed_modules_mapping: Mapping[str, Sequence[str]] | None = None,
        tied: Mapping[str, str] | None = None,
        workspace_bytes: int = DEFAULT_BYTES,
    ) -> None:
        for name, value in (("packed_modules_mapping", packed_modules_mapping), ("tied", tied)):
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{name} must be a mapping from names of layers, or None, not {value!r}")
        self.checkpoint = checkpoint
        self.files = tuple(header.path for header in checkpoint.headers)
        self.tensors = renamed(checkpoint.tensors.values(), rename)
        self.packed_modules_mapping = dict(FUSED if packed_modules_mapping is None else packed_modules_mapping)
        self.tied = dict(tied or {})
        self.workspace = Workspace(workspace_bytes)
        self.selected: set[str] = set()
        self._consumed: set[str] = set()

    @classmethod
    def from_file(cls, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any) -> GGUFConfig:
        """Read the headers of a checkpoint, nothing else; ``options`` are those of the class.

        One path of a split set stands for all of it. Raises `CheckpointError` for whatever is wrong with the files.
        """
        paths = split_siblings(files) if isinstance(files, (str, os.PathLike)) else [os.fspath(file) for file in files]
        return cls(read_checkpoint(paths), **options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GGUFConfig:
        """Refused: the types are in the file, tensor by tensor, and in no config."""
        raise ValueError(
            "the quantization 'gguf' cannot be read from a model's config: it is in the GGUF file."
            " Use GGUFConfig.from_file"
        )

    @classmethod
    def get_name(cls) -> str:
        return "gguf"

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return list(ACTIVATIONS)

    @classmethod
    def get_min_capability(cls) -> int:
        """The least CUDA compute capability, times ten."""
        return 60

    @classmethod
    def get_config_filenames(cls) -> list[str]:
        """None: see `from_config`."""
        return []

    def get_scaled_act_names(self) -> list[str]:
        """None: activations are not scaled."""
        return []

    @property
    def parameters(self) -> dict[str, str]:
        """Names in the file -> names of the parameters that take them (``.qweight`` for packed ones)."""
        return {tensor.name: parameter_name(name, tensor) for name, tensor in self.tensors.items()}

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Method | None:
        """The method of the layer called ``prefix`` in the model; None for what has no packed weight to compute with.

        Layers are told by class or attributes; see `kind_of`. Raises `MissingTensorError` for a linear layer or
        embedding without a tensor, `UnsupportedDtypeError` for a tensor that cannot be used, `TargetMismatchError`
        for a packed one of a layer that is neither.
        """
        if not isinstance(prefix, str) or not isinstance(layer, nn.Module):
            raise TypeError(f"get_quant_method takes a layer and its name, not {layer!r} and {prefix!r}")
        kind = kind_of(layer)
        if kind is None:
            self._check_unpacked(layer, prefix)
            return None
        sources = self._sources(prefix)
        for source in sources:
            _check_usable(source.tensor)
        if not any(source.tensor.is_packed for source in sources):
            return UnquantizedLinearMethod(prefix, sources) if kind is Kind.LINEAR else None
        self._select(prefix, sources)
        method = GGUFEmbeddingMethod if kind is Kind.EMBEDDING else GGUFLinearMethod
        return method(prefix, sources, self.workspace)

    def supports_input_partition(self, prefix: str, size: int) -> bool:
        """Whether the layer's input can be split into partitions of ``size`` elements: no block is cut.

        A layer that cannot is to be kept whole on every rank.
        """
        kinds = [source.type for source in self._sources(prefix)]
        return size > 0 and all(size % kind.block == 0 for kind in kinds)

    def unconsumed(self) -> list[str]:
        """Packed tensors, by their names in the model, that no layer took: they would be dropped without a word."""
        return [name for name, each in self.tensors.items() if each.is_packed and name not in self._consumed]

    def retain(self, keep: Callable[[str], bool]) -> None:
        """Forget tensors whose name in the model does not pass: of layers that are not built."""
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if keep(name)}

    def require_unchanged(self) -> None:
        """Raise FileChangedError where a file is another by now: after a load, since types can differ by size alone."""
        self.checkpoint.require_unchanged()

    def release(self) -> None:
        """Give back the memory that the workspace holds."""
        self.workspace.release()

    def _sources(self, prefix: str) -> list[Source]:
        found, missing = sources_of(prefix, self.tensors, self.packed_modules_mapping, self.tied)
        if missing:
            raise self._missing(prefix, missing[0])
        return found

    def _select(self, prefix: str, sources: Sequence[Source]) -> None:
        self.selected.add(prefix)
        self._consumed.update(source.name for source in sources)

    def _check_unpacked(self, layer: nn.Module, prefix: str) -> None:
        tensor = self.tensors.get(prefix + WEIGHT)
        if tensor is not None and tensor.is_packed:
            raise TargetMismatchError(
                f"layer {prefix!r} ({type(layer).__name__}) is neither linear nor an embedding, and its weight"
                f" {tensor.name!r} is packed as {tensor.type_name} in {tensor.file}",
                fix="Have the tensor dequantized when it is read",
            )

    def _missing(self, prefix: str, name: str) -> MissingTensorError:
        return MissingTensorError(
            f"the file has no tensor for layer {prefix!r}",
            path=", ".join(self.files),
            tensor=name,
            fix=did_you_mean(name, self.tensors) or "Check the rename from names in the file to the model's",
        )


def _check_usable(tensor: GGUFTensor) -> None:
    if (refusal := tensor.refusal()) is not None:
        raise refusal
    if tensor.is_packed and TYPES[tensor.type].name not in DEQUANTIZABLE:
        raise UnsupportedDtypeError(
            "no quant method computes with the type",
            path=tensor.file,
            tensor=tensor.name,
            expected=", ".join(sorted(DEQUANTIZABLE)),
            found=tensor.type_name,
        )
