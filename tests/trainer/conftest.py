"""What several tests of the trainer watch."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from rbtools.trainer import loop


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The examples of every batch that is trained on, with any method, in this process."""
    found: list[list[int]] = []
    step = loop.train_step

    def watched(setup: Any, state: Any, ids: Tensor, *more: Any) -> Tensor:
        found.append(ids.tolist())
        return step(setup, state, ids, *more)

    monkeypatch.setattr(loop, "train_step", watched)
    return found
