# SPDX-License-Identifier: Apache-2.0
"""The GGUF plugin beside gguf-py, libgguf and ggml's C code: dequantization, opening a file, and a GPU."""
