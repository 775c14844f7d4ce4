# SPDX-License-Identifier: Apache-2.0
"""What mkdocs asks of this repository while it builds the site: its navigation, and the text of each page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs_site.nav import expanded
from docs_site.text import completed


def on_config(config: Any) -> Any:
    config.nav = expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    return completed(markdown, page.file.src_uri)
