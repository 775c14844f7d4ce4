# SPDX-License-Identifier: Apache-2.0
"""How the site is made from the pages in docs/, the READMEs, and what the installed packages say of themselves."""
