"""leaderboard: the records as one self-contained web page that sorts, filters and ranks them."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.pages import page_content
from rbtools.pages.page_content import CONTROL
from rbtools.records import dumps
from rbtools.registry import param

_SCRIPTS = (
    "1-data.js 2-score.js 3-order.js 4-table.js 5-panel.js 6-chart.js 7-record.js 8-download.js 9-main.js"
).split()
# In a script element only these can end it or open a comment; the others end a line of JavaScript.
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """A page in one file, for a browser without a network: a table to sort and to filter, sliders for the
    weights of the composite score, curves of the selected rows, and the command line that reproduces each
    row.

    The score is that of rb-score if the records have one, with its metrics and weights initially.

    Needs records with any metric.
    """

    name: ClassVar[str] = "leaderboard"
    endings: ClassVar[tuple[str, ...]] = ("html", "htm")

    title: str = param("Leaderboard", "What stands above the page.")

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
    return filled(page_content.content(records, title), title)


def filled(content: dict[str, Any], title: str) -> str:
    """The template with its parts."""
    style = _file("style.css")
    # all scripts together are one function
    script = '(() => {\n"use strict";\n' + "\n".join(map(_file, _SCRIPTS)) + "})();\n"
    parts = {
        "policy": page_content.policy({"style-src": style, "script-src": script}),
        "title": html.escape(CONTROL.sub("\ufffd", title)),
        "style": style,
        "script": script,
        "content": embedded(content),
    }
    pieces = _file("page.html").split("{{")
    whole = [pieces[0]]
    for piece in pieces[1:]:
        key, rest = piece.split("}}", 1)
        whole += [parts[key], rest]
    return "".join(whole)


def embedded(value: dict[str, Any]) -> str:
    """JSON that is safe inside a script element, whatever texts it holds."""
    text = dumps(value).decode()
    for letter, escaped in _ESCAPED.items():  # first, because a line separator is no mark of direction
        text = text.replace(letter, escaped)
    return CONTROL.sub("\ufffd", text)  # JSON has spelled the control characters


def _file(name: str) -> str:
    return resources.files("rbtools.pages").joinpath(name).read_text("utf-8")
