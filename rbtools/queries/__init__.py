"""Models that can only be queried, by a command or an address. Each kind has a file and a line in `KINDS`."""

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
