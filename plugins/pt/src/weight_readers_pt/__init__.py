# SPDX-License-Identifier: Apache-2.0
"""Reader ``pt`` of weight-readers: mapped views of ``.bin``, ``.pt``, ``.pth`` and ``.ckpt`` files of torch."""
