"""Runs AutoAttack's own code (the package pyautoattack) as an attack of this package.

The code of pyautoattack prints, reseeds the global random generators, writes into the model's logits, needs
contiguous tensors, and fails on empty batches, few classes and models that ignore their input. This module
works around these problems. It imports torch and must therefore be imported inside functions.
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
    from rbtools.attacks.oracle import Oracle
    from rbtools.rng.draws import Draws


NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def run(method: ReferenceBackend, model: Oracle, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
    """Perturb images (N, C, H, W), float32 in [0, 1], with AutoAttack's own code.

    AutoAttack's code draws random numbers for the whole batch. The seed depends on the first example, so
    equal batches give equal results. Raises RbError if AutoAttack's code fails. For example, DLR losses need
    at least 3 or 4 classes, and Square in L2 and L1 does not support all image sizes. Its Square and FAB
    cannot average over samples, so RbError is raised if `eot` was given for them.
    """
    if method.eot is not None and method.name in ("square", "fab", "fab-t"):
        raise RbError(
            f"AutoAttack's own code for {method.name} cannot average over random draws. Leave out --eot or"
            " --backend pyautoattack."
        )
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
                f"AutoAttack's own code failed for images of {size} and {tame.classes} classes in norm"
                f" {method.norm} ({one_line(str(wrong))}). Leave out --backend pyautoattack."
            ) from wrong
    return perturbed.detach()


class TameModel:
    """Wraps a model for pyautoattack.

    Logits are a contiguous float32 copy, because Square writes into them. The gradient with respect to the
    images is contiguous. For an empty batch, the model is not called. Logits that do not depend on the images
    have a zero gradient instead of an error.
    """

    def __init__(self, model: Oracle, image: Tensor) -> None:
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
    """Make the start of AutoAttack's Square treat a margin of 0 as a success, as its search does. Otherwise
    the search could receive an empty batch and fail."""
    original = square.margin_and_loss

    def margin_and_loss(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        margin, loss = original(images, labels)
        return torch.where(margin == 0, -torch.finfo(margin.dtype).tiny, margin), loss

    square.margin_and_loss = margin_and_loss


class _Once(logging.Filter):
    """Shows a warning once per process, because every batch repeats it with different numbers."""

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
def _guarded(model: Oracle) -> Iterator[None]:
    """A context that restores stdout, random generators, tracing and the model's parameters when it ends."""
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
