# SPDX-License-Identifier: Apache-2.0
"""Reader ``gguf`` of weight-readers: packed weights of GGUF files, and what computes with them."""
