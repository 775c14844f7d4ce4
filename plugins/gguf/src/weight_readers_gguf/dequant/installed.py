# SPDX-License-Identifier: Apache-2.0
"""Whether a package is there, told without importing it."""

from __future__ import annotations

from importlib.util import find_spec


def is_installed(package: str) -> bool:
    """Whether importing it could succeed; a module without a specification stands in its place and is taken for it."""
    try:
        return find_spec(package) is not None
    except ValueError:
        return True
