# SPDX-License-Identifier: Apache-2.0
from support.ranks import four, groups, two

__all__ = ["four", "groups", "two"]
