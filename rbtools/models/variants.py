"""Networks that have the same tensor names and shapes but compute different functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rbtools import models
from rbtools.models.cell_network import edges_to_compute
from rbtools.models.families import Inferred
from rbtools.spaces import zoo
from rbtools.spaces.nasbench201 import ops_of
from rbtools.spaces.zoo import SHORTCUTS, PreActResNetForm, ResNetForm

# Fields of an architecture record that distinguish variants.
VARIANT_FIELDS = ("stem", "shortcut", "activation", "eps")


def variants_of(arch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the architecture, and after it its known variants."""
    usual = {"shortcut": SHORTCUTS[0], **arch}
    others = [fields for fields in _variant_fields(arch) if any(usual.get(f) != v for f, v in fields.items())]
    return [dict(arch), *({**arch, **fields} for fields in others)]


def label(arch: Mapping[str, Any]) -> str:
    """Returns NAME:FIELD=VALUE for messages and `--arch`, with the space unless it is the zoo."""
    space = "" if arch.get("space") in ("zoo", "nasbench201") else f"{arch.get('space')}:"
    fields = [f":{field}={arch[field]}" for field in (*VARIANT_FIELDS, "pool") if field in arch]
    return f"{space}{arch.get('name') or arch.get('str')}{''.join(fields)}"


def _variant_fields(arch: Mapping[str, Any]) -> list[dict[str, str]]:
    name = str(arch.get("name"))
    if arch.get("space") in models.VARIANTS:
        return list(models.VARIANTS.load(str(arch["space"]))(arch))
    form = zoo.FORMS.get(name) if arch.get("space") == "zoo" else None
    if isinstance(form, ResNetForm) and arch.get("stem") != "imagenet" and arch.get("pool") != "4x4":
        return [{"stem": "cifar"}, {"stem": "cifar-maxpool"}]
    if isinstance(form, PreActResNetForm):
        return [{"shortcut": shortcut} for shortcut in SHORTCUTS]
    return []


def different_cells(candidates: Sequence[Inferred]) -> list[dict[str, Any]]:
    """Returns one architecture per function: cells that differ in unused edges have the same one."""
    by_function: dict[tuple[int | None, ...], dict[str, Any]] = {}
    for arch in sorted((one.arch for one in candidates), key=lambda arch: int(arch["index"])):
        ops = ops_of(arch)
        used = edges_to_compute(ops)
        by_function.setdefault(tuple(op if live else None for op, live in zip(ops, used, strict=True)), arch)
    return list(by_function.values())
