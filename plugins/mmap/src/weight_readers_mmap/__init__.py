# SPDX-License-Identifier: Apache-2.0
"""Reader ``safetensors`` of weight-readers: memory-mapped views of safetensors files, the fallback reader."""
