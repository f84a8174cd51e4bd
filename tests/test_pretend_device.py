"""Everything that is registered runs on a pretend GPU: nothing mixes devices, and no loop waits for it."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbtools import datasets, evaluation
from rbtools.attacks import ATTACKS, active_examples
from rbtools.attacks.oracle import Oracle
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import streaming
from rbtools.evaluation import accuracy, under_corruption
from rbtools.evaluation.attacking import run_attack
from rbtools.evaluation.base import Batch
from rbtools.evaluation.certified import certified
from rbtools.evaluation.distances import nearest
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.rare_failures import rare_failures
from rbtools.evaluation.robust_loss import robust_loss
from rbtools.evaluation.spec import Evaluation, Spec
from rbtools.execution.run import Run
from rbtools.jobs.attack_tasks import MaskingChecklist
from rbtools.jobs.corruption_archive import ArchiveJob
from rbtools.jobs.measurement import MeasureJob, perturbing
from rbtools.jobs.screened_attack import TwoPhaseJob, screen_of
from rbtools.jobs.transfer import transferred
from rbtools.measures import MEASURES
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.probabilistic.splitting import Splitting
from rbtools.rng.draws import Draws
from rbtools.store import Store
from rbtools.threats.ball import Ball
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice, on_device
from tests.pretend_graphs import PretendGraph
from tests.pretend_training import counts_of_steps, small_method, trained_for
from tests.runner import run_in, run_task

Record = dict[str, Any]


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "to the host": lambda x: x.to("cpu", torch.float64),
    "copy_ to the host": lambda x: torch.empty(2, 3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "a mask as an index": lambda x: x[x > 0],
    "an index of the host": lambda x: x[torch.tensor([1, 0])],
    "an unpinned copy": lambda x: torch.ones(2, 3).to("cuda", non_blocking=True),
    "a pinned copy that blocks": lambda x: torch.ones(2, 3).pin_memory().to("cuda"),
    "data of the host": lambda x: torch.tensor([1.0, 2.0], device="cuda"),
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_pretend_device_counts_what_a_gpu_waits_for(name: str) -> None:
    with PretendDevice() as device:
        x = torch.tensor([[1.0, 0, 1], [0, 1, 0]]).to("cuda")
        device.reset()
        assert not device.waits
        WAITS[name](x)
    assert {line.partition(":")[0] for _, line in device.waits} == {"tests/test_pretend_device.py"}


def test_tensors_of_two_devices_do_not_meet() -> None:
    with PretendDevice():
        x = torch.ones(2, 3).to("cuda")
        for mixed in (
            lambda: torch.ones(2, 3).add_(x),
            lambda: torch.ones(2, 3)[x.long()],
            lambda: nn.Linear(3, 3)(x),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(TypeError, match="cuda:0 device type tensor to numpy"):
            x.numpy()


SHORT: dict[str, dict[str, Any]] = {
    "square": {"queries": 20},
    "noise": {"samples": 8},
    "aa": {"attacks": "pgd,noise"},
    "cw-l2": {"steps": 8, "searches": 2},
    "fgsm": {},
    "spatial": {"angles": 3, "shifts": 3},
    "pixels": {"queries": 20},
    "hopskipjump": {"queries": 150},
    **{name: {"queries": 20} for name in ("rays", "surfree", "boundary")},
    "spsa": {"queries": 50, "samples": 10},
    "color": {"what": "all", "values": 2},
    "blur": {"values": 5},
    "zoom": {"values": 5},
}
# With so many steps some examples break late.
LONGER: dict[str, dict[str, Any]] = {"pgd": {"steps": 10}, "apgd-ce": {"steps": 10}}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    return layers.eval().requires_grad_(False)


def images_of(count: int) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def built(name: str, eps: float, **more: Any) -> Any:
    own: dict[str, Any] = {"eps": eps} if ATTACKS.load(name).within is Ball else {}
    return ATTACKS.build(name, **own, **{**SHORT.get(name, {"steps": 6}), **more})


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
# Loops whose steps are replayed, with enough of them.
REPLAYED: dict[str, dict[str, Any]] = {
    "square": {"queries": 120},
    "apgd-ce": {"steps": 30},
    "apgd-t": {"steps": 30, "targets": 2},
    "fab": {"steps": 20},
    "fab-t": {"steps": 20, "targets": 2},
}


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.slow
def test_replayed_steps_give_the_images_of_the_cpu(name: str, norm: str) -> None:
    """Among them some that are broken, after whose check the steps are captured anew."""
    own = {} if norm == "linf" else {"norm": norm}
    attack = ATTACKS.build(name, eps=EPS[norm] / 4, **own, **REPLAYED[name])
    wanted = attacked(attack, 24, None)
    with PretendDevice(graphs=True) as device:
        images = attacked(attack, 24, device).cpu()
    assert device.launches["graph"] > 5
    # A projection onto the L1 ball ends after a number of rounds that a GPU does not check.
    torch.testing.assert_close(images, wanted, rtol=0, atol=3e-4 if norm == "l1" else 1e-5)


def passes_of(name: str, model: nn.Module, graphs: bool) -> tuple[Tensor, tuple[int, int], Counter[str]]:
    """The images of an attack, its passes, and its launches."""
    attack, images = ATTACKS.build(name, eps=EPS["linf"] / 4, **REPLAYED[name]), images_of(24)
    labels = model(images).argmax(1)
    with PretendDevice(graphs=graphs) as device:
        oracle = Oracle(model.to("cuda"))
        draws = Draws(0, "test", torch.arange(24, device="cuda"))
        points = attack(oracle, images.to("cuda"), labels.to("cuda"), draws).cpu()
    return points, (oracle.passes.forwards, oracle.passes.backwards), device.launches


class Waiting(nn.Module):
    """A network that reads one of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.exact = network()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.exact(images)
        return logits if images.sum().item() >= 0 else -logits


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.parametrize("model", [network(), Waiting()], ids=["replayed", "not captured"])
@pytest.mark.slow
def test_passes_are_counted_whether_a_network_can_be_captured_or_not(name: str, model: nn.Module) -> None:
    plain, graphed = passes_of(name, model, False), passes_of(name, model, True)
    assert torch.equal(plain[0], graphed[0]) and plain[1] == graphed[1]
    assert graphed[2]["graph"] == 0 if isinstance(model, Waiting) else graphed[2]["graph"] > 5


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.slow
def test_a_replay_that_computes_something_else_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do the examples that it marked as broken stay marked."""
    plain, model, replay = passes_of(name, network(), False), network(), PretendGraph.replay

    def other(graph: PretendGraph) -> None:
        model[-1].weight.neg_()
        replay(graph)
        model[-1].weight.neg_()

    monkeypatch.setattr(PretendGraph, "replay", other)
    graphed = passes_of(name, model, True)
    assert torch.equal(plain[0], graphed[0]) and plain[1] == graphed[1]


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
    """A fast model that prefers later classes."""

    def __init__(self, exact: nn.Module) -> None:
        super().__init__()
        self.exact = exact

    def forward(self, images: Tensor) -> Tensor:
        return self.exact(images) + torch.linspace(-0.02, 0.02, 10)


CONFIRMED: dict[str, tuple[str, float, dict[str, Any]]] = {
    "steps": ("pgd", 0.05, {"steps": 10}),
    "several stages": ("aa", 0.02, {"attacks": "apgd-ce,apgd-dlr"}),
    "an 8-bit image inside": ("pgd", 0.1, {"steps": 10, "norm": "l2", "grid": "8bit"}),
    "samples": ("noise", 0.05, {}),
}


@pytest.mark.parametrize("case", CONFIRMED)
@pytest.mark.slow
def test_what_a_coarse_model_breaks_alone_is_attacked_again_on_the_model(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the schedule of a GPU, on which the model itself decides after each stage only."""
    name, eps, more = CONFIRMED[case]
    attack, model, ids = built(name, eps, **more), network(), torch.arange(96)
    images = images_of(96).mul(255).round().div(255)
    labels, found = model(images).argmax(1), {}
    for every in (1, 3):
        monkeypatch.setattr(active_examples, "EACH_STEP", active_examples.CheckSchedule(every))
        batch = Batch(model, images, labels, ids, seed=0, chunk_size=96, fast_model=Coarse(model))
        found[every] = run_attack(batch, attack)
    late = found[3]
    assert late.totals["unconfirmed"] > 0
    assert torch.equal(late.survived, model(late.images).argmax(1) == labels)
    assert 0 < late.survived.sum() <= found[1].survived.sum()


@pytest.mark.parametrize(("name", "option"), [("square", "queries"), ("fab-t", "steps")])
@pytest.mark.slow
def test_a_replayed_step_is_one_launch(name: str, option: str) -> None:
    """16 steps more, at whose end the examples are checked."""
    counts = []
    for number in (24, 40):
        with PretendDevice(graphs=True) as device:
            attacked(built(name, 1e-6, **{option: number}, **ONE_LOOP.get(name, {})), 2, device)
        counts.append((device.launches["graph"], device.launches.total(), device.waits.total()))
    (graphs, launches, waits), (more, larger, longer) = counts
    assert more - graphs == 16 and larger - launches <= 16 + 8 and longer - waits <= 2, counts


# The option with the number of steps, and what makes an attack one loop.
STEPS = dict.fromkeys(("hopskipjump", "rays", "surfree", "boundary", "spsa"), "queries")
STEPS |= {"pixels": "queries", "square": "queries", "noise": "samples"}
ONE_LOOP = {
    **{name: {"mode": "gradient"} for name in ("spatial", "color", "blur", "zoom")},
    "apgd-t": {"targets": 1},
    "fab-t": {"targets": 1},
    "cw-l2": {"searches": 1},
    "spsa": {"samples": 1},
}
# Attacks without their own loop of steps.
NO_STEPS = {"fgsm": "one step", "aa": "the loops of its parts"}


def norms_of(name: str) -> list[str]:
    """The norms that an attack takes."""
    field = ATTACKS.load(name).__dataclass_fields__.get("norm")
    return [ATTACKS.build(name).norm] if field is None else [*field.metadata["choices"]]


@pytest.mark.parametrize(
    ("name", "norm"), [(name, norm) for name in ATTACKS if name not in NO_STEPS for norm in norms_of(name)]
)
@pytest.mark.slow
def test_an_attack_waits_at_most_once_in_8_steps(name: str, norm: str) -> None:
    """No example is broken, so all steps are made; what 8 steps more wait for."""
    counts, option = [], STEPS.get(name, "steps")
    own = {} if norm == ATTACKS.build(name).norm else {"norm": norm}
    for number in (8, 16):
        with PretendDevice() as device:
            attack = built(name, 1e-6, **own, **{option: number}, **ONE_LOOP.get(name, {}))
            attacked(attack, 2, device)
        counts.append(device.waits)
    fewer, more = counts
    assert more.total() - fewer.total() <= 1, more - fewer


@pytest.fixture
def record(trained: dict[str, Record]) -> Record:
    return trained["erm"]


def run_on(device: str, **options: Any) -> Run:
    return run_in(device=device, **{"n": 6, **options})


IN_BALLS = ("uniform", "gaussian", "laplace")
NOISE = NOISES.build("uniform")
PGD2 = ATTACKS.build("pgd", steps=2)


def _archive(record: Record) -> Record:
    clean = datasets.load("digits", "test")
    images = clean.images.permute(0, 2, 3, 1).repeat(5, 1, 1, 1).numpy()
    Path("archive").mkdir()
    np.save("archive/fog.npy", images)
    np.save("archive/labels.npy", clean.labels.repeat(5).numpy())
    return ArchiveJob(Path("archive"), ("fog",), (1, 5))(record, run_on("cuda"))


def _task(task: Evaluation, **options: Any) -> Callable[[Record], Record]:
    return lambda record: run_task(record, task, run_on("cuda", **options))


def _checklist(record: Record) -> Record:
    square, noise = ATTACKS.build("square", queries=4), ATTACKS.build("noise", samples=4)
    checklist = MaskingChecklist(
        eps=8 / 255, pgd=PGD2, fgsm=ATTACKS.build("fgsm"), square=square, noise=noise
    )
    return checklist(record, run_on("cuda"))


EVALUATIONS: dict[str, Callable[[Record], Record]] = {
    "Clean": _task(accuracy.clean(detail=True)),
    "Attacked": _task(accuracy.attacked(ATTACKS.build("apgd-ce", steps=3), (2 / 255, 8 / 255), True)),
    "Corrupted": _task(under_corruption.corrupted((CORRUPTIONS.build("fog"),), (1, 5))),
    "Archived": _archive,
    "Noisy": _task(noisy(NOISE, (0.1, 0.3), Estimator(rho=(0.1,)), 4)),
    "Decided": _task(noisy(NOISE, (0.3,), Estimator(rho=(0.2,)), 80, True, True)),
    "RareFailure": _task(rare_failures(NOISE, (0.1,), Splitting(particles=20, moves=1, runs=2))),
    "RobustLoss": _task(robust_loss(ATTACKS.build("pgd", steps=2, iterate="last"), (8 / 255,))),
    "Nearest": _task(nearest([ATTACKS.build("fmn", steps=4)], (0.1,))),
    "Attacked checklist": _checklist,
    "Transferred": lambda record: run_task(
        record, transferred(PGD2, (8 / 255,), (json.dumps(record),), run_on("cuda")), run_on("cuda")
    ),
    "Smoothed": _task(certified(CERTIFIERS.build("smooth", samples=40, select=10), (0.1,), print)),
    "Screened": lambda record: TwoPhaseJob(PGD2, (2 / 255,), screen_of(PGD2, 1), 3)(record, run_on("cuda")),
}


def subclasses(cls: type) -> set[type]:
    return {one for sub in cls.__subclasses__() for one in (sub, *subclasses(sub))}


def test_every_evaluation_of_the_package_is_among_those_that_run() -> None:
    for module in pkgutil.iter_modules(evaluation.__path__):
        importlib.import_module(f"rbtools.evaluation.{module.name}")
    known = {cls.__name__ for cls in subclasses(Spec) if cls.__module__.startswith("rbtools.")}
    assert known - {"Accuracy", "OfAttack"} == {name.partition(" ")[0] for name in EVALUATIONS}


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


@pytest.mark.parametrize(
    ("name", "own"),
    [(name, own) for name in NOISES for own in ({}, {"norm": "l2"}) if not own or name in IN_BALLS],
)
def test_a_noise_is_drawn_on_the_device_without_a_wait(name: str, own: dict[str, str]) -> None:
    noise, images = NOISES.build(name, **own), images_of(2)
    wanted = noise.unit(Draws(0, "test", torch.arange(2)), (3, 8, 8), 1)
    with PretendDevice() as device:
        draws = Draws(0, "test", torch.arange(2, device="cuda"))
        noise.unit(draws, (3, 8, 8), 0)
        device.reset()
        unit = noise.unit(draws, (3, 8, 8), 1)
        assert not device.waits
        noise.apply(images.to("cuda"), unit, 1.0 if name == "corruption" else 0.1)
        torch.testing.assert_close(unit.cpu(), wanted)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
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


@pytest.mark.parametrize("rule", ["batch", "example"])
@pytest.mark.parametrize("name", ["pgd", "trades"])
def test_a_step_with_the_filter_waits_once(name: str, rule: str) -> None:
    """For its decisions, after which it attacks only the examples that stay."""
    options = {"filter": "chen-lee", "filter_rule": rule, "warm_steps": 1}
    counts = counts_of_steps(small_method(name), **options)
    ((kind, _),) = counts.waits
    assert (counts.waits_of_a_step, kind) == (1, "copy to the host")


@pytest.mark.slow
def test_a_prior_on_the_host_gives_the_numbers_of_one_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for fits in (True, False):
        monkeypatch.setattr(streaming, "fits", lambda size, device, fits=fits: fits or size < 4000)
        for micro_batch in (None, 2):
            with PretendDevice():
                record = trained_for(3, METHODS.build("fgsm-pgi"), "cuda", epochs=2, micro_batch=micro_batch)
            losses.append(record["train"]["history"]["loss"])
    losses.append(trained_for(3, METHODS.build("fgsm-pgi"), "cpu", epochs=2)["train"]["history"]["loss"])
    assert losses[0] == losses[2] == losses[4] and losses[1] == losses[3]


# The most waits of one batch more, otherwise 8. What grows with a network's own numbers (levels, steps of
# Lanczos, neurons) has room for those of another processor, as have batches of which other examples break.
MOST_WAITS = {"hessian": 60, "bound": 15, "RareFailure": 60}
MOST_WAITS |= dict.fromkeys(("synflow", "params", "macs", "Clean", "Corrupted", "Archived"), 0)


def waits_of_a_batch(run: Callable[[Run], Any], size: int, monkeypatch: Any) -> Counter[Any]:
    """What the third batch of `size` images waits for; each call of `run` has a store of its own."""
    given, counts = run_on, []
    for number in (1, 2, 3):  # the first fills caches

        def run_of(device: str, **options: Any) -> Run:
            store = Store(Path(shutil.copytree("rb-store", mkdtemp(dir="."), dirs_exist_ok=True)))
            more = {"n": number * size, "batch": size, "store": store}  # noqa: B023
            return given(device).changed(**{**options, **more})

        monkeypatch.setitem(globals(), "run_on", run_of)
        with PretendDevice() as device:
            run(run_of("cuda"))
        counts.append(Counter(device.waits))
    return counts[2] - counts[1]


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.slow
def test_a_batch_more_of_a_measure_waits_no_more_than_its_budget(
    name: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"hessian": {"probes": 3}, "wci": {"probes": 3}, "nu": {"steps": 4}}
    own = {"bound": {"paper": "robbench"}, **few}.get(name, {})
    chosen, attack = MEASURES.build(name, **own), perturbing(("pgd",), (8 / 255,), 2, None)

    def measured(run: Run) -> None:
        request = MeasureJob((chosen,), attack, batches=run.selection.n // 4, batch_size=4)
        request(record, run.changed(n=None, batch=None))

    waits = waits_of_a_batch(measured, 4, monkeypatch)
    assert waits.total() <= MOST_WAITS.get(name, 8), waits


@pytest.mark.parametrize("name", EVALUATIONS)
@pytest.mark.slow
def test_a_batch_more_of_an_evaluation_waits_no_more_than_its_budget(
    name: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(run: Run) -> None:
        shutil.rmtree("archive", ignore_errors=True)
        EVALUATIONS[name](record)

    waits = waits_of_a_batch(evaluated, 2, monkeypatch)
    assert waits.total() <= MOST_WAITS.get(name, 8), waits
