"""Run AutoAttack's own code (the package pyautoattack) as an attack of this package.

That code prints, reseeds the global generators, writes into the model's logits, needs contiguous tensors, and
fails on empty batches, few classes and models that ignore their input. All of that is worked around
here, so that the attacks that use it stay short. Imports torch: import inside functions only.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.lazy import nn, np, torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import ReferenceBackend
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws


NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def run(method: ReferenceBackend, model: Network, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
    """Perturb images (N, C, H, W) with AutoAttack's own code.

    The seed comes from the draws of the first example, since this code draws for the whole batch: equal
    batches give equal results. Images are float32 in [0, 1].
    """
    if len(images) == 0 or method.eps == 0:
        return images.clone()
    seed = int(draws.take(torch.tensor([0])).bits(1)[0, 0])
    with _guarded(model), torch.no_grad():
        attack = method.reference(TameModel(model, images[:1]), images, seed)
        perturbed = attack(images.contiguous(), labels.clone())
    return perturbed.detach()


class TameModel:
    """A model in the form that pyautoattack requires.

    Logits are float32, contiguous and a copy (Square writes into them); the gradient that flows to the images
    is contiguous whatever the model's memory format; an empty batch gets empty logits without calling the
    model; logits that do not depend on the images have a zero gradient, not an error.
    """

    def __init__(self, model: Network, image: Tensor) -> None:
        self.model = model
        self.classes: int = model.logits(image).shape[1]

    def __call__(self, images: Tensor) -> Tensor:
        if len(images) == 0:
            return images.new_zeros((0, self.classes))
        inputs = images
        if images.requires_grad and torch.is_grad_enabled():
            inputs = images.view_as(images)
            inputs.register_hook(lambda gradient: gradient.contiguous())
        logits = self.model.logits(inputs).clone(memory_format=torch.contiguous_format)
        if inputs is not images:
            # adds exactly 0 and connects the logits to the images
            logits = logits + 0.0 * inputs.flatten(1)[:, :1]
        return logits


def mend_ties(square: Any) -> None:
    """Let a Square attack count an exact tie as fooled from its start on, as its search does. Its own start
    requires a negative margin, and then fails on an empty batch.
    """
    original = square.margin_and_loss

    def margin_and_loss(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        margin, loss = original(images, labels)
        return torch.where(margin == 0, -torch.finfo(margin.dtype).tiny, margin), loss

    square.margin_and_loss = margin_and_loss


def need_classes(model: TameModel, least: int, loss: str, attack: str) -> None:
    """Raise RbError if the model has fewer classes than a loss needs."""
    if model.classes < least:
        raise RbError(
            f"Attack '{attack}' uses {loss}, which needs {least} classes or more; the model has"
            f" {model.classes}. Use 'apgd-ce', 'pgd' or 'square' for this model."
        )


def need_tiles(images: Tensor, attack: str, norm: str) -> None:
    """Raise RbError if Square's start in L2 and L1, five squares a side, does not fit the image size.

    Sides below 5, and 12, 14, 18, 19 and 24, make pyautoattack's code fail.
    """
    height, width = images.shape[-2:]
    square = height // 5
    first = (height - square * 5) // 2
    for side in (height, width):
        last = first + square * (side // square - 1) if square else 0
        if square == 0 or (square > 1 and last + square > side):
            raise RbError(
                f"Attack '{attack}' with norm '{norm}' cannot lay out its squares on images of"
                f" {height}x{width} pixels. Use attack 'pgd' or 'apgd-ce' for this norm, or another image"
                " size."
            )


class _Once(logging.Filter):
    """Let a warning through once per process, whatever numbers it contains: every batch repeats it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = re.sub(r"[\d.]+", "#", record.getMessage())
        known = text in self.seen
        self.seen.add(text)
        return not known


logger = logging.getLogger("rbtools.attacks.pyautoattack")
if not logger.filters:
    logger.addFilter(_Once())


@contextlib.contextmanager
def _guarded(model: Network) -> Iterator[None]:
    """Restore stdout, random generators, tracing and the model's parameters afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python, legacy, tracer = random.getstate(), np.random.get_state(), sys.gettrace()
    network = model if isinstance(model, nn.Module) else model.model
    frozen = [p for p in network.parameters() if p.requires_grad] if isinstance(network, nn.Module) else []
    for parameter in frozen:  # FAB calls backward(), which would fill their .grad
        parameter.requires_grad_(False)
    try:
        with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng(devices):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
        random.setstate(python)
        np.random.set_state(legacy)
        sys.settrace(tracer)  # its check for dynamic models switches tracing off
