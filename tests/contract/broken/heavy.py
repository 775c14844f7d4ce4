# SPDX-License-Identifier: Apache-2.0
"""A hook module that imports what only its reader needs."""

from __future__ import annotations

import pygments  # noqa: F401
from contract.broken.hooks import Hooks

plugin = Hooks("test_importing_its_hook_module_adds_no_package_but_its_own", "mapped")
