"""leaderboard: the records as one self-contained web page that sorts, filters and ranks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.pages import page_content, templates
from rbtools.pages.templates import CONTROL
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """A page in one file, which a browser can show offline: a table to sort and to filter, sliders for the
    weights of the composite score, curves of the selected rows, and the command line that reproduces each
    row.

    The score is that of rb-score if the records have one, with its metrics and weights initially.

    Needs records with any metric.
    """

    name: ClassVar[str] = "leaderboard"
    endings: ClassVar[tuple[str, ...]] = ("html", "htm")

    title: str = param("Leaderboard", "Title of the page.")

    def draw(self, records: Iterable[dict[str, Any]]) -> str:
        """The page. Raises RbError where there are no records, or none has a metric."""
        return page(list(records), self.title)


def page(records: list[dict[str, Any]], title: str = "Leaderboard") -> str:
    """The leaderboard page of these records: HTML that loads nothing.

    Everything in the records is data: it is embedded as JSON that cannot end its element, and reaches the
    document only as text; a content security policy lets no other script run. Raises RbError where there are
    no records, or none has a metric.
    """
    if not records:
        raise RbError("There are no records to draw.")
    title = title.encode(errors="replace").decode()  # a command line's argument may be invalid Unicode
    # all scripts together are one function
    script = '(() => {\n"use strict";\n' + "\n".join(map(templates.file, scripts())) + "})();\n"
    sources = {"style-src": templates.file("style.css"), "script-src": script}
    values = {"title": CONTROL.sub("\ufffd", title), "content": page_content.content(records, title)}
    return templates.page("page.html", sources, values)


def scripts() -> list[str]:
    """The files of the page's script, in their order."""
    return sorted(
        file.name for file in resources.files("rbtools.pages").iterdir() if file.name.endswith(".js")
    )
