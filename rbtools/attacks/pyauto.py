"""Run AutoAttack's own code (the package pyautoattack) as an attack of this package.

That code prints, reseeds the global generators, writes into the model's logits, needs contiguous tensors, and
fails on empty batches, few classes and models that ignore their input. This module works around all of this,
so that the attacks stay short. It imports torch: import it inside functions only.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError, one_line
from rbtools.lazy import nn, np, torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import ReferenceBackend
    from rbtools.attacks.target import Network
    from rbtools.rng.draws import Draws


NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def run(method: ReferenceBackend, model: Network, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
    """Perturb images (N, C, H, W) with AutoAttack's own code.

    This code draws random numbers for the whole batch, so its seed comes from the draws of the first example,
    and equal batches give equal results. Images are float32 in [0, 1]. Raises RbError if that code fails: its
    DLR losses need 3 and 4 classes, and Square's start in L2 and L1 does not support all image sizes.
    """
    if len(images) == 0 or method.eps == 0:
        return images.clone()
    seed = int(draws.take(torch.tensor([0])).bits(1)[0, 0])
    with _guarded(model), torch.no_grad():
        tame = TameModel(model, images[:1])
        attack = method.reference(tame, images, seed)
        try:
            perturbed = attack(images.contiguous(), labels.clone())
        except (ArithmeticError, IndexError, RuntimeError, ValueError) as wrong:
            if tame.failed:
                raise  # the model's own error
            size = "x".join(map(str, images.shape[1:]))
            raise RbError(
                f"AutoAttack's own code fails on images of {size} and {tame.classes} classes in norm"
                f" {method.norm} ({one_line(str(wrong))}). Leave out --backend pyautoattack."
            ) from wrong
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
        self.failed = False  # True while the model computes, and after the model raised an error

    def __call__(self, images: Tensor) -> Tensor:
        if len(images) == 0:
            return images.new_zeros((0, self.classes))
        inputs = images
        if images.requires_grad and torch.is_grad_enabled():
            inputs = images.view_as(images)
            inputs.register_hook(lambda gradient: gradient.contiguous())
        self.failed = True
        logits = self.model.logits(inputs).clone(memory_format=torch.contiguous_format)
        self.failed = False
        if inputs is not images:
            # adds exactly 0 and connects the logits to the images
            logits = logits + 0.0 * inputs.flatten(1)[:, :1]
        return logits


def mend_ties(square: Any) -> None:
    """Make the start of AutoAttack's Square count an exact tie as fooled, as its search does. The original
    start requires a negative margin, and the search then fails on an empty batch.
    """
    original = square.margin_and_loss

    def margin_and_loss(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        margin, loss = original(images, labels)
        return torch.where(margin == 0, -torch.finfo(margin.dtype).tiny, margin), loss

    square.margin_and_loss = margin_and_loss


class _Once(logging.Filter):
    """Let a warning through once per process, even if its numbers differ, because every batch repeats it."""

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
        sys.settrace(tracer)  # AutoAttack's check for dynamic models switches tracing off
