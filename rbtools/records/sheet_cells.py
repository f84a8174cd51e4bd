"""Converts texts to cells of a CSV file, which a spreadsheet or a terminal may open, and back.

A spreadsheet reads a cell that begins with =, +, -, @ or a tab as a formula, which may call programs; an
apostrophe in front makes it a text. Control characters move the cursor of a terminal, and direction marks
show letters in another order; both are escaped as in JSON.
"""

from __future__ import annotations

import re

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the first four, and their full-width forms
_BLANK = " \t\r\n"
_UNSEEN = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_HIDDEN = re.compile(rf"[{_UNSEEN}]|\\(?=u[0-9a-f]{{4}})")
_SPELLED = re.compile(r"\\u([0-9a-f]{4})")
_SEEN = re.compile(rf"[{_UNSEEN}\\]")


def cell(text: str) -> str:
    """A text as a cell. A number stays as it is; any other text is escaped so that it is not a formula."""
    if not text.isprintable() or "\\" in text:
        text = _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f"'{text}" if _is_formula(text) and not _is_number(text) else text


def of_cell(text: str) -> str:
    """The text from which `cell` made a cell."""
    if text.startswith("'") and _is_formula(text):
        text = text[1:]
    return _SPELLED.sub(_letter, text) if "\\u" in text else text


def _is_formula(text: str) -> bool:
    """Whether a text begins like a formula, after any apostrophes."""
    return text.lstrip(f"'{_BLANK}").startswith(_FORMULA) or text.lstrip("'").startswith(tuple(_BLANK[1:]))


def _letter(found: re.Match[str]) -> str:
    letter = chr(int(found[1], 16))
    return letter if _SEEN.match(letter) else found[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
