"""How a finished training stands in a record, from what determined it and what came out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def section(what: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, Any]:
    """The record's `train`: the method, its whole configuration, what it cost, and its history."""
    method, recipe = what["method"], what["recipe"]
    places = ("seconds_per_epoch", "device", "threads", "trained_on")
    cost = {key: done[key] for key in places if done.get(key) is not None}
    return {
        "method": method["name"],
        "seed": what["seed"],
        "epochs": recipe["epochs"],
        **cost,
        "config": {**method["config"], **recipe, "normalize": done["normalize"]},
        "precision": what["precision"],
        "draws": what["draws"],
        "history": done["history"],
    }


def entries(done: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the training measured: its seconds per epoch, where it had any epoch."""
    if done["seconds_per_epoch"] is None:
        return []
    return [
        {
            "tool": "rb-train",
            "metric": "seconds_per_epoch",
            "value": done["seconds_per_epoch"],
            "device": done["device"],
            "threads": done["threads"],
        }
    ]
