"""Randomised models: whether a model is one, and one whose random numbers belong to the example.

Found by running the model on the same images twice, more often where it draws random numbers, and on some of
them in another batch: a few, and a whole batch permuted, shifted and cut. A model that differs in both is
randomised; one that only differs in another batch depends on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError, optional, shown
from rbtools.evaluation.by_draws import AGREED, IMAGES, Pilot, Randomness
from rbtools.execution.device import out_of_memory
from rbtools.rng.foreign import ExampleNumbers, states

SAME = 1e-3  # outputs that differ by less than this share of the logits' range are equal
_FEW = 2  # images of the other batch
_PASSES = 32  # further ones of a model that draws random numbers: a coin for the batch may fall alike
_UNSEEN = 8  # further passes of few images of any model: it may have a generator of its own
_CHECKS = 6  # passes whose numbers should be those of each example

Passed = Callable[[Tensor], Tensor]


class RandomisedModel(nn.Module):
    """A randomised model; inside `ExampleNumbers` its random numbers are those of each example.

    one_by_one: every image goes through it alone.
    """

    randomised = True

    def __init__(self, network: nn.Module, one_by_one: bool = False) -> None:
        super().__init__()
        self.network, self.one_by_one = network, one_by_one

    def forward(self, images: Tensor) -> Tensor:
        numbers = ExampleNumbers.active[-1] if ExampleNumbers.active else None
        if numbers is None or not self.one_by_one or not len(images):
            logits: Tensor = self.network(images)
            return logits
        parts = []
        for i in range(len(images)):
            with numbers.row(i):
                parts.append(self.network(images[i : i + 1]))
        return torch.cat(parts)


class AdaptingModel(nn.Module):
    """A model that changes while it is tested. Every pass is by a copy of it, so that each starts from the
    same state, with all that the module holds: parameters, buffers, an optimiser."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.streams: dict[Any, AdaptingModel] = {}
        self._after: list[nn.Module] = []  # the last copy; no submodule

    def forward(self, images: Tensor) -> Tensor:
        network = self.copied()
        logits: Tensor = network(images)
        self._after = [network]
        return logits

    def copied(self) -> nn.Module:
        """The network in its present state."""
        try:
            return deepcopy(self.network)
        except Exception as wrong:  # raised by the network's own code
            raise RbError(
                f"The model adapts, and a copy of it fails with {type(wrong).__name__}: {shown(str(wrong))}."
                " Keep no tensors with a graph in its attributes: detach them."
            ) from wrong

    def stream(self, name: Any) -> AdaptingModel:
        """The model in the state of a stream, at first that of this model."""
        if name not in self.streams:
            self.streams[name] = AdaptingModel(self.network)
        return self.streams[name]

    def go_on(self) -> None:
        """Let the following passes start from the state that the last one left."""
        (self.network,) = self._after


def controlled(model: nn.Module, randomness: Randomness) -> nn.Module:
    """The model as it is evaluated: as it is, or a `RandomisedModel`."""
    return RandomisedModel(model, randomness.numbers != "example") if randomness.randomised else model


def look(model: nn.Module, images: Tensor) -> Randomness:
    """What is random in a model, which may change more than its parameters and buffers. Nothing, for a model
    that raises an error in one of the passes."""
    found = Randomness()
    try:
        found = randomness_of(model, images)
        if found.randomised and found.changes:
            again = randomness_of(AdaptingModel(model), images)
            found = again._replace(batch=found.batch or again.batch, changes=True)
    except Exception as wrong:  # the network's own code
        if isinstance(wrong, RbError) or (isinstance(wrong, RuntimeError) and out_of_memory(wrong)):
            raise
    return found


def randomness_of(model: nn.Module, images: Tensor) -> Randomness:
    """What is random in a model, found by passes of some images (N, C, H, W), two or more.

    Nothing, for a model that gives no finite logits: the evaluation names that.
    """
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
        """A pass that starts from the state of the checkpoint, and leaves it."""
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
    """Whether the logits of images change when their batch is permuted, shifted by one, or cut to a half."""
    whole, n = again(images), len(images)
    every = torch.arange(n)
    permuted = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    ways = (permuted, every[1:], every[: (n + 1) // 2])
    return any(differ(whole[rows], again(images[rows])) for rows in (one.to(images.device) for one in ways))


def pilot(model: nn.Module, images: Tensor, labels: Tensor, most: int, chunk: int) -> Pilot:
    """The draws that a mean gradient of a `RandomisedModel` needs.

    The smallest power of two from 2 to `most` at which the sign of the gradient of the cross-entropy agrees
    with that of eight times as many draws on 95 % of the pixels (AGREED); `most` where none does. images:
    (N, C, H, W); chunk: images that go through the model at once.
    """
    sums: list[Tensor] = []  # after each power of two draws
    total = torch.zeros_like(images)
    ids = torch.arange(len(images), device=images.device)
    each = max(chunk // len(images), 1)
    drawn, needed = 0, 2
    while True:
        while drawn < 8 * needed:
            count = min(each, (1 << drawn.bit_length()) - drawn)
            inputs = images.detach().requires_grad_(True)
            passes = torch.arange(drawn, drawn + count, device=ids.device).repeat(len(ids))
            with torch.enable_grad(), ExampleNumbers(0, "pilot", ids.repeat_interleave(count), passes):
                logits = model(inputs.repeat_interleave(count, 0)).float()
                loss = torch.nn.functional.cross_entropy(
                    logits, labels.repeat_interleave(count), reduction="sum"
                )
            if not loss.requires_grad:
                return Pilot(2, 1.0)  # attacks by gradients will say so
            (gradient,) = torch.autograd.grad(loss, inputs, allow_unused=True)
            total = total + (0 if gradient is None else gradient)
            drawn += count
            if drawn & (drawn - 1) == 0:
                sums.append(total.sign())
        few, many = sums[needed.bit_length() - 1], sums[(8 * needed).bit_length() - 1]
        agreed = float(few.eq(many).float().mean())
        if agreed >= AGREED or 2 * needed > most:
            return Pilot(needed, agreed)
        needed *= 2
