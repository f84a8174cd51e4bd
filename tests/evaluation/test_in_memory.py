"""`rbtools.evaluate`, the methods called by themselves, and the functions of the tools with `data=`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks import ATTACKS
from rbtools.attacks.pgd import PGD
from rbtools.certification.smooth import Smooth
from rbtools.corruptions import CORRUPTIONS
from rbtools.corruptions.fog import Fog
from rbtools.datasets.indices import subset
from rbtools.errors import RbError
from rbtools.evaluation.base import Outcomes
from rbtools.evaluation.in_memory import task_of
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import stored_results
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.distributions import Uniform
from rbtools.store import Store, digest
from tests import runner
from tests.attacks.test_own_attacks import SHORT
from tests.networks import linear

MODULE = """
from torch import nn


class Network(nn.Module):
    '''Computed in float64, so that rounding cannot show.'''

    def __init__(self, classes=10, shape=(1, 8, 8)):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).double()

    def forward(self, images):
        return self.net(images.double())
"""
N = 60
Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def digits() -> Data:
    test = rbtools.datasets.load("digits", "test")
    return test.images.float().div(255), test.labels


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, digits: Data) -> nn.Module:
    """A network of a module of the user's, with its weights in net.pt."""
    Path("twin_network.py").write_text(MODULE)
    monkeypatch.syspath_prepend(os.getcwd())
    sys.modules.pop("twin_network", None)
    module = __import__("twin_network")
    torch.manual_seed(0)
    model: nn.Module = module.Network()
    images, labels = digits
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "net.pt")
    return model.eval()


SMALL: dict[str, dict[str, Any]] = {
    name: SHORT[name] for name in "cw apgd-ce apgd-t fab square noise".split()
}
SMALL |= {"fgsm": {}, "pgd": {"steps": 3, "restarts": 2}}
TASKS: dict[str, tuple[str, Any]] = {
    name: (
        " ".join([f"attack {name} --eps 40", *(f"--{key}={value}" for key, value in options.items())]),
        ATTACKS.build(name, eps=40 / 255, **options),
    )
    for name, options in SMALL.items()
}
TASKS["acc"] = "attack none", "acc"
TASKS["corruption"] = "corrupt gaussian_noise --severity 4", (CORRUPTIONS.build("gaussian_noise"), 4)
TASKS["noise of pr"] = "pr --gamma 0.4", (NOISES.build("uniform"), 0.4)


def by_command(line: str, task: Any, name: str) -> np.ndarray:
    """The outcomes that a command left in the store, in the order of the data set."""
    tool, words = line.split(" ", 1)
    words += f" --checkpoint net.pt --arch python:twin_network:{name} --allow-code --dataset digits"
    words += " --device cpu --store rb-store" + " --precision fp32" * (tool != "corrupt")
    record = runner.one(runner.run(tool, words))
    run = Run.of(store=Store("rb-store"), device="cpu", allow_code=True)
    inputs = resolve_inputs(record, run)
    (spec,) = task_of(task).specs
    found = Outcomes(run.store, digest(stored_results.outcome_fields(inputs, spec))).values(inputs.n)
    assert len(found), "the store has no outcomes under the key of these settings"
    return found[inputs.data.order(inputs.data.load().labels).argsort().numpy()]


def by_call(task: Any, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Which images are correct, bool (n,), or in how many copies, by the method's own call."""
    if task == "acc":
        points = images
    elif isinstance(task, tuple) and isinstance(task[1], int):
        points = task[0](images, task[1])
    elif isinstance(task, tuple):
        clean = model(images).argmax(1) == labels
        copies = task[0](images, task[1], 100)
        right = torch.stack([model(part).argmax(1) == labels for part in copies]).sum(0)
        return torch.where(clean, right, -1)
    else:
        points = task(model, images, labels)
        assert (points - images).abs().max() <= 40 / 255 + 1e-6 and 0 <= points.min() <= points.max() <= 1
        return (model(points).argmax(1) == labels) & (model(images).argmax(1) == labels)
    return model(points).argmax(1) == labels


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.slow
def test_command_function_and_call_have_the_same_outcomes(
    name: str, network: nn.Module, digits: Data
) -> None:
    line, task = TASKS[name]
    result = rbtools.evaluate(network, digits, task, precision="fp32")
    outcomes = result.outcomes.numpy()
    np.testing.assert_array_equal(by_call(task, network, *digits).numpy().astype(int), outcomes)
    np.testing.assert_array_equal(by_command(line, task, type(network).__name__), outcomes)
    named = rbtools.evaluate(network, "digits", task, precision="fp32")
    assert named.value == result.value and torch.equal(named.correct, result.correct)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.images[number], int(self.labels[number])


def test_a_list_of_tasks_gives_a_list_of_results(network: nn.Module, digits: Data) -> None:
    results = rbtools.evaluate(network, digits, ["acc", (Smooth(samples=200), 0.1)], n=N)
    clean, smooth = results
    table, low = results._repr_html_(), f"{clean.ci95[0]:.4f}"  # what a notebook shows
    assert table.count("<tr>") == 3 and table.index("<td>acc<") < table.index(low) < table.index("<td>cert.")
    assert (clean.metric, clean.n, len(clean.correct)) == ("acc", N, N)
    assert smooth.metric == "cert.smooth.0.25.0.1" and smooth.entry["sigma"] == 0.25
    assert torch.equal(clean.ids, subset(digits[1], N, seed=0).sort().values)


def test_without_a_store_nothing_is_written_and_with_one_nothing_is_computed_again(
    network: nn.Module, digits: Data
) -> None:
    def files() -> list[Path]:
        return [path for path in sorted(Path().rglob("*")) if "__pycache__" not in str(path)]

    before = files()
    attack = PGD(eps=40 / 255, steps=2)
    rbtools.evaluate(network, digits, [attack, "acc"], precision="fp32")
    rbtools.attack(network, "pgd", eps=40, steps=2, data=digits, precision="fp32")
    assert files() == before
    first = rbtools.evaluate(network, digits, attack, store="kept", precision="fp32")
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    again = rbtools.evaluate(network, digits, attack, store="kept", precision="fp32")
    # a check of the logits of four images
    assert sum(sizes) <= 8 and torch.equal(again.correct, first.correct)
    with torch.no_grad():
        next(network.parameters()).mul_(1.5)
    rbtools.evaluate(network, digits, attack, store="kept", precision="fp32")
    assert sum(sizes) > len(digits[1])  # other weights


def test_other_layers_with_the_same_weights_are_another_model(digits: Data) -> None:
    flatten, layer = linear((1, 8, 8))
    one, other = (
        rbtools.evaluate(nn.Sequential(flatten, first, layer).eval(), digits, "acc", store="kept")
        for first in (nn.Identity(), nn.LogSigmoid())
    )
    assert not torch.equal(one.correct, other.correct)


def test_functions_without_weights_are_models_too(network: nn.Module, digits: Data) -> None:
    function = lambda images: network(images)  # noqa: E731
    found, expected = (
        rbtools.evaluate(model, digits, PGD(eps=40 / 255, steps=2), n=N, precision="fp32")
        for model in (function, network)
    )
    assert torch.equal(found.correct, expected.correct)
    with pytest.raises(RbError, match="of type function and has no weights"):
        rbtools.evaluate(function, digits, "acc", store="kept")


WRONG: dict[str, tuple[Any, str]] = {
    "range": (lambda m, x, y: (m, (x * 2 - 0.5, y)), r"values from -0\.5 to 1\.5.*Undo the normalisation"),
    "bytes": (lambda m, x, y: (m, (x * 255, y)), r"from 0 to 255\. Expected values in \[0, 1\]\. Divide"),
    "NHWC": (lambda m, x, y: (m, (x.permute(0, 2, 3, 1), y)), r"channels last.*permute\(0, 3, 1, 2\)"),
    "labels": (lambda m, x, y: (m, (x, y + 3)), r"labels range from 3 to 12\. Expected 0 to 9"),
    "one-hot": (lambda m, x, y: (m, (x, nn.functional.one_hot(y))), r"one-hot.*labels\.argmax\(1\)"),
    "too few labels": (lambda m, x, y: (m, (x, y[1:])), r"shape \(354,\)\. Expected \(355,\)"),
    "softmax": (lambda m, x, y: (nn.Sequential(m, nn.Softmax(1)).eval(), (x, y)), "Remove the softmax"),
    "train mode": (lambda m, x, y: (nn.Sequential(m, nn.Dropout()), (x, y)), r"training mode.*\.eval\(\)"),
    "no data": (lambda m, x, y: (m, 3), r"of type int\. Expected a pair \(images, labels\)"),
    "no model": (lambda m, x, y: (None, (x, y)), "of type NoneType. Expected a module"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gets_one_sentence(name: str, network: nn.Module, digits: Data) -> None:
    make, message = WRONG[name]
    model, data = make(network, *digits)
    if name not in ("softmax", "train mode"):
        with pytest.raises(RbError, match=message):
            rbtools.evaluate(model, data, "acc")
    if isinstance(data, tuple):
        with pytest.raises(RbError, match=message):
            PGD(eps=0.1, steps=1)(model, *data)
    if isinstance(model, nn.Module):
        with pytest.raises(RbError, match=message):
            rbtools.attack(model, "fgsm", data=data)


def test_looks_of_the_command_are_warnings(network: nn.Module, digits: Data) -> None:
    class Shifted(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return network(images - 1)

    class Touchy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            if float(images.min()) < 0 or len(images) == 128:
                raise ValueError("pixels or a batch that I do not take")
            return network(images)

    plain = rbtools.evaluate(network, digits, "acc")
    training = nn.Sequential(network, nn.Dropout(), nn.BatchNorm1d(10).double())
    for model, said in (
        (nn.Sequential(network, nn.Softmax(1)), "ends in a softmax"),
        (training, r"training mode, in which its Dropout.*evaluated in eval mode.*model\.eval\(\)"),
        (Shifted(), r"normalisation looks wrong: clean accuracy is 0\.\d+ on 128 images, and 0"),
    ):
        with pytest.warns(UserWarning, match=said):
            result = rbtools.evaluate(model.train(model is training), digits, "acc", n=200)
        assert result.n == 200
    assert training[1].training and int(training[2].num_batches_tracked) == 0
    assert torch.equal(rbtools.evaluate(Touchy().eval(), digits, "acc").correct, plain.correct)
    for _ in range(2):  # from the store, too
        with pytest.warns(UserWarning, match="softmax"):
            rbtools.evaluate(nn.Sequential(network, nn.Softmax(1)).eval(), digits, "acc", store="kept")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: PGD(eps=8), r"eps of PGD is 8\. Expected 0 to 1 .*; 8/255 is eps=8 / 255"),
        (lambda: PGD(steps=2.5), "steps of PGD is 2.5. Expected a whole number"),
        (lambda: Smooth(samples=0), "samples of Smooth is 0. It must be 1 or more"),
        (lambda: Uniform(norm="l1"), "norm of Uniform is 'l1'"),
        (lambda: task_of((Uniform(), 8)), r"radius is 8\. Expected above 0 and at most 1.*8/255 is 8 / 255"),
        (lambda: task_of((Fog(), 7)), "severity is 7"),
    ],
)
def test_classes_check_what_commands_check(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(RbError, match=says):
        wrong()


def test_numbers_of_numpy_and_torch_become_plain() -> None:
    attack = PGD(eps=torch.tensor(0.25), steps=np.int64(3), step_size=np.float32(0.5))
    assert attack == PGD(eps=0.25, steps=3, step_size=0.5)
    assert [type(value) for value in (attack.eps, attack.steps, attack.step_size)] == [float, int, float]


def test_what_else_is_refused(network: nn.Module, digits: Data) -> None:
    loader = torch.utils.data.DataLoader(Pairs(*digits), batch_size=50, shuffle=True)
    with pytest.raises(RbError, match=r"shuffles its images.*shuffle=False"):
        rbtools.evaluate(network, loader, "acc", store="kept")
    assert rbtools.evaluate(network, loader, "acc").n == len(digits[1])
    with pytest.raises(RbError, match="evaluation is on meta, but the model is on cpu"):
        rbtools.evaluate(network, digits, "acc", device="meta")
    with pytest.raises(RbError, match="NaN or infinite"):
        rbtools.evaluate(network, (digits[0] * float("nan"), digits[1]), "acc")
    with pytest.raises(RbError, match=r"rb-arch describes; a module in memory has none"):
        rbtools.measure(network, digits, "bound")


def test_an_attack_called_by_itself_draws_by_the_position_of_the_images(digits: Data) -> None:
    model, attack = linear((1, 8, 8)), PGD(eps=0.2, steps=2)
    images, labels = digits[0][:6], digits[1][:6]
    points = attack(model, images, labels)
    assert torch.equal(points, attack(model, images, labels, seed=0))
    assert not torch.equal(points, attack(model, images, labels, seed=1))
    part = attack(model, images[3:], labels[3:], examples=torch.arange(3, 6))
    torch.testing.assert_close(part, points[3:], atol=1e-5, rtol=0)
