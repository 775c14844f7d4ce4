# SPDX-License-Identifier: Apache-2.0
"""Whether anything must see what is done with tensors: kernels of ours write memory past all of torch."""

from __future__ import annotations

import torch
from torch import Tensor


def is_observed(*tensors: Tensor) -> bool:
    """Whether a compiler, a tracer, a dispatch mode or a function transform is at work, or a tensor is none of memory.

    They know operators of torch: `weight_readers_gguf.dequant.operator` is one.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(_has_no_memory_of_its_own(tensor) for tensor in tensors)
    )


def _has_no_memory_of_its_own(tensor: Tensor) -> bool:
    """Whether the tensor is of a class that computes in its own way (a fake, a distributed one)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
