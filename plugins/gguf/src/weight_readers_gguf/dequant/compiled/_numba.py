# SPDX-License-Identifier: Apache-2.0
"""What kernels are made with, of numba and llvmlite; untyped, since only some of their releases have types."""

from __future__ import annotations

from typing import Any

import llvmlite.ir
import numba
import numba.core.cgutils
import numba.core.datamodel.models
import numba.core.typing.templates
import numba.extending
from numba.core.errors import NumbaError

__all__ = ["NumbaError", "cgutils", "config", "extending", "ir", "models", "njit", "templates", "types"]

cgutils: Any = numba.core.cgutils
config: Any = numba.config
extending: Any = numba.extending
ir: Any = llvmlite.ir
models: Any = numba.core.datamodel.models
njit: Any = numba.njit
templates: Any = numba.core.typing.templates
types: Any = numba.core.types
