"""Makes the README the first page of the site, and names files outside it instead of linking them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    """What mkdocs calls for each page before it sets it."""
    folder = Path(config["docs_dir"])
    if page.file.src_uri == "index.md":
        markdown = (folder.parent / "README.md").read_text("utf-8").replace("](docs/", "](")
        markdown = re.sub(r"\[([A-Z]+\.md)\]\(\1\)", r"`\1`", markdown)
    return re.sub(r"\[([^]]*)\]\(\.\./([^)]*)\)", r"\1 (`\2`)", markdown)
