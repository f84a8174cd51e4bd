"""Random numbers for each example, from the generator Philox. Importing this module does not import torch."""

from __future__ import annotations

from typing import Any

# The generator of all random numbers and the version of its use (`draws`): part of every key and entry of a
# random result, so that results before and after a change are never mixed. Raise the version if any draw
# changes.
GENERATOR = "philox4x32-10/1"


def seed_fields(seed: int) -> dict[str, Any]:
    """Return the fields of a key and of an entry that determine the random numbers of a result."""
    return {"seed": seed, "draws": GENERATOR}
