"""Plans a recipe at full scale without its data: commands, counts, passes and hours."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rbtools import models
from rbtools.evaluation.base import CHUNK
from rbtools.evaluation.fast_model import make_fast_model
from rbtools.execution import dry_run, precision, resources
from rbtools.execution.device import choose, environment
from rbtools.execution.run import Run
from rbtools.papers import packaged, pipes
from rbtools.papers.recipe_work import Networks, Work, work
from rbtools.papers.recipes import Pipe

_MOST = 5e9  # multiply-adds of a measured batch, which has fewer images for a larger network
_LARGE = 1e9  # multiply-adds of a network that is not measured, but estimated from another one


def plan(pipe: Pipe) -> str:
    """Describe what a recipe does, and how long this takes on devices that were measured before and on this
    one."""
    found, left_out = work(pipe)
    table = packaged.read("device_speeds.yaml")
    devices: list[Any] = [*(MeasuredBefore(name, fields) for name, fields in table.items()), MeasuredHere()]
    titles = dict.fromkeys(one.title for one in found)
    groups = {title: [one for one in found if one.title == title] for title in titles} | {"in all": found}
    heads = ["command", "runs", "images", "passes", *(f"hours on {one.name}" for one in devices)]
    trainings = [one for one in found if one.epochs]
    evaluations = [one for one in found if one.passes and not one.epochs]
    epochs = sum(one.epochs * _records([one]) for one in trainings)
    return "\n".join(
        [
            *pipes.lines(pipe),
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
            *(_row(title, some, devices) for title, some in groups.items()),
            "",
            f"{_records(trainings):,} trainings with {epochs:,} epochs, and {_records(evaluations):,}"
            " evaluations of a network by a command.",
            "A pass is a forward pass of one image, or as many multiply-adds. The first number of hours"
            f" counts {dry_run.USUAL_SHARE:g} of the passes of attacks, which leave out images that they have"
            " broken; the second counts all. One process runs at a time.",
            *(f"{one.name[0].upper()}{one.name[1:]}: {one.basis}" for one in devices),
            *(f"Not counted: {text}" for text in left_out),
        ]
    )


def _records(some: Sequence[Work]) -> int:
    return sum(one.networks.records for one in some)


def _row(title: str, some: Sequence[Work], devices: Sequence[Any]) -> str:
    cells = ["" if title == "in all" else f"{_records(some):,}"]
    cells.append(_short(sum(one.networks.records * one.images for one in some)))
    cells.append(_short(sum(one.networks.records * one.passes for one in some)))
    for device in devices:
        ends = (
            sum(device.hours(one, one.usual) for one in some),
            sum(device.hours(one, one.passes) for one in some),
        )
        cells.append(" to ".join(dict.fromkeys(map(_short, ends))))
    return f"| {title} | {' | '.join(cells)} |"


def _short(number: float) -> str:
    """Two digits of a number: 0.031, 3.1, 310, 31,000, 3.1e9; a dash for 0."""
    text = f"{number:.2g}" if number else "-"
    if 10 <= number < 1e6:
        return f"{float(text):,.0f}"
    return text.replace("e+0", "e").replace("e+", "e")


class MeasuredBefore:
    """A device in device_speeds.yaml. `basis` explains the estimate, and `hours` estimates work with so many
    passes for each network. The time of a batch depends on the multiply-adds or, for a small network, on the
    number of kernels, which the GPU starts one after another."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name, self.fields = name, fields
        self.launch = fields["launches"]["seconds"] / fields["launches"]["calls"]

    def _speed(self, kind: str) -> float:
        """Multiply-adds per second."""
        done = self.fields[kind]
        return float(done["images"] * done["passes"] * self.fields["multiply_adds"] / done["seconds"])

    @property
    def basis(self) -> str:
        speeds = [f"{self._speed(kind) / 1e12:.0f}" for kind in ("training", "evaluation")]
        return (
            f"{' and '.join(speeds)} trillion multiply-adds per second in training and evaluation, as"
            f" measured with a {self.fields['network']} (bench/results.jsonl); a pass of a batch takes at"
            f" least {1000 * self.launch:.1f} ms, as measured without CUDA graphs."
        )

    def hours(self, work: Work, passes: float) -> float:
        speed = self._speed("training" if work.epochs else "evaluation")
        launches = work.networks.records * passes / (work.batch or CHUNK["cuda"])
        return float(max(work.networks.multiply_adds * passes / speed, launches * self.launch) / 3600)


class MeasuredHere:
    """The device of this process, on which one batch is measured for a network of each space."""

    name = "this device"

    def __init__(self) -> None:
        self.device = choose(Run.of(device="auto"))
        on_cpu = self.device.type == "cpu"
        self.cores = resources.cores() if on_cpu else 1
        self.clock = time.process_time if on_cpu else time.perf_counter  # other processes may use the cores
        torch.set_num_threads(1)
        self.measured: dict[tuple[str, int, bool], tuple[str, float]] = {}

    @property
    def basis(self) -> str:
        cores = f"; processor time, divided by {self.cores} cores" if self.device.type == "cpu" else ""
        batches = "; ".join(dict.fromkeys(text for text, _ in self.measured.values()))
        return f"{environment(self.device)}{cores}. Measured now: {batches}. Others are estimated."

    def hours(self, work: Work, passes: float) -> float:
        if not passes:
            return 0.0
        arch, batch = work.networks.typical, work.batch or CHUNK[self.device.type]
        key = arch["space"], batch, work.epochs > 0
        if key not in self.measured:
            alike = [one for known, one in self.measured.items() if known[2] == key[2]]
            large = arch["macs"] > _LARGE and alike
            self.measured[key] = alike[0] if large else self._measure(work.networks, batch, key[2])
        return work.networks.multiply_adds * passes * self.measured[key][1] / self.cores / 3600

    def _measure(self, networks: Networks, batch: int, training: bool) -> tuple[str, float]:
        """A description, and the seconds for a multiply-add, from the fastest of four passes of a batch."""
        arch, about = networks.typical, networks.about
        images = torch.rand(max(1, min(batch, int(_MOST / arch["macs"]))), *about.shape)
        model = models.build(arch, classes=about.classes, shape=about.shape).eval()
        if not training:
            how = precision.resolve(Run.of(precision="auto", device=self.device.type))
            model = make_fast_model(model, how, about.shape).model
        model, images = model.to(self.device), images.to(self.device)
        seconds = min(self._pass(model, images) for _ in range(4))  # the first one also prepares memory
        count = "1 image" if len(images) == 1 else f"{len(images)} images"
        text = f"{count} of {about.name} through {arch['name']} in {_short(1000 * seconds)} ms"
        return text, seconds / len(images) / arch["macs"]

    def _pass(self, model: Any, images: torch.Tensor) -> float:
        start = self.clock()
        with torch.no_grad():
            model(images).sum().item()
        return self.clock() - start
