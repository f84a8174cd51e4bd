"""One training step: its batch, the loss of each piece of the batch, and the optimiser's step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from rbtools.attacks.active_examples import uploaded
from rbtools.datasets import streaming
from rbtools.measures import derivatives, wci
from rbtools.rng.draws import Draws
from rbtools.trainer import distributed, regularize
from rbtools.trainer.augment import augment, cutout, pixels
from rbtools.trainer.init import mixed_seed
from rbtools.trainer.optim import batches
from rbtools.training.base import mode

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor, nn

    from rbtools.trainer.begin import TrainSetup
    from rbtools.trainer.metrics import Totals
    from rbtools.trainer.recipe import Recipe
    from rbtools.trainer.state import TrainState
    from rbtools.training.base import Loss, LossTerms, Method


def train_step(
    setup: TrainSetup, state: TrainState, ids: Tensor, method: Method[Any], totals: Totals
) -> Tensor:
    """Make one step of the optimiser on the examples `ids` (on the CPU). Returns the loss of the batch
    (float64, on the device), and adds the loss and the accuracies to `totals`."""
    recipe, networks, seed = setup.recipe, setup.networks, setup.settings.seed
    state.optimizer.zero_grad(set_to_none=True)
    batch, host = len(ids), distributed.share(ids)
    share = uploaded(host, setup.device)
    draws = Draws(seed, "train", share, offset=state.epoch, host=host)
    mixing = mixed_seed(seed, f"mixup {state.epoch} {int(ids[0])}")
    images, targets = batch_of(setup, share, draws, mixing)
    parts = batches(torch.arange(len(share), device=share.device), recipe.micro_batch or batch)
    parts = [part for part in parts if len(part)]  # a process may have no examples of a small batch
    state.passes["images"] += len(share)
    ascent = _ascent(recipe, method, state.epoch)
    total = torch.zeros((), dtype=torch.float64, device=setup.device)
    with contextlib.ExitStack() as perturbed:

        def ascend(loss: Callable[[], Loss] | None) -> None:
            """Perturb the weights with the loss of this process's images, until `perturbed` is closed."""
            assert ascent is not None
            weighted = None if loss is None else lambda: loss().value * (len(share) / batch)
            sums = distributed.sum_all if distributed.count() > 1 else None
            perturbed.enter_context(regularize.perturbed_weights(networks.model, weighted, ascent, sums))

        for part in parts:
            own = (draws if len(parts) == 1 else draws.take(part)).child("method")
            loss = loss_of(setup, method, images[part], targets[part], own, ascend if ascent else None)
            # With this weight, the gradients of the pieces add up to the gradient of the batch.
            weight = len(part) / batch
            (loss.value * weight).backward()
            total = total + totals.add(loss, setup.examples.labels[share[part]]) * weight
        if not parts:
            # The other processes wait for this process's part of the sums, although it has no examples.
            if ascent is not None:
                ascend(None)
            with mode(networks.model, train=False):  # gradients of 0, for weights that affect the output
                (networks.model(images.new_zeros(1, *images.shape[1:])).float().sum() * 0).backward()
        distributed.sum_gradients(networks.model)
        total = distributed.sum_of(total)
        if ascent is not None and not ascent.step_inside:
            perturbed.close()
        state.optimizer.step()
    if state.averaged is not None:
        state.averaged.update_parameters(state.model)
    if recipe.clean_pass:
        with torch.no_grad(), networks.precision():
            for part in parts:
                networks.model(images[part])
    return total


def _ascent(recipe: Recipe, method: Method[Any], epoch: int) -> regularize.Ascent | None:
    """How the weights are perturbed in the steps of an epoch, or None if they are not perturbed."""
    if method.weight_radius is not None:
        return regularize.SAMAscent(method.weight_radius)
    if "awp" not in recipe.regularize or epoch < recipe.awp_warmup:
        return None
    assert recipe.awp_gamma is not None  # train_model.settled
    return regularize.AWPAscent(recipe.awp_gamma)


def batch_of(setup: TrainSetup, ids: Tensor, draws: Draws, mixing: int) -> tuple[Tensor, Tensor]:
    """Return images in [0, 1], and labels (N,) or distributions (N, K). `mixing` is the seed of mixup."""
    recipe, examples = setup.recipe, setup.examples
    labels = examples.labels[ids]
    streamed = isinstance(examples.images, streaming.Streamed)
    at = draws.host if streamed and draws.host is not None else ids
    images = augment(examples.images[at], recipe.augment or (), draws)
    if "cutout" in recipe.regularize:
        assert recipe.cutout_length is not None
        images = cutout(images, recipe.cutout_length, draws)
    images = pixels(images)
    if setup.networks.half:
        images = images.contiguous(memory_format=torch.channels_last)
    if not recipe.label_smoothing and "mixup" not in recipe.regularize:
        return images, labels
    targets = regularize.distribution(labels, examples.about.classes, recipe.label_smoothing)
    if "mixup" in recipe.regularize:
        images, targets = regularize.mixup(images, targets, recipe.mixup_alpha, mixing)
    return images, targets


def loss_of(
    setup: TrainSetup,
    method: Method[Any],
    images: Tensor,
    targets: Tensor,
    draws: Draws,
    ascend: Callable[[Callable[[], Loss]], None] | None,
) -> Loss:
    """Return the method's loss of images (N, C, H, W) with labels (N,) or distributions (N, K). If `ascend`
    is given, it is first called with this loss and perturbs the weights."""
    networks = setup.networks
    index_weight = setup.recipe.wci_weight if "wci" in setup.recipe.regularize else 0.0
    if networks.copy is None and ascend is None and not index_weight:
        with networks.precision():  # a user's own method may replace the whole call
            result: Loss = method(networks.model, images, targets, draws)
            return result
    if networks.copy is None:
        with networks.precision():
            inner_result = method.inner_attack(networks.model, images, targets, draws)
    else:
        networks.copy.update()
        inner_result = method.inner_attack(networks.inner, images, targets, draws)

    def loss() -> Loss:
        with networks.precision():
            if not index_weight:
                return method.loss(networks.model, images, targets, inner_result).mean()
            # This attention kernel has second derivatives.
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                terms = method.loss(networks.model, images, targets, inner_result)
        mean = terms.mean()
        return mean._replace(value=mean.value + index_weight * _index(networks.model, terms, draws))

    if ascend is not None:
        ascend(loss)
    return loss()


def _index(model: nn.Module, terms: LossTerms, draws: Draws) -> Tensor:
    """The Weight-Curvature Index of a loss, computed on the adversarial images if there are any."""
    logits = terms.adversarial
    if logits is None or not logits.requires_grad:  # the filter may have excluded all images from the attack
        logits = terms.clean
    assert logits is not None
    return wci.of_batch(model, logits, derivatives.rademacher(draws.child("wci"), logits.shape[1], 0))
