"""Two processes of torchrun train as one: every method, AWP, micro-batches, shares without an image."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbtools.errors import RbError
from rbtools.models import checkpoint
from rbtools.store import Store
from rbtools.trainer import distributed, loop

# Each process of torchrun, and the test itself, runs this with its own store. The network has no BatchNorm,
# and a weight that no gradient reaches.
SCRIPT = """
import dataclasses, json, os, sys
import torch
from torch import nn
from rbtools.execution.run import Run
from rbtools.store import Store
from rbtools import models
from rbtools.trainer import distributed
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train, worker_loop
from rbtools.training import METHODS

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 3, 3, bias=False), nn.Linear(48, 3)
        self.unreached = nn.Linear(2, 2)
    def forward(self, images):
        hidden = nn.functional.softplus(self.first(images), 5)
        return self.last(hidden.flatten(1))

models.build = lambda arch, **_: Small()
ATTACK = {"eps": 0.1, "attack_steps": 2, "step_size": 0.05}
FEW = {
    **dict.fromkeys(("pgd", "trades", "mart", "alp", "clp", "kl-pgd", "mixed"), ATTACK),
    "erm-dataaug": {"samples": 2}, "evar": {"samples": 3},
    "cvar": {"samples": 3, "rounds": 2, "tail_step": "image"},
    "at-pr": {"candidates": 2, "steps_min": 1, "steps_max": 3, "walk_steps": 2},
}
PLAIN = Recipe(epochs=1, batch_size=10, lr=0.02, schedule="constant", augment=())
CASES = {name: (METHODS.build(name, **FEW.get(name, {})), PLAIN) for name in METHODS}
PGD, TRADES = CASES["pgd"][0], CASES["trades"][0]
CASES["awp"] = (TRADES, dataclasses.replace(PLAIN, regularize=("awp",)))
CASES["pieces"] = (PGD, dataclasses.replace(PLAIN, micro_batch=3))
CASES["no share"] = (PGD, dataclasses.replace(PLAIN, batch_size=1))
CASES["no share, awp"] = (PGD, dataclasses.replace(PLAIN, batch_size=1, regularize=("awp",)))
torch.set_num_threads(1)
said = []
run = Run.of(tool="rb-train", store=Store(sys.argv[1]), device="cpu", threads=1, notify=said.append)
record = {"schema": 1, "arch": {"space": "python", "name": "mine:network"}, "dataset": sys.argv[2]}
with distributed.process_group(run) as leads:
    if leads:
        for case, (method, recipe) in CASES.items():
            done = train(record, method, recipe, run)
            print(json.dumps({"case": case, "checkpoint": done["checkpoint"], "train": done["train"]}))
        train(record, METHODS.build("cvar", samples=2, rounds=2), PLAIN, run)
        print(json.dumps({"case": "said", "said": said}))
    else:
        worker_loop(run)
"""


def trained(command: list[str], store: str) -> dict[str, dict[str, Any]]:
    """The printed lines by their case."""
    line = [*command, "script.py", store, "npz:some.npz"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    return {line["case"]: line for line in lines}


def test_two_processes_train_every_method_as_one() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(24) % 3
    images = random.integers(0, 120, (24, 6, 6)) + 60 * labels[:, None, None]
    np.savez("some.npz", train_images=images.astype(np.uint8), train_labels=labels)
    Path("script.py").write_text(SCRIPT)
    alone = trained([sys.executable], "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together = trained(torchrun, "two")
    assert together.keys() == alone.keys()
    for case in alone.keys() - {"said"}:
        states = [
            checkpoint.read(Store(folder).object(lines[case]["checkpoint"])).state
            for folder, lines in (("one", alone), ("two", together))
        ]
        for name, value in states[0].items():
            assert torch.allclose(states[1][name], value, rtol=1e-5, atol=1e-6), (case, name)
        ours, theirs = (lines[case]["train"] for lines in (together, alone))
        assert ours["processes"] == 2, case
        # Attacks of at-pr go on until the last image of a batch needs no more steps.
        assert ours["passes"] == theirs["passes"] or case == "at-pr"
        assert ours["history"]["loss"] == pytest.approx(theirs["history"]["loss"], rel=1e-4), case
    assert not alone["said"]["said"]
    (line,) = together["said"]["said"]
    assert line.startswith("With these options, cvar depends on all images in a process's share of a batch,")


@pytest.mark.parametrize(
    ("sizes", "micro_batch", "processes", "told"),
    [
        ([128, 128, 4], None, 4, None),
        ([128, 6], 2, 2, None),
        ([9], 8, 2, None),
        ([128, 128, 3], None, 4, r"of 3 images\. Each of 4 GPUs gets 0\..* last batch has 4 images"),
        ([1], 1, 2, r"gets 0\."),
        ([11], 2, 2, r"of 11 images\. Each of 2 GPUs gets 5 or 6, in 2 or 3 pieces of at most 2\."),
    ],
)
def test_batches_of_which_a_gpu_would_wait_in_vain_are_refused(
    sizes: list[int], micro_batch: int | None, processes: int, told: str | None
) -> None:
    with pytest.raises(RbError, match=told) if told else nullcontext():
        distributed.check_pieces(sizes, micro_batch, processes)


def test_a_training_is_refused_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pretend device, with four simulated processes that never communicate."""
    from rbtools.training import METHODS
    from tests.pretend_device import PretendDevice
    from tests.pretend_training import trained_for

    for name, answer in (("count", 4), ("rank", 0), ("broadcast", None)):
        monkeypatch.setattr(distributed, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(loop, "train_epoch", lambda *_: pytest.fail("it began to train"))
    with PretendDevice(), pytest.raises(RbError, match=r"of 2 images\. Each of 4 GPUs gets 0"):
        trained_for(10, METHODS.build("erm"), "cuda", batch_size=38)
