"""Networks with the same names and shapes that compute something else: known variants of a family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.spaces import external, zoo
from rbtools.spaces.zoo_forms import SHORTCUTS, PreActResNetForm, ResNetForm

FIELDS = ("stem", "shortcut")  # of an architecture record, that tell variants apart


def of(arch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The architecture and its known variants, itself first; alone where none is known."""
    return [dict(arch), *({**arch, **fields} for fields in _fields(arch) if not _has(arch, fields))]


def label(arch: Mapping[str, Any]) -> str:
    """What messages and `--arch` call it: NAME or NAME:FIELD=VALUE, with the space unless it is the zoo."""
    space = "" if arch.get("space") in ("zoo", "nasbench201") else f"{arch.get('space')}:"
    fields = [f":{field}={arch[field]}" for field in FIELDS if field in arch]
    return f"{space}{arch.get('name') or arch.get('str')}{''.join(fields)}"


def _has(arch: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    defaults = {"shortcut": SHORTCUTS[0]}
    return all(arch.get(field, defaults.get(field, "")) == value for field, value in fields.items())


def _fields(arch: Mapping[str, Any]) -> list[dict[str, str]]:
    """The fields that the variants of one network have."""
    name = str(arch.get("name"))
    if arch.get("space") == "torchvision" and name.startswith(external.WITH_SMALL_STEM):
        return [{"stem": external.SMALL_STEM}]
    form = zoo.FORMS.get(name) if arch.get("space") == "zoo" else None
    if isinstance(form, ResNetForm) and arch.get("stem") != "imagenet":
        return [{"stem": "cifar"}, {"stem": "cifar-maxpool"}]
    if isinstance(form, PreActResNetForm):
        return [{"shortcut": shortcut} for shortcut in SHORTCUTS]
    return []
