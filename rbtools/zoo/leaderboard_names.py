"""The networks, normalisations and preprocessing of RobustBench's entries, from `robustbench.json`.

`python bench/zoo.py SOURCE --table` writes the table from RobustBench's own code.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from rbtools.errors import RbError, unknown

CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
# Entries with several networks or special layers, and the reason why they need their authors' code.
WITHOUT = {
    "Chen2020Adversarial": "an ensemble of three networks in three files",
    "Diffenderfer2021Winning_LRR_CARD_Deck": "an ensemble of six networks; each is repo:card/resnet18-w128",
    "Diffenderfer2021Winning_Binary_CARD_Deck": "an ensemble of six networks; each is"
    " repo:card/wide-preactresnet18-x2",
    "Bai2023Improving_edm": "a mixture of two networks, weighted by a third one",
    "Bai2023Improving_trades": "a mixture of two networks, weighted by a third one",
    "Bai2024MixedNUTS": "a mixture of two networks",
    "Kang2021Stable": "a network with an ODE layer",
    "Sehwag2021Proxy_ResNest152": "a ResNeSt",
    "Amini2024MeanSparse_ConvNeXt-L": "a ConvNeXt with MeanSparse layers",
    "Amini2024MeanSparse_Swin-L": "a Swin transformer with MeanSparse layers",
}


@cache
def table() -> dict[str, tuple[str, str, str]]:
    """Maps each DATASET/THREAT/NAME to (`--arch`, `--normalize`, preprocessing).

    A normalisation is "" if the weights file contains it. A preprocessing is "" if it is the default.
    """
    text = Path(__file__).with_name("robustbench.json").read_text("utf-8")
    return {name: (row[0], row[1], row[2]) for name, row in json.loads(text).items()}


def entry(name: str, classes: int | None = None) -> tuple[str, str, str]:
    """Returns the row of NAME, DATASET/NAME or DATASET/THREAT/NAME. `classes` may select the data set.

    Raises RbError if the name is unknown or ambiguous, or if the entry can only be built with its authors'
    code.
    """
    own = name.rpartition("/")[2]
    rows = {key: row for key, row in table().items() if _is(key, name)}
    if len(set(rows.values())) > 1:
        fitting = {key: row for key, row in rows.items() if CLASSES[key.partition("/")[0]] == classes}
        rows = fitting or rows
    if not rows and own in WITHOUT:
        raise RbError(
            f"robustbench:{name} is {WITHOUT[own]}. Write a function that builds it and loads its files,"
            " and add --arch python:MODULE:FUNCTION --allow-code."
        )
    if not rows:
        names = dict.fromkeys(key.rpartition("/")[2] for key in table())
        raise unknown("entry of RobustBench", name, [*names, *table()])
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"robustbench:{key}" for key in rows)
        raise RbError(f"robustbench:{name} names several networks. Choose from: {listed}.")
    return next(iter(rows.values()))


def _is(key: str, name: str) -> bool:
    dataset, threat, own = key.split("/")
    return name in (own, f"{dataset}/{own}", f"{threat}/{own}", key)
