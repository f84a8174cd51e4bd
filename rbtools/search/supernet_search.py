"""Differentiable search, which trains a supernet and derives a cell from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.attacks.active_examples import uploaded
from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.execution import device, resources
from rbtools.execution.once import once
from rbtools.execution.run import Run
from rbtools.inputs.data import Data, data_of
from rbtools.lazy import F, torch
from rbtools.models.normalize import Normalized
from rbtools.rng import GENERATOR
from rbtools.rng.draws import Draws
from rbtools.search.supernet import Supernet
from rbtools.store import digest
from rbtools.trainer import optim
from rbtools.trainer.augment import augment
from rbtools.trainer.init import mixed_seed
from rbtools.trainer.loop import READ_EVERY

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
BETAS = (0.5, 0.999)
SCATTER = 1e-3
"""Initial standard deviation of the architecture parameters, as in DARTS."""


def search(method: Any, run: Run, channels: int, cells: int) -> dict[str, Any]:
    """The cell that a differentiable search derives: `ops`, `alphas` (6, 5), `history`. Raises RbError if the
    data set is too small or the loss diverges."""
    data = data_of({}, run, "train")
    what = {
        "kind": "supernet",
        "version": VERSION,
        "search": {"name": method.name, "version": method.version, "config": registry.config(method)},
        "channels": channels,
        "cells": cells,
        "data": data.fingerprint,
        "normalize": [data.about.mean, data.about.std],
        "seed": run.settings.seed,
        "draws": GENERATOR,
    }
    key = digest(what)

    def compute() -> dict[str, Any]:
        found = _searched(method, run, data, channels, cells)
        run.store.keep_result(key, what, found, {"dataset": data.name, "name": method.name})
        return found

    found = once(
        run, key, lambda: run.store.result(key), compute, title="search by a supernet", unit="search"
    )
    return {**found, "dataset": data.name}


def _searched(method: Any, run: Run, data: Data, channels: int, cells: int) -> dict[str, Any]:
    threads = resources.training_threads(run, {"space": "nasbench201"})
    with device.taken(run, threads) as chosen, torch.random.fork_rng():
        torch.manual_seed(mixed_seed(run.settings.seed, f"supernet {method.name}"))
        work = _Work(method, run, data, chosen, channels, cells)
        history = _alternating(work) if method.loop == "alternating" else _at_initialisation(work)
        alphas = work.net.alphas.detach().cpu()
        if not alphas.isfinite().all():
            raise RbError(
                f"The search {method.name} diverged: its architecture parameters are not finite. Try"
                " another --seed, or smaller learning rates."
            )
        return {"ops": list(work.net.genotype()), "alphas": alphas.tolist(), "history": history}


class _Work:
    def __init__(
        self, method: Any, run: Run, data: Data, device: torch.device, channels: int, cells: int
    ) -> None:
        self.method, self.run, self.data, self.device = method, run, data, device
        dataset, about = data.load(), data.about
        self.images = streaming.placed(dataset.images, device)
        self.labels = dataset.labels.to(device)
        if len(self.labels) < 4:
            raise RbError(
                f"{data.name} has {len(self.labels)} training images, but a search needs at least 4."
            )
        if any(side % 4 for side in about.shape[1:]):
            raise RbError(
                f"The supernet halves images twice, but the images of {data.name} have"
                f" {about.shape[1]}x{about.shape[2]} pixels. Expected multiples of 4."
            )
        self.order = torch.randperm(len(self.labels))
        self.net = Supernet(
            channels=channels, cells=cells, classes=about.classes, in_channels=about.shape[0]
        ).to(device)
        self.model: torch.nn.Module = self.net
        if about.mean is not None and about.std is not None:
            self.model = Normalized(self.net, about.mean, about.std).to(device)

    def batch(self, ids: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """The augmented images in [0, 1] of the examples `ids` (on the CPU), and their labels."""
        host, ids = ids, uploaded(ids, self.device)
        draws = Draws(self.run.settings.seed, "supernet", ids, epoch, host=host)
        at = host if isinstance(self.images, streaming.Streamed) else ids
        images = augment(self.images[at], self.data.about.augment, draws)
        return images.float() / 255, self.labels[ids]


def _alternating(work: _Work) -> dict[str, list[float]]:
    """Alternate first-order steps of the architecture parameters, on one half of the images, with steps of
    the weights, on the other half."""
    method, net = work.method, work.net
    with torch.no_grad():
        net.alphas.normal_(0, SCATTER)
    half = len(work.order) // 2
    weights = net.weights()
    optimizer = optim.SGD(
        weights,
        lr=method.lr,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        nesterov=method.momentum > 0,
    )
    architect = optim.Adam([net.alphas], lr=method.arch_lr, betas=BETAS, weight_decay=method.arch_decay)
    history: dict[str, list[float]] = {"loss": [], "arch_loss": [], "entropy": []}
    for epoch in range(method.epochs):
        share = (1 + math.cos(math.pi * epoch / method.epochs)) / 2
        optimizer.param_groups[0]["lr"] = method.lr_min + (method.lr - method.lr_min) * share
        mine, theirs = (part[torch.randperm(half)] for part in (work.order[:half], work.order[half:]))
        batches = (part.split(method.batch_size) for part in (mine, theirs))
        pairs = list(zip(*batches, strict=True))[: method.steps]
        sums = [0.0, 0.0]
        unread: list[Tensor] = []  # losses with respect to weights and architecture, on the device
        for step, (own, other) in enumerate(pairs):
            work.run.report.check_cancelled()
            work.model.train()
            loss = method.architecture_loss(work.model, *work.batch(other, epoch), epoch)
            (net.alphas.grad,) = torch.autograd.grad(loss, [net.alphas])
            architect.step()
            images, labels = work.batch(own, epoch)
            own_loss = F.cross_entropy(work.model(images), labels)
            for weight, slope in zip(weights, torch.autograd.grad(own_loss, weights), strict=True):
                weight.grad = slope
            torch.nn.utils.clip_grad_norm_(weights, method.clip)
            optimizer.step()
            unread.append(torch.stack([own_loss.detach(), loss.detach()]))
            # Reading the losses means waiting for a GPU.
            if work.device.type == "cpu" or (step + 1) % READ_EVERY == 0 or step + 1 == len(pairs):
                for both in torch.stack(unread).tolist():
                    sums = [total + value for total, value in zip(sums, both, strict=True)]
                unread.clear()
            if not math.isfinite(sum(sums)):
                raise RbError(
                    f"The search {method.name} diverged in epoch {epoch + 1}: the loss is not finite. Use a"
                    " smaller --lr."
                )
            work.run.report.progress(f"{method.name}: epoch {epoch + 1} of {method.epochs}, step {step + 1}")
        chances = net.alphas.detach().softmax(1)
        history["loss"].append(sums[0] / len(pairs))
        history["arch_loss"].append(sums[1] / len(pairs))
        history["entropy"].append(float(-(chances * chances.log()).sum(1).mean()))
    return history


def _at_initialisation(work: _Work) -> dict[str, list[float]]:
    """One step, starting at alphas of 0, along the mean gradient of the rewards of sampled architectures
    (NASI, algorithm 1)."""
    method, net = work.method, work.net
    weights = net.weights()
    total = torch.zeros(net.alphas.shape, device=work.device)
    largest = torch.zeros((), device=work.device)
    rewards: list[Tensor] = []
    work.model.train()
    for step in range(method.steps):
        work.run.report.check_cancelled()
        chosen = work.order[torch.randperm(len(work.order))[: method.batch_size]]
        noise = uploaded(-torch.empty(net.alphas.shape).exponential_().log(), work.device)
        net.mixture = ((net.alphas + noise) / method.temperature).softmax(1)
        reward = method.reward(work.model, weights, *work.batch(chosen, step))
        (slope,) = torch.autograd.grad(reward, [net.alphas])
        largest = torch.fmax(largest, slope.norm())  # NaN must not count as the largest norm
        total.add_(slope / torch.where(largest > 0, largest, 1.0))
        rewards.append(reward.detach())
        work.run.report.progress(f"{method.name}: {step + 1} of {method.steps} architectures")
    net.mixture = None
    with torch.no_grad():
        net.alphas.add_(total / method.steps)
    return {"reward": torch.stack(rewards).tolist()}
