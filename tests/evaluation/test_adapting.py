"""Models that adapt while they are tested: verdicts of whole batches and of streams, and attacks on these."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor, nn

import rbtools
from rbtools.attacks.pgd import PGD
from rbtools.attacks.steps import step, uniform_start
from rbtools.datasets import load
from rbtools.datasets.indices import subset
from rbtools.errors import RbError
from rbtools.evaluation import evaluate
from rbtools.rng.draws import Draws
from tests.runner import Record, entry, one, run

F = nn.functional
EPS = 24 / 255
OWN = '''
import torch
from torch import nn

class BatchStatistics(nn.BatchNorm2d):
    def forward(self, x):
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True, eps=self.eps)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 8, 3), BatchStatistics(8), nn.Linear(32, 10)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.conv(x)))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))

class Tent(Net):
    """One step on the entropy of the batch, with momentum, before it answers."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD([self.norm.weight, self.norm.bias], lr=0.5, momentum=0.9)

    def forward(self, x):
        with torch.enable_grad():
            self.norm.requires_grad_(True)
            logits = super().forward(x.detach())
            entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
            self.optimizer.zero_grad()
            entropy.backward(inputs=[self.norm.weight, self.norm.bias])
        self.optimizer.step()
        self.norm.requires_grad_(False)
        return super().forward(x)

class Noisy(Net):
    def forward(self, x):
        return super().forward(x + 0.3 * torch.rand_like(x))

class Plain(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tta.py and the weights of its networks."""
    folder = tmp_path_factory.mktemp("tta")
    (folder / "tta.py").write_text(OWN)
    names: dict[str, Any] = {}
    exec(OWN, names)
    torch.manual_seed(0)
    network, digits = names["Net"](), load("digits", "train")
    images, labels = digits.images[:].float() / 255, digits.labels
    optimizer = torch.optim.Adam(network.parameters(), 2e-2)
    for _ in range(60):
        loss = F.cross_entropy(network(images[:600]), labels[:600])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(network.state_dict(), folder / "tta.pt")
    return folder


@pytest.fixture(autouse=True)
def here(own: Path) -> None:
    sys.modules.pop("tta", None)
    importlib.invalidate_caches()
    for file in own.glob("tta.*"):
        shutil.copy(file, file.name)


def network(name: str) -> Any:
    names: dict[str, Any] = {}
    exec(OWN, names)
    made = names[name]()
    made.load_state_dict(torch.load("tta.pt"), strict=False)
    return made.eval().requires_grad_(False)


def images(count: int = 40) -> tuple[Tensor, Tensor]:
    digits = load("digits", "test")
    return digits.images[:count].float() / 255, digits.labels[:count]


def by_hand(name: str, size: int, stream: bool, attack: PGD | None = None) -> Tensor:
    """Which of the images are right, by a plain loop: each pass is by a copy of the network."""
    (x, y), network_ = images(), network(name)
    right = torch.zeros(len(y), dtype=torch.bool)
    for ids in subset(y, len(y), seed=0).split(size):
        points = x[ids] if attack is None else joint_pgd(network_, x[ids], y[ids], ids, attack)
        last = deepcopy(network_)
        right[ids] = last(points).argmax(1) == y[ids]
        network_ = last if stream else network_
    return right


def joint_pgd(network_: Any, x: Tensor, y: Tensor, ids: Tensor, attack: PGD) -> Tensor:
    """PGD on the sum of the losses: the last iterate, or the one at which the fewest images are right."""
    met = [x]
    points = uniform_start(x, Draws(0, "attack.pgd", ids), attack.eps, attack.norm)
    for _ in range(attack.steps):
        met.append(points)
        inputs = points.clone().requires_grad_(True)
        with torch.enable_grad():
            loss = F.cross_entropy(deepcopy(network_)(inputs), y, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, inputs)
        size = attack.effective_step_size
        points = step(points, gradient, x, eps=attack.eps, step_size=size, norm=attack.norm)
    if attack.iterate == "last":
        return points
    return min([*met[1:], points, x], key=lambda tried: int((deepcopy(network_)(tried).argmax(1) == y).sum()))


def attack(*words: str, arch: str = "Tent") -> Result:
    model = (
        f"--checkpoint tta.pt --arch python:tta:{arch} --allow-code --dataset digits --normalize none --n 40"
    )
    return run("attack", [*words, *model.split()])


def timeless(record: Record) -> list[Record]:
    return [
        {key: value for key, value in one.items() if key not in ("seconds", "command")}
        for one in record["evals"]
    ]


TENT = ("pgd", "--eps", "24", "--steps", "4", "--batch", "16", "--adapts", "stream")


@pytest.mark.parametrize("name", ["Net", "Tent"])
@pytest.mark.parametrize("adapts", ["batch", "stream"])
def test_clean_verdicts_are_those_of_a_plain_loop(name: str, adapts: str) -> None:
    result = rbtools.evaluate(network(name), images(), "acc", batch=16, adapts=adapts)
    assert result.correct.equal(by_hand(name, 16, adapts == "stream"))
    record = one(attack("none", "--batch", "16", "--adapts", "" + adapts, arch=name))
    kept = entry(record, "acc")
    assert kept["adapts"] == {"to": adapts, "batch": 16} and kept["precision"] == "fp32"


def test_the_plain_loops_differ_by_the_size_and_by_the_stream() -> None:
    pgd = PGD(eps=EPS, steps=4)
    batch, stream, other = (by_hand("Tent", *kind, pgd) for kind in ((16, False), (16, True), (2, False)))
    assert not batch.equal(stream) and not batch.equal(other)


@pytest.mark.parametrize("name", ["Net", "Tent"])
@pytest.mark.parametrize("adapts", ["batch", "stream"])
@pytest.mark.parametrize("iterate", ["last", "any"])
def test_pgd_goes_through_the_whole_batch(name: str, adapts: str, iterate: str) -> None:
    pgd = PGD(eps=EPS, steps=4, iterate=iterate)
    model = network(name)
    before = deepcopy(model.state_dict())
    result = rbtools.evaluate(model, images(), pgd, batch=16, adapts=adapts)
    assert result.correct.equal(by_hand(name, 16, adapts == "stream", pgd))
    assert result.value < by_hand(name, 16, adapts == "stream").float().mean()
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())


def test_the_same_in_any_order_of_outputs_and_with_jobs() -> None:
    first = timeless(one(attack(*TENT[:2], "8,24", *TENT[3:])))
    other = timeless(one(attack(*TENT[:2], "24,8", *TENT[3:], "--store", "other", "--jobs", "2")))
    alone = timeless(one(attack(*TENT, "--store", "alone")))
    by_metric = {one["metric"]: one for one in first}
    assert [by_metric[one["metric"]] for one in other] == other and len(other) == 3
    assert [by_metric[one["metric"]] for one in alone] == alone


@pytest.mark.parametrize(("adapts", "again"), [("batch", 1), ("stream", 3)])
def test_after_a_kill_the_numbers_are_the_same(
    adapts: str, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream starts from its first batch; of other batches, those that were done are kept."""
    words = (*TENT[:-1], f"16:adapts={adapts}")
    expected = timeless(one(attack(*words, "--store", "whole")))
    sizes: list[int] = []
    made, whole = evaluate._batch, 2

    def counted(*given: Any) -> Any:
        if len(sizes) == whole:
            raise KeyboardInterrupt
        sizes.append(len(given[4]))
        return made(*given)

    monkeypatch.setattr(evaluate, "_batch", counted)
    assert attack(*words).exit_code == 130
    sizes.clear()
    whole = 99
    assert timeless(one(attack(*words))) == expected
    assert sizes == [16, 16, 8][3 - again :]


def test_another_size_is_another_question() -> None:
    first = one(attack("none", "--batch", "16", "--adapts", "batch"))
    words = ["none", "--allow-code", "--n", "40", "--batch"]
    for other in ("8:adapts=batch", "16:adapts=stream"):
        refused = run("attack", [*words, other], [first])
        assert refused.exit_code == 1 and "adapts" in json.loads(refused.stdout)["error"]["message"]
    assert "1 found" in run("attack", [*words, "16:adapts=batch"], [first]).stderr


@pytest.mark.parametrize(
    ("arch", "words", "message"),
    [
        ("Net", ("none", "--batch", "16"), "depends on the others of its batch. If it adapts"),
        ("Tent", ("none",), "--batch 64 --adapts stream, where the state goes on from batch to batch"),
        ("Plain", ("none", "--batch", "16", "--adapts", "batch"), "The model does not adapt"),
        ("Noisy", ("none", "--batch", "16", "--adapts", "batch"), "With adapts=batch it adapts, too"),
        ("Net", ("none", "--adapts", "batch"), "Write --batch 64 --adapts batch"),
        ("Net", (*TENT[:2], "8,24:ladder=yes", *TENT[3:]), "--ladder"),
        ("Net", ("aa", "--variant", "rand", *TENT[5:]), "--eot 1, or another variant"),
        ("Net", ("pgd", "--save-adv", "out", *TENT[5:]), "--save-adv"),
        ("Net", ("curve", *TENT[5:]), "judges every image by itself"),
        ("Net", ("check", *TENT[5:]), "judges every image by itself"),
        ("Net", ("aa", "--two-phase", "10", *TENT[5:]), "judges every image by itself"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(arch: str, words: tuple[str, ...], message: str) -> None:
    refused = attack(*words, arch=arch)
    assert refused.exit_code == 1 and message in json.loads(refused.stdout)["error"]["message"]


@pytest.mark.parametrize("method", ["apgd-ce", "square", "fgsm", "fmn", "fab-t", "aa", "noise"])
def test_every_attack_lowers_the_accuracy_or_leaves_it(method: str) -> None:
    short = {
        "square": ("--queries", "20"),
        "aa": ("--attacks", "apgd-ce,fgsm"),
        "fgsm": (),
        "noise": ("--samples", "5"),
    }.get(method, ("--steps", "4"))
    metrics = one(attack(method, *short, "--eps", "24", "--batch", "16", "--adapts", "batch"))["metrics"]
    assert min(metrics.values()) < metrics["acc"] or (method == "noise" and len(set(metrics.values())) == 1)


def test_corruptions_and_verification() -> None:
    words = "--severity 3 --checkpoint tta.pt --arch python:tta:Tent --allow-code --dataset digits --n 40"
    record = one(run("corrupt", f"contrast {words} --normalize none --batch 16 --adapts stream"))
    assert entry(record, "corrupt.contrast.3")["adapts"] == {"to": "stream", "batch": 16}
    record = one(run("attack", [*TENT, "--allow-code", "--n", "40"], [record]))
    verified = one(run("verify", "--allow-code", [record]))
    assert {one["verdict"] for one in verified["verify"]["entries"].values()} == {"match"}


def test_a_memory_that_does_not_hold_a_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("Net")

    def full(x: Tensor) -> Tensor:
        if len(x) == 16:
            raise torch.OutOfMemoryError
        logits: Tensor = model(x)
        return logits

    with pytest.raises(RbError, match="16 images of a batch"):
        rbtools.evaluate(full, images(), "acc", batch=16, adapts="batch")
