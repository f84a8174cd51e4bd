"""Attacks on labels beside HopSkipJump of foolbox and of ART: medians of distances over queries, and time.

    python bench/decision_attacks.py [--n 50] [--queries 500,2000,10000] [--norm l2,linf] [--only NAMES]
    python bench/decision_attacks.py --checkpoint FILE --data FOLDER

Without a checkpoint, the network is a small one for digits. All attacks begin at the same random images. The
distance of a peer is that of the nearest misclassified image that it asked about. The processor time of a
peer is without the time that this takes. One JSON line for each attack and norm; `above` is the distance
divided by that of our HopSkipJump, and `times` the processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attacks import of_checkpoint
from calibration import trained
from common import show
from torch import Tensor, nn

from rbtools.attacks import ATTACKS
from rbtools.attacks.decision import AT
from rbtools.attacks.oracle import Oracle
from rbtools.evaluation.base import default_chunk_size
from rbtools.rng.draws import of_images
from rbtools.threats import ball

OURS = {
    "hopskipjump": ("l2", "linf"),
    "rays": ("linf",),
    "surfree": ("l2",),
    "boundary": ("l2",),
}


class Enough(Exception):
    """All queries have been made."""


class Watched(nn.Module):
    """A network that keeps the distances (marks, N) of the nearest misclassified images within each number of
    queries. It is asked about all images in turn, or about some points of the image `alone`."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, norm: str, marks: list[int]) -> None:
        super().__init__()
        self.model, self.images, self.labels, self.norm, self.marks = model, images, labels, norm, marks
        self.asked = torch.zeros_like(labels)
        self.nearest = torch.full((len(marks), len(labels)), torch.inf)
        self.alone: int | None = None
        self.own = 0.0  # processor seconds that are not the network's

    def forward(self, points: Tensor) -> Tensor:
        points = points.float()
        logits: Tensor = self.model(points)
        begin = time.process_time()
        with torch.no_grad():
            rows = torch.arange(len(points))
            first = self.asked + 1
            if self.alone is not None:
                rows, first = torch.full_like(rows, self.alone), self.asked[self.alone] + 1 + rows
            self.asked += torch.bincount(rows, minlength=len(self.asked))
            wrong = logits.argmax(1) != self.labels[rows]
            far = ball.distances(points, self.images[rows], self.norm)
            for place, mark in enumerate(self.marks):
                found = torch.where(wrong & (first <= mark), far, torch.inf)
                self.nearest[place].scatter_reduce_(0, rows, found, "amin")
        self.own += time.process_time() - begin
        if int(self.asked[slice(None) if self.alone is None else self.alone].min()) >= self.marks[-1]:
            raise Enough
        return logits


def of_foolbox(model: Watched, starts: Tensor) -> None:
    import foolbox

    constraint = {"l2": "l2", "linf": "linf"}[model.norm]
    attack = foolbox.attacks.HopSkipJumpAttack(steps=1000, constraint=constraint)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    with contextlib.suppress(Enough):
        attack.run(
            wrapped, model.images, foolbox.criteria.Misclassification(model.labels), starting_points=starts
        )


def of_art(model: Watched, starts: Tensor) -> None:
    """ART attacks one image after another."""
    from art.attacks.evasion import HopSkipJump
    from art.estimators.classification import PyTorchClassifier

    shape = tuple(model.images.shape[1:])
    wrapped = PyTorchClassifier(model, nn.CrossEntropyLoss(), shape, 10, clip_values=(0.0, 1.0))
    norm = {"l2": 2, "linf": np.inf}[model.norm]
    attack = HopSkipJump(wrapped, norm=norm, max_iter=1000, verbose=False)
    for number in range(len(starts)):
        rows = slice(number, number + 1)
        wrapped_calls, model.alone = model.asked.clone(), number
        with contextlib.suppress(Enough):
            attack.generate(model.images[rows].numpy(), x_adv_init=starts[rows].numpy())
        assert int((model.asked - wrapped_calls)[number]) > 0


def starts_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The first misclassified random images of our attacks, or NaN."""
    draws, starts = of_images("bench", images, 0).child("start"), torch.full_like(images, torch.nan)
    for place in range(100):
        noise = draws.uniform(images.shape[1:], draw=place)
        new = starts.flatten(1).isnan().any(1) & (model(noise).argmax(1) != labels)
        starts[new] = noise[new]
    return starts


def ours(
    name: str, norm: str, model: nn.Module, images: Tensor, labels: Tensor, ids: Tensor, marks: list[int]
) -> tuple[Tensor, float]:
    """Distances (marks, N) and processor seconds. `ids` (N,) are the images' numbers for `starts_of`."""
    own = {"norm": norm} if len(OURS[name]) > 1 else {}
    attack = ATTACKS.build(name, eps=None, queries=marks[-1], **own).marked(tuple(marks))
    oracle = Oracle(model, default_chunk_size(torch.device("cpu"), images.shape[1:]))
    begin = time.process_time()
    _, found = attack.run(oracle, images, labels, of_images("bench", images, 0, ids))
    took = time.process_time() - begin
    far = torch.stack([ball.distances(found[f"{AT}{mark}"], images, norm) for mark in marks])
    return torch.where(far == 0, torch.inf, far), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint")
    parser.add_argument("--data")
    parser.add_argument("--arch", default="nb201-13714", help="the checkpoint's architecture")
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--queries", default="500,2000,10000")
    parser.add_argument("--norm", default="l2,linf")
    parser.add_argument("--only", default="hopskipjump,foolbox,art,rays,surfree,boundary")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if given.checkpoint:
        model, images, labels = of_checkpoint(given.checkpoint, given.data, given.n, given.arch)
    else:
        _, model, images, labels = trained(given.n)
    model.requires_grad_(False)
    starts = starts_of(model, images, labels)
    kept = ~starts.flatten(1).isnan().any(1) & (model(images).argmax(1) == labels)
    images, labels, starts, ids = images[kept], labels[kept], starts[kept], kept.nonzero()[:, 0]
    marks = [int(one) for one in given.queries.split(",")]
    peers: dict[str, Callable[[Watched, Tensor], None]] = {"foolbox": of_foolbox, "art": of_art}
    for norm in given.norm.split(","):
        base: tuple[list[float], float] | None = None
        for name in given.only.split(","):
            if norm not in OURS.get(name, (norm,)):
                continue
            if name in OURS:
                far, took = ours(name, norm, model, images, labels, ids, marks)
            else:
                watched = Watched(model, images, labels, norm, marks)
                begin = time.process_time()
                peers[name](watched, starts)
                far, took = watched.nearest, time.process_time() - begin - watched.own
            medians = [statistics.median(row) for row in far.tolist()]
            base = base or (medians, took)
            values: dict[str, Any] = {
                str(mark): round(one, 5) for mark, one in zip(marks, medians, strict=True)
            }
            values["above"] = [round(one / best, 3) for one, best in zip(medians, base[0], strict=True)]
            show(
                f"{name} {norm}", n=len(images), **values, cpu=round(took, 1), times=round(took / base[1], 1)
            )


if __name__ == "__main__":
    main()
