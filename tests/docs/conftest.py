# SPDX-License-Identifier: Apache-2.0
"""What makes the site can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools"))
