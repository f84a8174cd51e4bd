"""Makes the `train` section of a record from the configuration and the results of a training run."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from rbtools.errors import RbError, shown

# Fields for the cost of a training run, where it ran, and unusual settings.
_COST = ("seconds_per_epoch", "passes", "prepared", "device", "environment", "threads", "mps")
_COURSE = ("trained_on", "batchnorm", "stopped_after", "catastrophic_overfitting", "at_chance", "output")


def section(
    what: Mapping[str, Any],
    done: Mapping[str, Any],
    select: str = "last",
    preset: str | None = None,
    stored: Container[str] | None = None,
) -> dict[str, Any]:
    """Return the record's `train`: the method, its configuration, its cost and its history.

    `checkpoints` names the last weights and, after validation, the best weights; `select` determines which of
    them the record's `checkpoint` names. `stored` contains the names of the weights that were stored (None:
    all).
    """
    method, recipe = what["method"], what["recipe"]
    names = {"last": done["checkpoint"], **({"best": done["best"]} if "best" in done else {})}
    checkpoints = {"selected": select}
    checkpoints |= {which: name for which, name in names.items() if stored is None or name in stored}
    checkpoints |= {"best_epoch": done["best_epoch"]} if "best" in done else {}
    return {
        "method": method["name"],
        "seed": what["seed"],
        "epochs": recipe["epochs"],
        **({} if preset is None else {"preset": preset}),
        **{key: done[key] for key in (*_COST, *_COURSE) if done.get(key) is not None},
        "config": {**method["config"], **recipe, "normalize": done["normalize"]},
        **{key: what[key] for key in ("precision", "draws", "init", "processes") if key in what},
        "checkpoints": checkpoints,
        **{key: done[key] for key in ("validation", "tracking") if key in done},
        "history": done["history"],
    }


def entries(done: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of the training run: the seconds per epoch, if there was at least one epoch."""
    if done["seconds_per_epoch"] is None:
        return []
    return [
        {
            "tool": "rb-train",
            "metric": "seconds_per_epoch",
            "value": done["seconds_per_epoch"],
            "device": done["device"],
            "threads": done["threads"],
            **{key: done[key] for key in ("environment",) if key in done},
        }
    ]


def config(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record's `train.config`, if any. Raises RbError if it or `train` is not an object."""
    train = record.get("train") or {}
    settings = train.get("config") if isinstance(train, Mapping) else train
    if not isinstance(settings or {}, Mapping):
        raise RbError(
            f"The record's train.config is {shown(repr(settings))}. Expected an object as written by"
            " rb-train."
        )
    return settings or {}


def images(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that selected the images of a training run: the number of images (`train_n`), and
    the share of them that was held out (`val`, in [0, 1)), unless all were used. Raises RbError."""
    settings = config(record)
    share, count = settings.get("val") or 0, settings.get("train_n")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise RbError(
            f"The record's train.config.val is {shown(repr(share))}. Expected the share of the training"
            " images that was held out, which is at least 0 and below 1."
        )
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise RbError(
            f"The record's train.config.train_n is {shown(repr(count))}. Expected the number of training"
            " images, which is at least 1."
        )
    return {**({"val": float(share)} if share else {}), **({} if count is None else {"train_n": count})}
