# SPDX-License-Identifier: Apache-2.0
"""The Pythons that our wheels are for, where this machine has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
OTHERS = [version for version in SUPPORTED if version != "{}.{}".format(*sys.version_info)]
"""Those beside the one that runs this."""


def interpreter(version: str) -> Path | None:
    """One that can make environments: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    asked = "import sys, venv; print('{}.{}'.format(*sys.version_info))"
    for python in filter(None, found):
        # A shim of pyenv's is on the path for versions that are not chosen here, and fails.
        said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False, timeout=60)
        if said.stdout.strip() == version:
            return Path(python)
    return None


if __name__ == "__main__":
    print(*filter(None, map(interpreter, OTHERS)))
