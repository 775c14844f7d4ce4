# SPDX-License-Identifier: Apache-2.0
"""``make pictures``: draw the pictures of the site anew."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from docs_site.pictures import draw

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        draw(Path(__file__).resolve().parents[1] / "docs" / "pictures")
