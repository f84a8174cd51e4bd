"""Accuracy of a randomised model: the mean over random passes replaces the result of one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.evaluation.base import default_chunk_size
from rbtools.evaluation.spec import Evaluation
from rbtools.lazy import torch

LOOKED = 3  # version of the checks of a model, for keys in the store
IMAGES = 8  # the number of images on which a model is tested for random numbers
PIXELS = 64 * 32 * 32  # the pixels of a batch on which a model is tested for dependence on the batch
_WORDS = {"dropout": "dropout is on in its forward pass", "noise": "its forward pass draws random numbers"}


class Randomness(NamedTuple):
    """The randomness of a model.

    `kind` is "none", "dropout" or "noise". `numbers` is "example" if the random numbers can belong to the
    examples in a batch of any size, "one by one" if this is possible only when every image goes through the
    model separately, and "uncontrolled" otherwise, for example if the model has its own generator. `batch` is
    true if the logits of an image depend on the other images of the batch, or on its position in the batch.
    `changes` is true if a pass changes the model's parameters or buffers.
    """

    kind: str = "none"
    numbers: str = "example"
    batch: bool = False
    changes: bool = False

    @property
    def randomised(self) -> bool:
        """Whether a second pass returns other logits for the same image."""
        return self.kind != "none"

    def sentence(self, draws: int, eot: int | None) -> str:
        """A sentence, without its subject, about the evaluation of a randomised model. `eot` is the number of
        random passes over which an attack averages its gradients."""
        of_attacks = {
            None: "",
            1: ", and attacks follow the gradient of one draw (--eot 1), which is a weak guide",
        }
        means = of_attacks.get(eot, f", and attacks use means over {eot} draws (--eot)")
        single = {
            "example": "",
            "one by one": " Some of its numbers belong to the batch: every image goes through it alone.",
            "uncontrolled": " Its numbers come from a generator of its own: results do not repeat.",
        }[self.numbers]
        verdicts = f"Verdicts are means over {draws} draws (--draws)"
        verdicts = verdicts if draws > 1 else "A verdict is of one draw (--draws 1)"
        return f"is randomised: {_WORDS[self.kind]}. {verdicts}{means}.{single}"

    def checked(self) -> Randomness:
        """This object. Raises RbError if the result for an image depends on other images."""
        if self.batch:
            raise RbError(
                "The model is in train mode, takes statistics over the batch, or adds noise of a fixed seed:"
                " what it gives for an image depends on the others of its batch. Call model.eval() before it"
                " is saved and leave the choice to module.training, or draw noise from torch's own generator"
                " without a seed."
            )
        if self.changes:
            raise RbError(
                "The model changes its parameters or buffers while it is tested, so a result depends on the"
                " images before it. Call model.eval() before it is saved."
            )
        return self


def batch_of_look(images: Any, most: int) -> int:
    """The number of images (N, C, H, W), at most `most`, on which a model is tested for randomness."""
    small = max(2 * IMAGES, PIXELS // (images.shape[2] * images.shape[3]))
    return int(min(most, small, default_chunk_size(torch.device("cpu"), images.shape[1:])))


def eot_of(evaluation: Evaluation) -> int | None:
    """The number of random passes over which an attack averages its gradients, or None without an attack."""
    methods: list[Any] = [getattr(spec, "method", None) for spec in evaluation.specs]
    return next((method.draws_each for method in methods if hasattr(method, "draws_each")), None)


def by_draws(evaluation: Evaluation, draws: int) -> Evaluation:
    """The evaluation in which means over random passes replace the result of one pass. Raises RbError if the
    evaluation has no such means."""
    every = evaluation.every
    specs, along = ([spec.by_draws(draws) for spec in part] for part in (evaluation.specs, evaluation.along))
    if specs == [*evaluation.specs]:
        return evaluation
    if None in (*specs, *along):
        raise RbError(
            f"The model is randomised, and {evaluation.title} has no verdict over draws. Measure its accuracy"
            " with rb-attack or rb-corrupt, or give --draws 1 to judge it by one draw."
        )
    if any(spec.detail for spec in every) or evaluation.save is not None:
        raise RbError("--detail and --save-adv are of one pass, and this model is randomised: omit them.")
    if any(spec.needs for spec in every):
        raise RbError("--ladder is of verdicts, and this model is randomised: leave it out.")
    return replace(evaluation, title=f"{evaluation.title}, {draws} draws", specs=(*specs,), along=(*along,))
