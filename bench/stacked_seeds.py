"""PGD training steps of one architecture with several seeds: one after another, and stacked by torch.func.

    python bench/stacked_seeds.py [--seeds 2,4] [--batch 128] [--network nb201-13714] [--channels 8]

Stacked: `torch.func.vmap` over the parameters and buffers of all seeds, attack on the stacked folded copies,
update on the stacked networks. Both start from the same weights; `difference` is the largest absolute one of
a weight or a statistic after the steps. Interleaved in one process; of each way the best round counts, in
seconds of the processor, per seed and step. One JSON line for each number of seeds.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from rbtools import models, spaces
from rbtools.attacks import steps
from rbtools.trainer import eval_copy

EPS, ALPHA = 8 / 255, 2 / 255
SHAPE = (3, 32, 32)
State = dict[str, Tensor]


def networks(name: str, channels: int, cells: int, seeds: int) -> list[nn.Module]:
    """A network for each seed."""
    found = {"space": "nasbench201", "index": int(name.rpartition("-")[2]), "name": name}
    arch = spaces.describe({**found, "channels": channels, "cells": cells}, 10, SHAPE)
    built = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        built.append(models.build(arch, classes=10, shape=SHAPE).train())
    return built


def fast_copy(net: nn.Module) -> eval_copy.EvalCopy:
    made = eval_copy.of(net, SHAPE, bf16=False)
    assert made is not None
    return made


def attack(logits: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, count: int) -> Tensor:
    """PGD on images (..., C, H, W) with labels (...)."""
    points = images
    for _ in range(count):
        points = points.detach().requires_grad_(True)
        loss = F.cross_entropy(logits(points).flatten(0, -2), labels.flatten(), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, points)
        points = steps.project(steps.ascend(points.detach(), gradient, ALPHA, "linf"), images, EPS, "linf")
    return points


def optimiser(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)


class Alone:
    """The seeds one after another, each as rb-train does it."""

    def __init__(self, nets: list[nn.Module], images: Tensor, labels: Tensor, count: int) -> None:
        self.nets, self.images, self.labels, self.count = copy.deepcopy(nets), images, labels, count
        self.copies = [fast_copy(net) for net in self.nets]
        self.optimisers = [optimiser(list(net.parameters())) for net in self.nets]

    def __call__(self) -> None:
        for number, (net, fast) in enumerate(zip(self.nets, self.copies, strict=True)):
            images, labels = self.images[number], self.labels[number]
            fast.update()
            points = attack(fast, images, labels, self.count)
            self.optimisers[number].zero_grad()
            F.cross_entropy(net(points), labels).backward()
            self.optimisers[number].step()

    def states(self) -> list[State]:
        return [net.state_dict() for net in self.nets]


class Stacked:
    """The same seeds in one pass each."""

    def __init__(self, nets: list[nn.Module], images: Tensor, labels: Tensor, count: int) -> None:
        self.nets, self.images, self.labels, self.count = copy.deepcopy(nets), images, labels, count
        self.copies = [fast_copy(net) for net in self.nets]
        self.parameters, self.buffers = stack_module_state(self.nets)
        self.optimiser = optimiser(list(self.parameters.values()))

    def _logits(self, network: nn.Module, state: tuple[State, State]) -> Callable[[Tensor], Tensor]:
        return lambda images: vmap(functional_call, in_dims=(None, 0, 0))(network, state, images)

    def __call__(self) -> None:
        for net, fast, state in zip(self.nets, self.copies, self.states(), strict=True):
            net.load_state_dict(state)
            fast.update()
        # Traced networks are of one class each, which stack_module_state does not take.
        weights = [dict(fast.network.named_parameters()) for fast in self.copies]
        folded = {name: torch.stack([one[name] for one in weights]) for name in weights[0]}, {}
        points = attack(self._logits(self.copies[0].network, folded), self.images, self.labels, self.count)
        self.optimiser.zero_grad()
        logits = self._logits(self.nets[0], (self.parameters, self.buffers))(points)
        (F.cross_entropy(logits.flatten(0, 1), self.labels.flatten()) * len(self.nets)).backward()
        self.optimiser.step()

    def states(self) -> list[State]:
        whole = {**self.parameters, **self.buffers}
        return [{name: value[at].detach() for name, value in whole.items()} for at in range(len(self.nets))]


def difference(alone: list[State], stacked: list[State]) -> float:
    """The largest absolute difference of two states. (Biases before a BatchNorm are noise of 1e-10.)"""
    pairs = [(a[name].double(), b[name].double()) for a, b in zip(alone, stacked, strict=True) for name in a]
    return max(float((a - b).abs().max()) for a, b in pairs)


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="2,4")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--network", default="nb201-13714")
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--cells", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for count in map(int, options.seeds.split(",")):
        nets = networks(options.network, options.channels, options.cells, count)
        images = torch.rand(count, options.batch, *SHAPE, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(count * options.batch).view(count, -1) % 10
        works = [kind(nets, images, labels, options.steps) for kind in (Alone, Stacked)]
        best = [
            min(column)
            for column in zip(
                *([seconds(work) for work in works] for _ in range(options.rounds)), strict=True
            )
        ]
        alone, stacked = (round(value / count, 4) for value in best)
        apart = difference(works[0].states(), works[1].states())
        shown = {"network": options.network, "batch": options.batch, "seeds": count, "steps": options.steps}
        print(
            json.dumps(
                {**shown, "alone": alone, "stacked": stacked, "times": round(alone / stacked, 2)}
                | {"rounds": options.rounds, "difference": float(f"{apart:.2g}")}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
