"""Short trainings on digits, for tests of the trainer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rbtools.models import checkpoint
from rbtools.store import Store
from rbtools.trainer.recipe import Recipe
from tests import runner

Record = dict[str, Any]
# One convolution in each cell: an epoch of large batches takes a tenth of a second.
ARCH = {
    "space": "nasbench201",
    "str": "|none~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|",
    "channels": 2,
    "cells": 1,
}
RECORD: Record = {"schema": 1, "arch": ARCH, "mine": {"kept": True}}
FAST = Recipe(epochs=1, batch_size=721, lr=0.1)


class Pulled(BaseException):
    """Raised to simulate a power cut."""


run_in = partial(runner.run_in, tool="rb-train")


def weights(record: Record, folder: Path | str = "rb-store", which: str = "last") -> dict[str, Tensor]:
    """The weights of a trained record, by name: of its last epoch or its best."""
    return checkpoint.read(Store(folder).object(record["train"]["checkpoints"][which])).state


def history(record: Record) -> dict[str, Any]:
    """The history of a training without what the clock says."""
    curves = record["train"]["history"]
    return {name: values for name, values in curves.items() if not name.startswith("seconds")}
