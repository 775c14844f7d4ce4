# SPDX-License-Identifier: Apache-2.0
"""Packed bytes to numbers: `dequantize`, the same bits from every backend and on every device.

A backend is a module with ``SUPPORTED``, ``absent``, ``start`` and ``dequantize_into``: ``torch`` (torch
operations, anywhere), ``compiled`` (CPU, the extra ``compiled``) and ``triton`` (CUDA).
"""

from weight_readers_gguf.dequant.backends import BACKENDS, pick_backend
from weight_readers_gguf.dequant.dispatch import dequantize
from weight_readers_gguf.dequant.rows import dequantize_rows

__all__ = ["BACKENDS", "dequantize", "dequantize_rows", "pick_backend"]
