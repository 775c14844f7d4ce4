# SPDX-License-Identifier: Apache-2.0
"""Reader `npz`. Nothing is imported here: `plugin` is light, `reader` is not."""
