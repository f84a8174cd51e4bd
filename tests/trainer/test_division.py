"""Batches divided among processes: divisions with which synchronised BatchNorm would wait forever are
refused."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from rbtools.errors import RbError
from rbtools.trainer import distributed, division, loop
from rbtools.trainer.optim import batches


@pytest.mark.parametrize(
    ("sizes", "micro_batch", "processes", "told"),
    [
        ([128, 128, 4], None, 4, None),
        ([128, 6], 2, 2, None),
        ([9], 8, 2, None),
        ([128, 128, 3], None, 4, r"of 3 images\. Each of 4 GPUs has 0\..* last batch of 4 images"),
        ([1], 1, 2, r"has 0\."),
        ([11], 2, 2, r"of 11 images\. Each of 2 GPUs has 5 or 6: 2 or 3 pieces of at most 2\."),
    ],
)
def test_batches_of_which_a_gpu_would_wait_in_vain_are_refused(
    sizes: list[int], micro_batch: int | None, processes: int, told: str | None
) -> None:
    with pytest.raises(RbError, match=told) if told else nullcontext():
        division.check_pieces(sizes, micro_batch, processes)


def test_pieces_are_counted_as_they_are_made() -> None:
    for share in range(1, 12):
        for micro_batch in range(1, 6):
            made = len(batches(torch.arange(share), micro_batch))
            assert division._pieces(share, micro_batch) == made, (share, micro_batch)


def test_a_training_is_refused_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pretend device, with four simulated processes that never communicate."""
    from rbtools.training import METHODS
    from tests.pretend_device import PretendDevice
    from tests.pretend_training import trained_for

    for name, answer in (("count", 4), ("rank", 0), ("broadcast", None)):
        monkeypatch.setattr(distributed, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(loop, "train_epoch", lambda *_: pytest.fail("it began to train"))
    with PretendDevice(), pytest.raises(RbError, match=r"of 2 images\. Each of 4 GPUs has 0"):
        trained_for(10, METHODS.build("erm"), "cuda", batch_size=38)
