"""One training step against a naive loop and torchattacks, and what each method's step costs.

    python bench/training.py [--batch 128] [--rounds 3] [--networks resnet18,nb201-13714] [--threads 2]

Interleaved in one process; of each figure the best round counts. CPU seconds are told beside those of the
clock: on a machine that others use, their ratios are the steadier ones. One JSON line a figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from common import in_turns, show
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rbtools import datasets, models, spaces
from rbtools.execution.run import Run
from rbtools.trainer import begin, recipe, step
from rbtools.trainer.metrics import Totals
from rbtools.trainer.train_model import TrainingTask
from rbtools.training import METHODS

EPS, ALPHA, STEPS = 8 / 255, 2 / 255, 7
SHAPE = (3, 32, 32)


def arch_of(name: str) -> dict[str, Any]:
    space = "nasbench201" if name.startswith("nb201") else "zoo"
    found = {"space": space, "name": name}
    if space == "nasbench201":
        found["index"] = int(name.partition("-")[2])
    return spaces.describe(found, 10, SHAPE)


def naive_step(model: nn.Module, optimizer: Any, images: Tensor, labels: Tensor) -> None:
    """PGD training as it is often written: `backward` in the attack, weights' gradients included."""
    model.train()
    perturbed = (images + torch.empty_like(images).uniform_(-EPS, EPS)).clamp(0, 1)
    for _ in range(STEPS):
        perturbed = perturbed.detach().requires_grad_(True)
        F.cross_entropy(model(perturbed), labels).backward()
        assert perturbed.grad is not None
        perturbed = perturbed + ALPHA * perturbed.grad.sign()
        perturbed = torch.min(torch.max(perturbed, images - EPS), images + EPS).clamp(0, 1)
    optimizer.zero_grad()
    F.cross_entropy(model(perturbed.detach()), labels).backward()
    optimizer.step()


def attacked_step(attack: Any, model: nn.Module, optimizer: Any, images: Tensor, labels: Tensor) -> None:
    """The same with torchattacks' PGD as the inner attack."""
    perturbed = attack(images, labels)
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(perturbed), labels).backward()
    optimizer.step()


class Ours:
    """A step of the engine on images of its own, with everything that a training does for it."""

    def __init__(self, name: str, method: Any, images: Tensor, labels: Tensor, arithmetic: str) -> None:
        data = _Data(images, labels)
        how = recipe.Recipe(batch_size=len(labels), augment=())
        task = TrainingTask({"arch": arch_of(name)}, {}, method, method, how, arithmetic)
        task = task._replace(data=data, recipe=how)  # type: ignore[arg-type]
        self.setup, self.state = begin.start(task, Run.of(tool="bench"), torch.device("cpu"), None)
        self.ids = torch.arange(len(labels))

    def __call__(self) -> None:
        self.state.model.train()
        self.step(self.ids)

    def step(self, ids: Tensor) -> None:
        method = begin.stepping(self.setup.method, self.setup.recipe, self.state.carried)
        step.train_step(self.setup, self.state, ids, method, Totals())


class _Data:
    name = "random"

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels
        self.about = datasets.Description(
            name="random", shape=SHAPE, classes=10, class_names=[], sizes={}, augment=()
        )

    def load(self) -> Any:
        return self


def pgd_step(name: str, batch: int, rounds: int) -> None:
    import torchattacks

    pixels, labels = torch.randint(0, 256, (batch, *SHAPE)).to(torch.uint8), torch.arange(batch) % 10
    images = pixels.float() / 255
    model = models.build(arch_of(name), classes=10, shape=SHAPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    attack = torchattacks.PGD(model, eps=EPS, alpha=ALPHA, steps=STEPS)
    method = METHODS.build("pgd", attack_steps=STEPS)
    works: dict[str, Callable[[], Any]] = {
        "naive": lambda: naive_step(model, optimizer, images, labels),
        "torchattacks": lambda: attacked_step(attack, model, optimizer, images, labels),
        "rbtools fp32": Ours(name, method, pixels, labels, "fp32"),
        "rbtools bf16": Ours(name, method, pixels, labels, "bf16"),
    }
    found = in_turns(works, rounds, warm=1)
    for key, (clock, cpu) in found.items():
        times = {
            f"times_{other.replace(' ', '_')}": round(found[other][1] / cpu, 2)
            for other in ("naive", "torchattacks")
        }
        show(
            "pgd-7 step",
            network=name,
            batch=batch,
            way=key,
            seconds=round(clock, 3),
            cpu_seconds=round(cpu, 3),
            **times,
        )


def throughput(name: str, batch: int, rounds: int) -> None:
    """Clean training: a plain loop with a DataLoader that gives one image at a time, as is usual."""
    count = 4 * batch
    pixels, labels = torch.randint(0, 256, (count, *SHAPE)).to(torch.uint8), torch.arange(count) % 10
    model = models.build(arch_of(name), classes=10, shape=SHAPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(pixels.float() / 255, labels), batch, shuffle=True)

    def plain() -> None:
        model.train()
        for images, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), targets).backward()
            optimizer.step()

    def ours(arithmetic: str) -> Callable[[], None]:
        made = Ours(name, METHODS.build("erm"), pixels, labels, arithmetic)

        def epoch() -> None:
            made.state.model.train()
            for ids in made.ids[torch.randperm(count)].split(batch):
                made.step(ids)

        return epoch

    works = {"plain loop": plain, "rbtools fp32": ours("fp32"), "rbtools bf16": ours("bf16")}
    found = in_turns(works, rounds, warm=1)
    for key, (clock, cpu) in found.items():
        show(
            "clean training",
            network=name,
            way=key,
            images_per_second=round(count / clock, 1),
            times_plain=round(found["plain loop"][1] / cpu, 2),
        )


def methods(name: str, batch: int, rounds: int) -> None:
    """A step of each method over its own count of passes, with an ERM step's forward and backward as unit."""
    pixels, labels = torch.randint(0, 256, (batch, *SHAPE)).to(torch.uint8), torch.arange(batch) % 10
    few = {"samples": 4}
    small = {"cvar": {**few, "rounds": 2}, "evar": few, "erm-dataaug": few, "at-pr": {"candidates": 2}}
    works: dict[str, Ours] = {}
    for one in METHODS:
        works[one] = Ours(name, METHODS.build(one, **small.get(one, {})), pixels, labels, "fp32")
    found = in_turns(dict(works), rounds, warm=1)
    model = models.build(arch_of(name), classes=10, shape=SHAPE).train()
    images = pixels.float() / 255

    def forward() -> None:
        with torch.no_grad():
            model(images)

    forward_cpu = in_turns({"forward": forward}, rounds, warm=1)["forward"][1]
    backward_cpu = found["erm"][1] - forward_cpu
    for one, (_, cpu) in found.items():
        counter = works[one].setup.networks.passes
        with counter:
            counter.totals.update(dict.fromkeys(counter.totals, 0))
            works[one]()
        passes = counter.an_image()
        unit = passes["forward"] * forward_cpu + passes["backward"] * backward_cpu
        show("step over passes", network=name, method=one, ratio=round(cpu / unit, 2), **passes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--networks", default="resnet18,nb201-13714")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="step,clean,methods")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    only = chosen.only.split(",")
    for name in chosen.networks.split(","):
        if "step" in only:
            pgd_step(name, chosen.batch, chosen.rounds)
        if "clean" in only:
            throughput(name, chosen.batch, chosen.rounds)
    if "methods" in only:
        methods(chosen.networks.split(",")[-1], chosen.batch, chosen.rounds)


if __name__ == "__main__":
    main()
