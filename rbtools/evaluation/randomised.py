"""Finds out whether a model is randomised, and controls its random numbers for each example.

The model is run several times on the same images, and on some of the images in another batch. A model whose
logits differ between passes of the same batch is randomised. A model whose logits differ only in another
batch depends on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from rbtools.errors import RbError, optional
from rbtools.evaluation.by_draws import IMAGES, Randomness
from rbtools.execution.device import out_of_memory
from rbtools.rng.foreign import ExampleNumbers, states

SAME = 1e-3  # outputs that differ by less than this share of the logits' range are equal
_FEW = 2  # images of the other batch
_PASSES = 32  # further passes of a model that uses random numbers: a single number may repeat by chance
_UNSEEN = 8  # further passes of a few images: any model may have its own generator
_CHECKS = 6  # passes that check that the random numbers belong to the examples

Passed = Callable[[Tensor], Tensor]


class RandomisedModel(nn.Module):
    """A randomised model. With `one_by_one`, every image goes through the model separately."""

    randomised = True

    def __init__(self, network: nn.Module, one_by_one: bool = False) -> None:
        super().__init__()
        self.network, self.one_by_one = network, one_by_one

    def forward(self, images: Tensor) -> Tensor:
        numbers = ExampleNumbers.active[-1] if ExampleNumbers.active else None
        if numbers is None or not self.one_by_one or not len(images):
            return self.network(images)
        parts = []
        for i in range(len(images)):
            with numbers.row(i):
                parts.append(self.network(images[i : i + 1]))
        return torch.cat(parts)


def controlled(model: nn.Module, randomness: Randomness) -> nn.Module:
    """The model that is evaluated: the model itself or, if it is randomised, a `RandomisedModel`."""
    return RandomisedModel(model, randomness.numbers != "example") if randomness.randomised else model


def look(model: nn.Module, images: Tensor) -> Randomness:
    """The randomness of a model. Errors in a pass count as "nothing is random"."""
    found = Randomness()
    try:
        found = randomness_of(model, images)
    except Exception as wrong:  # the network's own code
        if isinstance(wrong, RbError) or (isinstance(wrong, RuntimeError) and out_of_memory(wrong)):
            raise
    return found


def randomness_of(model: nn.Module, images: Tensor) -> Randomness:
    """The randomness of a model, determined by passes of two or more images (N, C, H, W). Logits that are not
    finite count as "nothing is random", because the evaluation reports this problem."""
    state = {name: value.clone() for name, value in model.state_dict().items()}

    batch, images = images, images[:IMAGES]

    def passed(one: nn.Module, part: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = one(part)
        return logits.float() if isinstance(logits, torch.Tensor) else torch.tensor(torch.nan)

    first = passed(model, images)
    if first.dim() != 2 or not bool(first.isfinite().all()):
        return Randomness()
    changes = any(not torch.equal(value, state[name]) for name, value in model.state_dict().items())

    def again(one: nn.Module, part: Tensor) -> Tensor:
        """Run a pass that starts from the state of the checkpoint and restores this state afterwards."""
        if changes:
            model.load_state_dict(state)
        logits = passed(one, part)
        if changes:
            model.load_state_dict(state)
        return logits

    near = SAME * float(first.max() - first.min()) + 1e-6

    def differ(one: Tensor, other: Tensor) -> bool:
        return one.shape != other.shape or not float((one - other).abs().max()) <= near  # true for NaN, too

    before = states(images.device)
    other, few = differ(first, again(model, images)), again(model, images[:_FEW])
    if states(images.device) != before:
        other = other or any(differ(first, again(model, images)) for _ in range(_PASSES))
    other = other or any(differ(few, again(model, images[:_FEW])) for _ in range(_UNSEEN))
    if not other:
        alike = not differ(few, first[:_FEW])
        with optional():
            alike = alike and not _of_place(partial(again, model), batch, differ)
        return Randomness(batch=not alike, changes=changes)
    everyone = torch.arange(len(images), device=images.device)
    some = everyone[:_FEW].flip(0)
    kinds: set[str] = set()
    numbers = "uncontrolled"
    for one_by_one in (False, True):
        tried = RandomisedModel(model, one_by_one)
        shared = depends = False
        for number in range(_CHECKS):
            results = []
            for rows in (everyone, some):
                with ExampleNumbers(0, "probe", rows, number) as context:
                    results.append(again(tried, images[rows]))
                kinds |= context.kinds
                shared |= context.shared and not one_by_one
            depends |= differ(results[0][some], results[1])
        if not shared and not depends:
            numbers = "one by one" if one_by_one else "example"
            break
    in_train_mode = any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in model.modules()
    )
    return Randomness("dropout" if kinds == {"dropout"} else "noise", numbers, in_train_mode, changes)


def _of_place(again: Passed, images: Tensor, differ: Callable[[Tensor, Tensor], bool]) -> bool:
    """Whether the logits of half of the images change when this half is a batch in another order."""
    whole = again(images)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    half = order[: (len(images) + 1) // 2].to(images.device)
    return differ(whole[half], again(images[half]))
