"""Entries say what a model did on each image."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rbtools
from rbtools.cli.image_answers import ImageAnswers
from tests.runner import Record, entry


@pytest.mark.parametrize("detail", [False, True])
def test_bits_give_the_value_of_the_entry(known: dict[str, Record], detail: bool) -> None:
    record = rbtools.attack(known["erm"], "fgsm", eps=[4], n=60, detail=detail, store="rb-store")
    record = rbtools.pr(record, gamma=0.1, rho=[0.1], samples=3, n=60, store="rb-store")
    screen: Any = SimpleNamespace(once=pytest.fail)  # nothing is damaged
    for one in record["evals"]:
        found = ImageAnswers(screen).shares(record, one)
        if one["metric"] in ("seconds_per_epoch", "pr.uniform.0.1"):
            assert found is None
            continue
        assert found is not None
        gives, counts = found
        assert gives.dtype == counts.dtype == np.float32 and gives.shape == counts.shape == (60,)
        assert gives.sum() / counts.sum() == pytest.approx(one["value"])
    # Which images count is known only by the clean accuracy.
    noisy = entry(record, "probacc.uniform.0.1.0.1")
    assert noisy["n"] < 60 and ImageAnswers(screen).shares({**record, "evals": [noisy]}, noisy) is None
