"""Creates pages from templates, as single HTML files that load no other files. Every value is escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from rbtools.records import dumps

if TYPE_CHECKING:
    from jinja2 import Environment

# Control characters, ends of lines and marks of direction.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def page(template: str, sources: Mapping[str, str], values: Mapping[str, Any], *allowed: str) -> str:
    """Fill a template with these values. `sources` maps the directives of the content
    security policy, `style-src` and `script-src`, to the page's own styles and scripts. Everything else is
    blocked, except for sources that the further directives in `allowed` permit."""
    from markupsafe import Markup

    policy = ["default-src 'none'", "base-uri 'none'", "form-action 'none'", *allowed]
    for directive, text in sources.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        policy.append(f"{directive} 'sha256-{digest}'")
    own = {directive.partition("-")[0]: Markup(text) for directive, text in sources.items()}
    return (
        _environment().from_string(file(template)).render(**own, policy=Markup("; ".join(policy)), **values)
    )


def file(name: str) -> str:
    return resources.files("rbtools.pages").joinpath(name).read_text("utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=_plain,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_function"] = _json
    return environment


def _plain(value: object) -> object:
    """A value for a template, in which control characters other than line ends become spaces."""
    if hasattr(value, "__html__"):
        return value
    lines = str(value).encode(errors="replace").decode().split("\n")
    return "\n".join(CONTROL.sub(" ", line) for line in lines)


def _json(value: dict[str, Any], **_: object) -> str:
    """JSON for a script element. The template filter `tojson` escapes this JSON further."""
    text = dumps(value).decode()  # `dumps` has escaped the control characters
    for letter in "\u2028\u2029":  # escaped here, because they are not marks of direction
        text = text.replace(letter, f"\\u{ord(letter):x}")
    return CONTROL.sub("\ufffd", text)
