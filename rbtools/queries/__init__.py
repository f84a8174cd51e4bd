"""Models that only answer: a command, or an address. Each kind is one file and one line in `KINDS`."""

from __future__ import annotations

from rbtools.registry import Registry

KINDS = Registry(
    "kind of model",
    {
        "command": "rbtools.queries.command:CommandModel",
        "url": "rbtools.queries.address:AddressModel",
    },
    group="models",
)
