"""Everything that is registered runs on a pretend GPU: nothing mixes devices, and no loop waits for it."""

from __future__ import annotations

import importlib
import itertools
import json
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbtools import datasets, evaluation
from rbtools.attacks import ATTACKS, active_examples
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import streaming
from rbtools.evaluation.base import EvalTask
from rbtools.evaluation.certified import CertifiedTask
from rbtools.evaluation.corruption_archive import run_archive
from rbtools.evaluation.distances import DistanceOutput, DistanceTask
from rbtools.evaluation.evaluate import run_task
from rbtools.evaluation.gradient_masking import GradientMaskingTask
from rbtools.evaluation.measurement import MeasureRequest, measure, perturbing
from rbtools.evaluation.probabilistic import NoiseTask
from rbtools.evaluation.rare_failures import RareFailureTask
from rbtools.evaluation.robust_loss import RobustLossTask
from rbtools.evaluation.screened_attack import TwoPhaseRequest, run_two_phase, screen_of
from rbtools.evaluation.smoothed_classifier import SmoothingOutput, SmoothingTask
from rbtools.evaluation.tasks import AccuracyTask, AttackTask, CorruptionTask
from rbtools.evaluation.transfer import TransferTask
from rbtools.execution.context import RunContext
from rbtools.measures import MEASURES
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.probabilistic.splitting import Splitting
from rbtools.rng.draws import Draws
from rbtools.store import Store
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice, on_device
from tests.pretend_training import counts_of_steps, small_method, trained_for

Record = dict[str, Any]

# --- the pretend device itself ----------------------------------------------------------------------

WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool((x > 0).any()),
    "if": lambda x: 1 if x[0, 0] > 0 else 0,
    "a tensor as a position": lambda x: x[x.long()[0, 0]],
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to the host": lambda x: x.to("cpu", torch.float64),
    "copy_ to the host": lambda x: torch.empty(2, 3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "where without values": lambda x: torch.where(x > 0),
    "a mask as an index": lambda x: x[x > 0],
    "a mask of rows": lambda x: x[x[:, 0] > 0],
    "assignment by a mask": lambda x: x.clone().__setitem__(x[:, 0] > -1, torch.ones(2, 3).cuda()),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "a list as an index": lambda x: x[[1, 0]],
    "an index of the host": lambda x: x[torch.tensor([1, 0])],
    "an unpinned copy": lambda x: torch.ones(2, 3).to("cuda", non_blocking=True),
    "a pinned copy that blocks": lambda x: torch.ones(2, 3).pin_memory().to("cuda"),
    "data of the host": lambda x: torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor": lambda x: torch.as_tensor(1.0, device=x.device),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(2, device="cuda").long(), 0),
}
FREE: dict[str, Callable[[Tensor], Any]] = {
    "views": lambda x: x[1:].view(3).unsqueeze(0).expand(4, 3).T,
    "arithmetic with numbers": lambda x: (x * 2 + torch.tensor(1.0)).clamp(0, 1).softmax(1),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "gather": lambda x: x.gather(1, x.argmax(1)[:, None]),
    "a pinned copy": lambda x: torch.ones(2, 3).pin_memory().to("cuda", non_blocking=True),
    "a copy of pinned memory": lambda x: torch.empty(2, pin_memory=True).to("cuda", non_blocking=True),
    "an index of the device": lambda x: x[torch.arange(2, device="cuda")],
    "filling where a mask is": lambda x: x.clone().__setitem__(x > 0, 1.0),
    "one_hot": lambda x: nn.functional.one_hot(x.argmax(1), 3),
    "made there": lambda x: torch.zeros(3, device=x.device) + x.new_full((3,), 2) + torch.ones_like(x),
    "the host's own work": lambda x: torch.ones(3).sum().item(),
    "shapes": lambda x: (len(x), x.numel(), x.shape, x.device.type, x.is_cuda),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_pretend_device_counts_what_a_gpu_waits_for(name: str) -> None:
    with PretendDevice() as device:
        x = torch.tensor([[1.0, 0, 1], [0, 1, 0]]).to("cuda")
        device.reset()
        WAITS[name](x)
    assert device.waits.total() >= 1
    assert {line.partition(":")[0] for _, line in device.waits} == {"tests/test_pretend_device.py"}


@pytest.mark.parametrize("name", FREE)
def test_the_pretend_device_counts_no_wait_where_there_is_none(name: str) -> None:
    with PretendDevice() as device:
        x = torch.ones(2, 3).to("cuda")
        device.reset()
        FREE[name](x)
    assert not device.waits


def test_launches_are_kernels_and_not_views() -> None:
    with PretendDevice() as device:
        x = torch.ones(2, 3).to("cuda").requires_grad_()
        device.reset()
        (x.view(3, 2).t()[1:] * 2).sum().backward()
    assert device.launches["mul"] == 2 and device.launches["sum"] == 1 and "view" not in device.launches


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(2, 3),
        lambda x: torch.ones(2, 3).add_(x),
        lambda x: torch.cat([x, torch.ones(2, 3)]),
        lambda x: torch.ones(2, 3)[x.long()],
        lambda x: nn.Linear(3, 3)(x),
        lambda x: x.gather(1, torch.zeros(2, 1).long()),
        lambda x: torch.where(x > 0, x, torch.ones(2, 3)),
    ],
)
def test_tensors_of_two_devices_do_not_meet(mixed: Callable[[Tensor], Tensor]) -> None:
    with PretendDevice(), pytest.raises(RuntimeError, match="same device"):
        mixed(torch.ones(2, 3).to("cuda"))
    with PretendDevice(), pytest.raises(TypeError, match="cuda:0 device type tensor to numpy"):
        torch.ones(2).to("cuda").numpy()


def test_networks_gradients_and_copies_stay_on_the_device() -> None:
    import copy

    with PretendDevice() as device:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3)).to(
            "cuda"
        )
        x = torch.rand(2, 1, 8, 8).to("cuda")
        model(x).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        device.reset()
        optimizer.step()
        assert not device.waits
        grads = [parameter.grad for parameter in model.parameters()]
        assert all(grad is not None and on_device(grad) and grad.device.type == "cuda" for grad in grads)
        twin = copy.deepcopy(model)
        assert all(map(on_device, twin.state_dict().values()))
        slopes = torch.func.vmap(torch.func.grad(lambda one: twin.eval()(one[None]).sum()))(x)
        assert slopes.device.type == "cuda"


# --- attacks ----------------------------------------------------------------------------------------

SHORT: dict[str, dict[str, Any]] = {
    "square": {"queries": 20},
    "noise": {"samples": 8},
    "aa": {"attacks": "pgd,noise"},
    "cw-l2": {"steps": 8, "searches": 2},
    "fgsm": {},
}
LONGER: dict[str, dict[str, Any]] = {"pgd": {"steps": 10}, "apgd-ce": {"steps": 10}}  # than a look


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    return layers.eval().requires_grad_(False)


def images_of(count: int) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def built(name: str, eps: float, **more: Any) -> Any:
    return ATTACKS.build(name, eps=eps, **{**SHORT.get(name, {"steps": 6}), **more})


def attacked(attack: Any, count: int, device: PretendDevice | None) -> Tensor:
    """The images of an attack, on the CPU; `device` counts the second of two runs, when caches are full."""
    model, images = network(), images_of(count)
    labels = model(images).argmax(1)
    if device is None:
        return attack(model, images, labels, Draws(0, "test", torch.arange(count)))
    model, images, labels = model.to("cuda"), images.to("cuda"), labels.to("cuda")
    draws = Draws(0, "test", torch.arange(count, device="cuda"))
    attack(model, images, labels, draws)
    device.reset()
    perturbed = attack(model, images, labels, draws)
    assert on_device(perturbed)
    return perturbed


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_runs_on_the_device_and_gives_the_images_of_the_cpu(name: str) -> None:
    attack = built(name, 0.05)
    wanted = attacked(attack, 6, None)
    with PretendDevice() as device:
        images = attacked(attack, 6, device).cpu()
    torch.testing.assert_close(images, wanted, rtol=0, atol=1e-5)


EPS = {"linf": 0.02, "l2": 0.3, "l1": 2.0}
NORMS = [*((name, ATTACKS.build(name).norm) for name in ATTACKS), ("apgd-ce", "l1"), ("square", "l2")]


@pytest.mark.parametrize(("name", "norm"), NORMS)
def test_broken_examples_that_leave_late_end_at_the_same_points(
    name: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, with the schedule of a GPU: an attack that breaks some examples and not others."""
    own = {} if norm == ATTACKS.build(name).norm else {"norm": norm}
    attack = built(name, EPS[norm], **own, **LONGER.get(name, {}))
    wanted = attacked(attack, 12, None)
    monkeypatch.setattr(active_examples, "EACH_STEP", active_examples.CheckSchedule(3))
    torch.testing.assert_close(attacked(attack, 12, None), wanted, rtol=0, atol=1e-5)


class Coarse(nn.Module):
    """A fast model that prefers later classes, and the exact one that confirms what it finds."""

    def __init__(self, exact: nn.Module) -> None:
        super().__init__()
        self.exact, self.refused = exact, 0

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.exact(images) + torch.linspace(-0.02, 0.02, 10)
        return logits

    def confirm(self, points: Tensor, labels: Tensor) -> Tensor:
        wrong: Tensor = self.exact(points).argmax(1) != labels
        self.refused += int((~wrong).sum())
        return wrong


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "noise"])
def test_a_coarse_model_that_is_confirmed_late_breaks_the_same_examples_at_the_same_points(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images, draws = network(), images_of(16), Draws(0, "test", torch.arange(16))
    labels, attack = model(images).argmax(1), built(name, 0.05, **LONGER.get(name, {}))
    wanted = attack(Coarse(model), images, labels, draws)
    monkeypatch.setattr(active_examples, "EACH_STEP", active_examples.CheckSchedule(3))
    coarse = Coarse(model)
    torch.testing.assert_close(attack(coarse, images, labels, draws), wanted, rtol=0, atol=1e-6)
    assert coarse.refused


# The option with the number of steps, and what makes an attack one loop.
STEPS = {"square": "queries", "noise": "samples"}
ONE_LOOP = {"apgd-t": {"targets": 1}, "fab-t": {"targets": 1}, "cw-l2": {"searches": 1}}
# What has no loop of steps of its own.
NO_STEPS = {"fgsm": "one step", "aa": "the loops of its parts"}


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in NO_STEPS])
def test_an_attack_waits_at_most_once_in_8_steps(name: str) -> None:
    """No example is broken, so all steps are made; what 8 steps more wait for."""
    counts, option = [], STEPS.get(name, "steps")
    for number in (8, 16):
        with PretendDevice() as device:
            attacked(built(name, 1e-6, **{option: number}, **ONE_LOOP.get(name, {})), 2, device)
        counts.append(device.waits)
    fewer, more = counts
    assert more.total() - fewer.total() <= 1, more - fewer


@pytest.mark.parametrize(
    ("active", "size", "wanted"),
    [(5, 10, None), (4, 10, 5), (1, 16, 1), (2, 16, 2), (3, 16, 4), (0, 7, 0)],
)
def test_loops_have_few_sizes(active: int, size: int, wanted: int | None) -> None:
    assert active_examples.size_for(active, size) == wanted


# --- evaluations and measures -----------------------------------------------------------------------


@pytest.fixture
def record(trained: dict[str, Record]) -> Record:
    return trained["erm"]


def run_on(device: str, **options: Any) -> RunContext:
    return RunContext(
        tool="rb-test", store=Store(Path("rb-store")), device=device, threads=1, **{"n": 6, **options}
    )


NOISE = NOISES.build("uniform")
PGD2 = ATTACKS.build("pgd", steps=2)


def _archive(record: Record) -> Record:
    clean = datasets.load("digits", "test")
    images = clean.images.permute(0, 2, 3, 1).repeat(5, 1, 1, 1).numpy()
    Path("archive").mkdir()
    np.save("archive/fog.npy", images)
    np.save("archive/labels.npy", clean.labels.repeat(5).numpy())
    return run_archive(record, Path("archive"), ("fog",), (1, 5), None, run_on("cuda"))


def _two_phase(record: Record) -> Record:
    request = TwoPhaseRequest(PGD2, (2 / 255,), screen_of(PGD2, 1), 3)
    return run_two_phase(record, request, run_on("cuda"))


def _task(task: EvalTask, **options: Any) -> Callable[[Record], Record]:
    return lambda record: run_task(record, task, run_on("cuda", **options))


EVALUATIONS: dict[str, Callable[[Record], Record]] = {
    "AccuracyTask": _task(AccuracyTask(detail=True)),
    "AttackTask": _task(AttackTask(ATTACKS.build("apgd-ce", steps=3), (2 / 255, 8 / 255), True)),
    "CorruptionTask": _task(CorruptionTask((CORRUPTIONS.build("fog"),), (1, 5))),
    "ArchiveTask": _archive,
    "NoiseTask": _task(NoiseTask(NOISE, (0.1, 0.3), Estimator(rho=(0.1,)), 4)),
    "adaptive NoiseTask": _task(NoiseTask(NOISE, (0.3,), Estimator(rho=(0.2,)), 80, True, True)),
    "RareFailureTask": _task(RareFailureTask(NOISE, (0.1,), Splitting(particles=20, moves=1, runs=2))),
    "RobustLossTask": _task(RobustLossTask(ATTACKS.build("pgd", steps=2, iterate="last"), (8 / 255,))),
    "DistanceTask": _task(DistanceTask((DistanceOutput(ATTACKS.build("fmn", steps=4), (0.1,)),))),
    "GradientMaskingTask": _task(
        GradientMaskingTask(
            8 / 255,
            pgd=PGD2,
            fgsm=ATTACKS.build("fgsm"),
            square=ATTACKS.build("square", queries=4),
            noise=ATTACKS.build("noise", samples=4),
        )
    ),
    "TransferTask": lambda record: run_task(
        record, TransferTask(PGD2, (8 / 255,), json.dumps(record), run_on("cuda")), run_on("cuda")
    ),
    "CertifiedTask": _task(CertifiedTask(CERTIFIERS.build("crown"), (1 / 255,)), n=2),
    "CertifiedTask by ibp": _task(CertifiedTask(CERTIFIERS.build("ibp"), (1 / 255,))),
    "SmoothingTask": _task(SmoothingTask(SmoothingOutput(CERTIFIERS.build("smooth", samples=200), (0.1,)))),
    "ScreenTask": _two_phase,
    "_SampleTask": _two_phase,
}


def subclasses(cls: type) -> set[type]:
    return {one for sub in cls.__subclasses__() for one in (sub, *subclasses(sub))}


def test_every_evaluation_of_the_package_is_among_those_that_run() -> None:
    for module in pkgutil.iter_modules(evaluation.__path__):
        importlib.import_module(f"rbtools.evaluation.{module.name}")
    known = {cls.__name__ for cls in subclasses(EvalTask) if cls.__module__.startswith("rbtools.")}
    assert known == {name.removeprefix("adaptive ").partition(" ")[0] for name in EVALUATIONS}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_runs_on_the_device(name: str, record: Record) -> None:
    with PretendDevice() as device:
        entries = EVALUATIONS[name](record)["evals"]
    assert len(entries) > len(record.get("evals", ())) and device.launches


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_runs_on_the_device(name: str) -> None:
    corruption, images = CORRUPTIONS.build(name), images_of(2)
    draws = Draws(0, "test", torch.arange(2))
    wanted = corruption(images, 3, draws)
    with PretendDevice():
        draws = Draws(0, "test", torch.arange(2, device="cuda"))
        corrupted = corruption(images.to("cuda"), 3, draws)
        assert on_device(corrupted)
        torch.testing.assert_close(corrupted.cpu(), wanted, rtol=0, atol=1.01 / 255)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_noise_is_drawn_on_the_device_without_a_wait(name: str, norm: str) -> None:
    noise, images = NOISES.build(name, norm=norm), images_of(2)
    wanted = noise.unit(Draws(0, "test", torch.arange(2)), (3, 8, 8), 1)
    with PretendDevice() as device:
        draws = Draws(0, "test", torch.arange(2, device="cuda"))
        noise.unit(draws, (3, 8, 8), 0)
        device.reset()
        unit = noise.unit(draws, (3, 8, 8), 1)
        assert not device.waits
        noise.apply(images.to("cuda"), unit, 0.1)
        torch.testing.assert_close(unit.cpu(), wanted)


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_runs_on_the_device(name: str, record: Record) -> None:
    own = {"bound": {"paper": "robbench"}}.get(name, {})
    request = MeasureRequest(
        (MEASURES.build(name, **own),), perturbing(("pgd",), (8 / 255,), 2, None), batches=1, batch_size=4
    )
    with PretendDevice():
        entries = measure(record, request, run_on("cuda"))["evals"]
    assert len(entries) > len(record.get("evals", ()))


# --- training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_training_step_does_not_wait(name: str) -> None:
    """In bfloat16, as a GPU trains by default."""
    counts = counts_of_steps(small_method(name), precision="bf16")
    assert not counts.waits and counts.launches > 50, counts.waits


@pytest.mark.parametrize("regularize", [(), ("mixup",)])
def test_nor_does_one_whose_images_do_not_fit_the_device(
    regularize: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "fits", lambda size, device: False)
    assert not counts_of_steps(METHODS.build("erm"), regularize=regularize).waits


def test_the_loss_is_read_every_32_steps_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training of 40 steps reads it twice: after 32, and at the end; between these nothing waits."""
    from rbtools.trainer import loop

    checked, check, step = [], loop.check_loss, loop._Training._step
    numbers, waits = itertools.count(1), list[set[tuple[str, str]]]()
    monkeypatch.setattr(loop, "check_loss", lambda loss, epoch: (checked.append(loss), check(loss, epoch)))
    with PretendDevice() as device:

        def counted(*args: Any) -> Any:
            if (number := next(numbers)) == 32:
                waits.append(set(device.waits))
            worst = yield from step(*args)
            if number == 2:  # the first fill caches
                device.reset()
            return worst

        monkeypatch.setattr(loop._Training, "_step", counted)
        trained_for(40, METHODS.build("erm"), "cuda")
    assert len(checked) == 2 and waits == [set()]
