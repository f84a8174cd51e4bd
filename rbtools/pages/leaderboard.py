"""The plot `leaderboard`: one self-contained web page on which users sort, filter and rank the records."""

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
    """A self-contained web page that a browser can show offline. The page contains a table to sort and to
    filter, sliders for the weights of the composite score, curves of the selected rows, and the command line
    that reproduces each row.

    If rb-score has scored the records, the page initially shows this score with its metrics and weights.

    Needs records with at least one metric.
    """

    name: ClassVar[str] = "leaderboard"
    endings: ClassVar[tuple[str, ...]] = ("html", "htm")

    title: str = param("Leaderboard", "Title of the page.")

    def draw(self, records: Iterable[dict[str, Any]]) -> str:
        return page(list(records), self.title)


def page(records: list[dict[str, Any]], title: str = "Leaderboard") -> str:
    """The leaderboard page of these records, as HTML that loads no other files. Raises RbError if there are
    no records, or if no record has a metric.

    The records are in the page as JSON that cannot end its HTML element, and the script adds them to the
    document only as text. A content security policy prevents other scripts from running.
    """
    if not records:
        raise RbError("There are no records to draw.")
    title = title.encode(errors="replace").decode()  # a command line's argument may be invalid Unicode
    # all scripts together are one function
    names = sorted(file.name for file in resources.files("rbtools.pages").iterdir())
    scripts = (templates.file(name) for name in names if name.endswith(".js"))
    script = '(() => {\n"use strict";\n' + "\n".join(scripts) + "})();\n"
    sources = {"style-src": templates.file("style.css"), "script-src": script}
    values = {"title": CONTROL.sub("\ufffd", title), "content": page_content.content(records, title)}
    return templates.page("page.html", sources, values)
