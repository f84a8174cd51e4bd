"""Write `zoo/timm.json`, which maps digests of tensor names and shapes to timm's networks.

Run `python -m rbtools.zoo.make_timm_table > rbtools/zoo/timm.json` with timm installed. It takes 20 minutes.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from rbtools.errors import RbError
from rbtools.models.meta import meta_init
from rbtools.zoo.by_digest import digest
from rbtools.zoo.libraries import import_timm

LARGEST = 450_000_000  # the most parameters of a network in the table


def entries() -> dict[str, dict[str, Any]]:
    """Maps each digest to `head`, `stem` and `names`, with only the shortest name of equal functions."""
    timm = import_timm()
    functions: set[tuple[str, str]] = set()
    table: dict[str, dict[str, Any]] = {}
    for name in sorted(timm.list_models(), key=lambda one: (len(one), one)):
        try:
            with warnings.catch_warnings(), meta_init():
                warnings.simplefilter("ignore")
                network = timm.create_model(name, pretrained=False, num_classes=7)
        except (RuntimeError, RbError, ValueError, NotImplementedError, AttributeError, TypeError):
            continue  # the network computes with its parameters while it is built
        state, cfg = network.state_dict(), network.pretrained_cfg
        ends = [f"{cfg.get(end)}.weight" for end in ("classifier", "first_conv")]
        small = sum(value.numel() for value in network.parameters()) <= LARGEST
        if name.startswith("test_") or not small or not all(end in state for end in ends):
            continue
        key, function = digest(state, *ends), repr(network)
        about = table.setdefault(key, {"names": [], "head": ends[0], "stem": ends[1]})
        if (key, function) not in functions:
            functions.add((key, function))
            about["names"].append(name)
    return table


if __name__ == "__main__":
    lines = (f"{json.dumps(key)}:{json.dumps(row, separators=(',', ':'))}" for key, row in entries().items())
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
