"""Converts strings to cells of a CSV file that are safe in a spreadsheet or a terminal, and back.

A spreadsheet reads a cell that begins with =, +, -, @ or a tab as a formula, which may call programs. With an
apostrophe at the beginning, the cell is plain text. Control characters move the cursor of a terminal, and
direction marks change the order of letters; such characters are escaped as in JSON.
"""

from __future__ import annotations

import re

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the first four, and their full-width forms
_BLANK = " \t\r\n"
_SUSPECT = (*_FORMULA, *_BLANK, "'")
UNSEEN = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_HIDDEN = re.compile(rf"[{UNSEEN}]|\\(?=u[0-9a-f]{{4}})")
_SPELLED = re.compile(r"\\u([0-9a-f]{4})")
_SEEN = re.compile(rf"[{UNSEEN}\\]")


def cell(text: str) -> str:
    """Convert a string to a cell; strings that look like a formula, but are not numbers, are escaped."""
    if not text.isprintable() or "\\" in text:
        text = _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    # Most cells begin with a letter or a digit.
    suspect = text.startswith(_SUSPECT) and _is_formula(text) and not _is_number(text)
    return f"'{text}" if suspect else text


def of_cell(text: str) -> str:
    """Return the string that `cell` converted to this cell."""
    if text.startswith("'") and _is_formula(text):
        text = text[1:]
    return _SPELLED.sub(_letter, text) if "\\u" in text else text


def _is_formula(text: str) -> bool:
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
