"""Accuracy under PGD during training, to find the best epoch and to detect catastrophic overfitting."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from rbtools import datasets
from rbtools.datasets import indices
from rbtools.execution.run import Run
from rbtools.inputs.data import data_of, named_data
from rbtools.lazy import nn, torch
from rbtools.records import trained
from rbtools.rng.draws import Draws
from rbtools.store import digest
from rbtools.trainer.augment import pixels
from rbtools.trainer.recipe import Recipe, held_out
from rbtools.trainer.state import TrainState, weights_of
from rbtools.training import METHODS
from rbtools.training.base import Method, cross_entropy, mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from rbtools.datasets.streaming import Streamed
    from rbtools.trainer.begin import TrainExamples, TrainSetup


STEPS = 10
ENOUGH = 16
"""The test for catastrophic overfitting uses held-out images if there are at least this many, otherwise
training images."""
_TILE = 500
_LEAST, _MOST, _SHARE = 32, 512, 50  # the test for overfitting uses one training image of _SHARE
_FALL, _GAP = 0.5, 0.2
_ERRORS = 2  # a network that has learnt something is at least so many standard errors above chance
LEARNING = 5
"""The number of epochs after which a network that learns should be better than chance."""


def split(labels: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Return the training examples and the held-out ones, both in order and in proportion to the classes."""
    order = torch.arange(len(labels))
    if recipe.train_n is not None:
        order = datasets.subset(labels, recipe.train_n, seed=0).sort().values
    count = held_out(recipe, len(labels))
    if count == 0:
        return order, order[:0]
    left = torch.ones(len(order), dtype=torch.bool)
    left[datasets.subset(labels[order], count, seed=0)] = False
    return order[left], order[~left]


def trained_on(record: dict[str, Any], run: Run) -> indices.Indices | None:
    """Return the images of the training split that `--train-n` chose and `--val` did not hold out. Returns
    None if all images were used, if nothing is known about the training, or if the run uses other data.
    Raises RbError for an invalid record."""
    chosen = trained.images(record)
    data = data_of(record, run, "train")
    if not chosen or named_data(record, data.name) != data.name:
        return None
    what = {"kind": "images of training", "version": indices.ORDER, "data": data.fingerprint, **chosen}
    key = digest(what)
    kept = run.store.result(key)
    if kept is None:
        kept = split(data.load().labels, Recipe(**chosen))[0].tolist()
        run.store.keep_result(key, what, kept)
    return indices.of(kept)


def attack_of(method: Method) -> Any:
    """Return the method's attack in another threat, if it has one; otherwise PGD in L-infinity with ten steps
    of a quarter of the radius. The radius is that of the method, or 8/255."""
    if other := getattr(method, "attack", ""):
        return METHODS.build("pgd", attack=other, attack_steps=STEPS)
    eps = min(getattr(method, "eps", 8 / 255), 1.0)  # on the sphere it may be larger
    return METHODS.build("pgd", eps=eps, step_size=2.5 * eps / STEPS, attack_steps=STEPS)


def settings(method: Method) -> dict[str, Any]:
    attack = attack_of(method)
    if attack.attack:
        return {"attack": attack.attack, "steps": STEPS}
    return {"attack": "pgd", "eps": attack.eps, "step_size": attack.step_size, "steps": STEPS}


class Checks:
    """Measures accuracies under PGD after each epoch, always with the same random numbers, on the held-out
    images, if any. For single-step training, training images are also used if too few are held out."""

    def __init__(self, examples: TrainExamples, method: Method, seed: int) -> None:
        self.examples, self.method, self.seed = examples, method, seed
        self.attack = attack_of(method)

    @cached_property
    def few(self) -> Tensor:
        """The examples on which single-step training is attacked."""
        if len(self.examples.held) >= ENOUGH:
            return self.examples.held
        ids = self.examples.ids
        count = min(max(len(ids) // _SHARE, _LEAST), _MOST, len(ids))
        return ids[datasets.subset(self.examples.labels.cpu()[ids], count, seed=0)].sort().values

    def after(self, state: TrainState) -> dict[str, float]:
        """Return the results of the finished epoch, and store the best epoch (by accuracy, then loss)."""
        held, numbers = self.examples.held, {}
        if len(held):
            numbers = self.measure(state.kept, held)
            rank = (numbers["val_robust_acc"], -numbers["val_robust_loss"])
            if state.best is None or rank > tuple(state.best["rank"]):
                state.best = {"epoch": state.epoch, "rank": list(rank), "state": weights_of(state.kept)}
        if not self.method.single_step:
            return numbers
        attacked = numbers if self.few is held else self.measure(state.kept, self.few)
        return {**numbers, "pgd_acc": attacked["val_robust_acc"]}

    def measure(self, model: nn.Module, ids: Tensor) -> dict[str, float]:
        """Clean accuracy, robust accuracy and robust loss of a model, which is in eval mode."""
        model.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        for part in ids.to(self.examples.labels.device).split(_TILE):
            images, labels = pixels(self.examples.images[part]), self.examples.labels[part]
            draws = Draws(self.seed, "validation", part)
            perturbed = self.attack.perturb(model, images, labels, draws)
            with torch.no_grad():
                clean, robust = model(images), model(perturbed)
                loss = cross_entropy(robust, labels).sum()
            right = [(logits.argmax(1) == labels).sum() for logits in (clean, robust)]
            sums += torch.stack([*right, loss]).double().cpu()
        acc, robust_acc, loss = (sums / len(ids)).tolist()
        return {"val_acc": acc, "val_robust_acc": robust_acc, "val_robust_loss": loss}


def overfitting(history: Mapping[str, Sequence[float]]) -> int | None:
    """The first epoch (from 1) with catastrophic overfitting (Wong et al. 2020, arXiv:2001.03994), or None.

    In this epoch, the accuracy under PGD (`pgd_acc`) has fallen below half of its highest value so far, and
    by more than 0.2. The accuracy under the method's own single step (`robust_acc`) is more than 0.2 higher.
    """
    attacked, own_step = (history.get(name, ()) for name in ("pgd_acc", "robust_acc"))
    highest = 0.0
    for epoch, (pgd, own) in enumerate(zip(attacked, own_step, strict=False), 1):
        if pgd < _FALL * highest and highest - pgd > _GAP and own - pgd > _GAP:
            return epoch
        highest = max(highest, pgd)
    return None


def overfitting_in_words(history: Mapping[str, Sequence[float]]) -> str:
    pgd, own = (history[name][-1] for name in ("pgd_acc", "robust_acc"))
    return (
        f"catastrophic overfitting in epoch {len(history['robust_acc'])}. Under PGD-{STEPS} the accuracy"
        f" fell from {max(history['pgd_acc']):.3g} to {pgd:.3g}; under the single step of the"
        f" training it is {own:.3g}. Use n-fgsm with more noise (--k), a smaller --eps, or pgd with more"
        " --attack-steps."
    )


def at_chance(setup: TrainSetup, state: TrainState) -> dict[str, float]:
    """Warn if the training run ended at the accuracy of guessing. Returns its clean accuracy."""
    if state.epoch < LEARNING:
        return {}
    examples, classes = setup.examples, setup.examples.about.classes
    accuracy = ended_at_chance(state.kept, examples.images, examples.labels, examples.ids, classes)
    if accuracy is None:
        return {}
    smaller = ", a smaller --eps" if hasattr(setup.method, "eps") else ""
    setup.tell(
        f"the training ended at chance. The clean accuracy on training images is {accuracy:.3g}; a guess"
        f" among {classes} classes gives {1 / classes:.3g}. Train with more --epochs{smaller}, or another"
        " --lr."
    )
    return {"at_chance": round(accuracy, 6)}


def ended_at_chance(
    model: nn.Module, images: Tensor | Streamed, labels: Tensor, ids: Tensor, classes: int
) -> float | None:
    """Return the clean accuracy on at most 512 of the training examples `ids`, in proportion to the classes,
    or None if it is better than guessing (at least two standard errors above 1 / classes)."""
    chosen = ids[datasets.subset(labels[ids].cpu(), min(_MOST, len(ids)), seed=0)]
    right = []
    with torch.no_grad(), mode(model, train=False):
        for part in chosen.split(_TILE):
            right.append((model(pixels(images[part])).argmax(1) == labels[part]).sum())
    accuracy, chance = int(torch.stack(right).sum()) / len(chosen), 1 / classes
    error = (chance * (1 - chance) / len(chosen)) ** 0.5
    return accuracy if classes > 1 and accuracy < chance + _ERRORS * error else None
