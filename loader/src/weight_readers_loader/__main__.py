# SPDX-License-Identifier: Apache-2.0
"""``python -m weight_readers_loader``: the command ``weight-readers``, where its script is not on the path."""

from weight_readers_loader.cli import main

if __name__ == "__main__":
    main()
