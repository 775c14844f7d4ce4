# SPDX-License-Identifier: Apache-2.0
"""weight-readers side by side with its peers, on the same bytes in the same run. See README.md."""
