"""Files of prompts: the texts for the classes of a zero-shot classifier."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from rbtools.errors import RbError, shown
from rbtools.plain_files import read_plain, text_of

ZERO_SHOT = "open_clip"  # the space of zero-shot classifiers
BLANK = "{}"
LARGEST = 2**24  # bytes
EXPECTED = (
    "a line for each class in the order of their indices, such as 'goldfish', and for all of them templates"
    f' such as \'a photo of a {BLANK}.\'; or JSON, {{"classes": [...], "templates": [...]}}, where a class'
    " is a name or a list of prompts"
)


def digest(path: str) -> str:
    """The hash of a file's bytes. Raises RbError where it cannot be read."""
    return hashlib.sha256(_bytes(path)).hexdigest()[:16]


def read(path: str, classes: int) -> list[list[str]]:
    """The prompts of each class: its name in every template, or its own.

    Without a template a name is the whole prompt. Raises RbError for another layout, and where there are not
    as many classes.
    """
    names, templates = _parsed(path)
    if len(names) != classes:
        raise RbError(
            f"The file of prompts {path} has {len(names)} classes, and the data set has {classes}."
            f" Expected {EXPECTED}."
        )
    return [
        list(one) if not isinstance(one, str) else [text.replace(BLANK, one) for text in templates or [BLANK]]
        for one in names
    ]


def refuse_other_order(path: str, class_names: Sequence[str]) -> None:
    """Raise RbError where the classes are those of the data set in another order."""
    names = [_plain(one) if isinstance(one, str) else "" for one in _parsed(path)[0]]
    expected = [_plain(name) for name in class_names]
    if names != expected and sorted(names) == sorted(expected):
        place = next(i for i, (name, other) in enumerate(zip(names, expected, strict=True)) if name != other)
        raise RbError(
            f"The file of prompts {path} has the classes of the data set in another order: class {place} is"
            f" '{shown(names[place])}' there and '{shown(expected[place])}' in the data set. Expected the"
            " data set's order."
        )


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _parsed(path: str) -> tuple[list[str | list[str]], list[str]]:
    """The classes, each a name or its prompts, and the templates."""
    try:
        text = text_of(_bytes(path), "utf-8-sig", path)
    except UnicodeDecodeError:
        raise RbError(f"The file of prompts {path} is no text in UTF-8. Expected {EXPECTED}.") from None
    if text.lstrip()[:1] in ("{", "[") and not text.lstrip().startswith(BLANK):
        return _of_json(path, text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [line for line in lines if BLANK not in line], [line for line in lines if BLANK in line]


def _of_json(path: str, text: str) -> tuple[list[str | list[str]], list[str]]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RbError(
            f"The file of prompts {path} begins as JSON and is none ({error}). Expected {EXPECTED}."
        ) from None
    value = {"classes": value} if isinstance(value, list) else value
    names, templates = value.get("classes"), value.get("templates", [])
    whole = isinstance(names, list) and all(isinstance(one, str) or _are_texts(one) for one in names)
    if not whole or not (templates == [] or _are_texts(templates)):
        raise RbError(f"The file of prompts {path} is JSON of another layout. Expected {EXPECTED}.")
    without = next((one for one in templates if BLANK not in one), None)
    if without is not None:
        raise RbError(
            f"The file of prompts {path} has the template '{shown(without)}' without {BLANK}, which the name"
            " of a class replaces."
        )
    return names, templates


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _bytes(path: str) -> bytes:
    try:
        return read_plain(path, LARGEST)
    except OSError as error:
        reason = error.strerror or shown(str(error))
        raise RbError(f"The file of prompts {path} cannot be read: {reason}. Expected {EXPECTED}.") from None
