# SPDX-License-Identifier: Apache-2.0
"""What the commands of ``weight-readers`` do, apart from parsing their arguments."""
