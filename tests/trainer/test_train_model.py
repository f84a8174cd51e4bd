"""Training: equal weights however it ran, comparison with a plain loop, and error messages."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.errors import RbError
from rbtools.evaluation import accuracy
from rbtools.store import Store
from rbtools.trainer import loop, validation
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from rbtools.training.base import Loss
from rbtools.training.erm import ERM
from tests import pretend_graphs
from tests.runner import run_task
from tests.trainings import ARCH, FAST, RECORD, Pulled, Record, history, run_in, weights

TRAIN_IMAGES = 1442
TWICE = dataclasses.replace(FAST, epochs=2)


EVERYTHING: dict[str, Any] = {
    "regularize": ("cutout", "mixup", "awp", "l2"),
    **{"filter": "chen-lee", "warm_steps": 1, "label_smoothing": 0.1, "ema": 0.9, "val": 0.1},
    **{"batch_size": 649, "clean_pass": True, "schedule": "piecewise", "milestones": (2,)},
}


@pytest.mark.parametrize(
    ("method", "change"),
    [
        (METHODS.build("erm"), {"augment": ("crop", "flip")}),
        (METHODS.build("pgd", attack_steps=1), {"schedule": "step", "milestones": (1, 3)}),
        (METHODS.build("trades", attack_steps=1), {"schedule": "cosine"}),
        (METHODS.build("erm"), {"output": "random"}),  # the learning rate of step 3
        (METHODS.build("fgsm-pgi", eps=16 / 255), {}),
        (METHODS.build("trades", attack_steps=2), EVERYTHING),
    ],
    ids=["erm", "pgd", "trades", "drawn", "fgsm-pgi", "everything"],
)
@pytest.mark.slow
def test_a_training_interrupted_in_an_epoch_ends_with_the_same_weights(
    method: Any, change: dict[str, Any], batches: list[list[int]]
) -> None:
    how = dataclasses.replace(FAST, epochs=4, **change)
    whole = train(RECORD, method, how, run_in("whole"))
    undisturbed = list(batches)
    batches.clear()

    def pull(_: str) -> None:
        if len(batches) == 5:  # the first batch of the third epoch is done
            raise Pulled

    with pytest.raises(Pulled):
        train(RECORD, method, how, run_in(progress=pull))
    batches.clear()
    torch.manual_seed(7)  # what the process did before does not matter
    again = train(RECORD, method, how, run_in())
    assert batches == undisturbed[4:]  # the stored state has two epochs of two batches
    assert again["checkpoint"] == whole["checkpoint"]
    assert again["train"].get("checkpoints") == whole["train"].get("checkpoints")
    assert history(again) == history(whole) and len(again["train"]["history"]["seconds"]) == 4
    assert again["train"]["passes"] == whole["train"]["passes"]
    assert json.loads(json.dumps(again, allow_nan=False)) == again


def test_seed_and_architecture_make_another_training_and_other_fields_none() -> None:
    first = train(RECORD, METHODS.build("erm"), FAST, run_in())
    wider = {**RECORD, "arch": {**ARCH, "channels": 3}}
    renamed = {**RECORD, "arch": {**ARCH, "note": "mine"}, "other": 1}
    for record, seed, folder in ((RECORD, 1, "rb-store"), (wider, 0, "rb-store"), (renamed, 0, "elsewhere")):
        run = run_in(folder, seed=seed)
        other = train(record, METHODS.build("erm"), FAST, run)
        assert run.store.computed == 1
        assert (other["checkpoint"] == first["checkpoint"]) is (record is renamed)
    run = run_in()
    assert train(renamed, METHODS.build("erm"), FAST, run)["arch"]["note"] == "mine"
    assert run.store.found == 1


def test_every_epoch_meets_every_image_once_in_an_order_of_its_own(batches: list[list[int]]) -> None:
    train(RECORD, METHODS.build("erm"), dataclasses.replace(FAST, epochs=2, batch_size=131), run_in())
    per_epoch = math.ceil(TRAIN_IMAGES / 131) - 1  # 1442 = 11 * 131 + 1: the last one joins the others
    assert [len(ids) for ids in batches[:per_epoch]] == [131] * 10 + [132]
    first, second = ([*itertools.chain(*part)] for part in (batches[:per_epoch], batches[per_epoch:]))
    assert sorted(first) == sorted(second) == list(range(TRAIN_IMAGES))
    assert first != second


def test_draws_belong_to_example_epoch_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = ERM.__call__

    def met(seed: int, size: int) -> dict[int, dict[int, float]]:
        """The draws of each example in each epoch."""
        found: dict[int, dict[int, float]] = {}

        def watched(self: ERM, model: nn.Module, images: Tensor, labels: Tensor, draws: Any) -> Loss:
            values = draws.uniform((1,))[:, 0].tolist()
            found.setdefault(draws.offset, {}).update(zip(draws.examples.tolist(), values, strict=True))
            return call(self, model, images, labels, draws)

        monkeypatch.setattr(ERM, "__call__", watched)
        how = dataclasses.replace(FAST, epochs=2, batch_size=size)
        train(RECORD, METHODS.build("erm"), how, run_in(f"store {seed} {size}", seed=seed))
        return found

    first, other_batch, other_seed = met(0, 721), met(0, 1000), met(1, 721)
    assert first == other_batch
    assert len({first[0][5], first[1][5], other_seed[0][5], other_seed[1][5]}) == 4


@pytest.mark.slow
def test_schedules_follow_their_formulas() -> None:
    def rates(how: Recipe) -> Any:
        return train(RECORD, METHODS.build("erm"), how, run_in())["train"]["history"]["lr"]

    how = Recipe(epochs=4, batch_size=TRAIN_IMAGES, lr=0.2)
    assert rates(dataclasses.replace(how, schedule="constant")) == [0.2] * 4
    steps = dataclasses.replace(how, schedule="step", milestones=(1, 3), decay=0.5)
    assert rates(steps) == pytest.approx([0.2, 0.1, 0.1, 0.05])
    cosine = [0.1 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    assert rates(dataclasses.replace(how, schedule="cosine")) == pytest.approx(cosine, rel=1e-5)
    # OneCycleLR: from lr/25 up to lr in 0.3 of the steps, then down to lr/250000, along cosines.
    high, up = 0.2, 0.3 * 4 - 1

    def between(start: float, end: float, part: float) -> float:
        return end + (start - end) / 2 * (1 + math.cos(math.pi * part))

    down = [between(high, high / 25 / 1e4, (step - up) / (3 - up)) for step in (1, 2, 3)]
    assert rates(how) == pytest.approx([high / 25, *down], rel=1e-4)


def test_the_record_says_how_the_training_went() -> None:
    record = train(RECORD, METHODS.build("erm"), dataclasses.replace(FAST, epochs=3), run_in())
    assert record["train"]["config"]["momentum"] == [0.95, 0.85, 0.95]  # the parameters that onecycle uses
    steady = sum(record["train"]["history"]["seconds"][1:]) / 2
    assert record["metrics"]["seconds_per_epoch"] == pytest.approx(steady, abs=1e-4)
    assert record["mine"] == {"kept": True}


def test_no_epochs_give_the_initial_network_of_the_seed() -> None:
    def initial(seed: int, method: str) -> Record:
        how = dataclasses.replace(FAST, epochs=0)
        return train(RECORD, METHODS.build(method), how, run_in(seed=seed))

    torch.manual_seed(1)
    first = initial(0, "erm")
    torch.manual_seed(2)
    assert initial(0, "trades")["checkpoint"] == first["checkpoint"] != initial(1, "erm")["checkpoint"]
    state = weights(first)
    # PyTorch's initialisation is unchanged: BatchNorm is the identity, convolutions are within their bound.
    assert torch.equal(state["stem.1.weight"], torch.ones(2))
    assert 0.1 < state["stem.0.weight"].abs().max() <= 1 / 3
    assert "seconds_per_epoch" not in first["train"] and not first.get("metrics")


def test_training_anew_drops_what_belongs_to_former_weights() -> None:
    run = run_in()
    first = train(RECORD, METHODS.build("erm"), FAST, run)
    known = run_task(first, accuracy.clean(), run.changed(n=20))
    known["metrics"] |= {"ntk": 3.0, "score": 0.5, "by.hand": 1.0}
    for tool, metric in (("rb-measure", "ntk"), ("rb-score", "score")):
        known["evals"].append({"tool": tool, "metric": metric, "value": known["metrics"][metric]})
    known |= {"checkpoint_file": "/old.pt", "recognised": {"format": "torch"}, "leaderboard": "Old2020Name"}
    anew = train(known, METHODS.build("erm"), dataclasses.replace(FAST, epochs=0), run)
    assert anew["metrics"] == {"ntk": 3.0, "by.hand": 1.0}
    assert [entry["metric"] for entry in anew["evals"]] == ["ntk"]
    assert not {"checkpoint_file", "recognised", "leaderboard"} & anew.keys()
    assert anew["mine"] == {"kept": True}


def test_a_lost_checkpoint_is_trained_again() -> None:
    first = train(RECORD, METHODS.build("erm"), FAST, run_in())
    path = Store("rb-store").object(first["checkpoint"])
    for harm in (path.unlink, lambda: path.write_bytes(path.read_bytes()[:-100])):
        harm()
        later = run_in()
        again = train(RECORD, METHODS.build("erm"), FAST, later)
        assert again["checkpoint"] == first["checkpoint"] and later.store.computed == 1
        assert run_task(again, accuracy.clean(), run_in())["metrics"]["acc"] > 0


@pytest.mark.parametrize("spoil", ["empty", "cut off", "places", "model", "all"])
def test_a_state_that_is_damaged_or_does_not_fit_is_not_used(spoil: str, batches: list[list[int]]) -> None:
    pull_after_an_epoch(batches)
    store, said = Store("rb-store"), list[str]()
    (path,) = store.files("state")
    if spoil in ("empty", "cut off"):
        path.write_bytes(path.read_bytes()[:-9] if spoil == "cut off" else b"")
    elif spoil == "all":
        store.keep_state(path.name, b"damaged")
    else:
        state = torch.load(io.BytesIO(store.state(path.name) or b""), weights_only=True)
        state["optimizer"] = {}  # found when the model is loaded already
        if spoil == "places":
            del state["places"]
        buffer = io.BytesIO()
        torch.save(state, buffer)
        store.keep_state(path.name, buffer.getvalue())
    run = run_in(notify=said.append)
    again = train(RECORD, METHODS.build("erm"), TWICE, run)
    assert len(batches) == 4 and len(run.store.damaged) + sum("starts again" in line for line in said) == 1
    assert again["checkpoint"] == train(RECORD, METHODS.build("erm"), TWICE, run_in("other"))["checkpoint"]


def test_a_training_that_went_on_elsewhere_says_where_it_was(batches: list[list[int]]) -> None:
    pull_after_an_epoch(batches)
    two = run_in().changed(threads=2)
    found = train(RECORD, METHODS.build("erm"), TWICE, two)["train"]
    assert found["trained_on"] == ["cpu, 1 thread", "cpu, 2 threads"] and found["threads"] == 2


def pull_after_an_epoch(batches: list[list[int]]) -> None:
    """Leave the state of a training of TWICE in rb-store."""

    def pull(_: str) -> None:
        if len(batches) > 2:
            raise Pulled

    with pytest.raises(Pulled):
        train(RECORD, METHODS.build("erm"), TWICE, run_in(progress=pull))
    batches.clear()


def test_micro_batches_make_the_step_of_the_batch_without_batchnorm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network without BatchNorm: pieces of 300, 300 and 121 images give the weights of 721 together."""
    monkeypatch.setattr(models, "build", lambda arch, **_: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    method = METHODS.build("pgd", attack_steps=2)
    said: list[str] = []
    run = run_in(notify=said.append)
    whole = weights(train(RECORD, method, TWICE, run))
    pieces = weights(train(RECORD, method, dataclasses.replace(TWICE, micro_batch=300), run))
    assert not said and whole.keys() == pieces.keys()
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-4, atol=1e-6)
    monkeypatch.undo()  # a network with BatchNorm, of which that is not true
    found = train(RECORD, METHODS.build("erm"), dataclasses.replace(FAST, micro_batch=300), run)
    assert len(said) == 1 and "has BatchNorm, which uses 300 images at a time instead of 721" in said[0]
    assert found["train"]["config"]["micro_batch"] == 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Added(ERM):
    """ERM whose loss is too high, or finite with a gradient that is not."""

    cliff: bool = False

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any) -> Loss:
        value = super().__call__(model, images, labels, draws).value
        return Loss(value + ((value - value.detach()).abs().sqrt() if self.cliff else 1e6))


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (METHODS.build("erm"), {"lr": 1e30}, r"the loss is (nan|inf) in epoch \d\. Lower .*\(--lr\)"),
        (Added(), {}, r"the loss is [\d.e+]+, above 100000, in epoch 1"),
        (Added(cliff=True), {"batch_size": TRAIN_IMAGES}, r"weights are NaN or infinite in epoch 1\."),
    ],
)
def test_a_training_that_diverges_says_where(method: Any, change: dict[str, Any], message: str) -> None:
    how = dataclasses.replace(FAST, epochs=3, schedule="constant", **change)
    with pytest.raises(RbError, match=f"diverged: {message}"):
        train(RECORD, method, how, run_in())
    assert not list(Path("rb-store").glob("results/*/*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 1443}, r"batch size is 1443, but there are only 1442 .* --batch-size 1442 or less"),
        ({"lr": 0.0}, r"learning rate is 0\. It must be above 0"),
        ({"schedule": "step"}, r"needs milestones\. Give the epochs, such as --milestones 75,90"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RbError, match=message):
        train(RECORD, METHODS.build("erm"), dataclasses.replace(FAST, **change), run_in())


@pytest.mark.parametrize(
    ("under_pgd", "own", "epoch"),
    [
        ([0.3, 0.4, 0.05], [0.4, 0.5, 0.9], 3),
        ([0.3, 0.4, 0.19, 0.04], [0.4, 0.5, 0.9, 0.9], 3),
        ([0.3, 0.4, 0.21], [0.4, 0.5, 0.9], None),  # more than half of the highest
        ([0.3, 0.4, 0.05], [0.4, 0.5, 0.2], None),  # the single step fails as well
        ([0.05, 0.19, 0.0], [0.4, 0.5, 0.9], None),  # it was never robust
        ([], [0.4, 0.5, 0.9], None),
    ],
)
def test_catastrophic_overfitting_is_a_fall_under_pgd_alone(
    under_pgd: list[float], own: list[float], epoch: int | None
) -> None:
    assert validation.overfitting({"pgd_acc": under_pgd, "robust_acc": own}) == epoch


@pytest.mark.parametrize("name", ["n-fgsm", "fgsm-pgi", "pgd"])
def test_catastrophic_overfitting_is_noticed_and_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.6, 0.1, 0.05])
    monkeypatch.setattr(validation.Checks, "measure", lambda *_: {"val_robust_acc": next(values)})
    monkeypatch.setattr(loop.Totals, "means", lambda self: {"loss": 1.0, "robust_acc": 0.7})
    lines: list[str] = []
    method = METHODS.build(name, **({"attack_steps": 1} if name == "pgd" else {}))
    record = train(RECORD, method, dataclasses.replace(FAST, epochs=3), run_in(notify=lines.append))
    assert record["train"]["history"]["pgd_acc"] == [0.6, 0.1, 0.05]
    assert record["train"]["catastrophic_overfitting"] == 2
    (line,) = [line for line in lines if "catastrophic" in line]
    assert "in epoch 2. Under PGD-10 the accuracy fell from 0.6 to 0.1;" in line


def test_a_network_is_at_chance_where_it_is_no_better_than_a_guess() -> None:
    """The images have the predicted class as their white channel."""
    labels, ids = torch.arange(200) % 10, torch.arange(100)

    def ended(predicted: Tensor) -> float | None:
        images = nn.functional.one_hot(predicted, 10).mul(255).view(200, 10, 1, 1).to(torch.uint8)
        return validation.ended_at_chance(nn.Flatten(), images, labels, ids, 10)

    right = {count: torch.where(torch.arange(200) < count, labels, (labels + 1) % 10) for count in range(101)}
    assert ended(right[10]) == pytest.approx(0.1) and ended(right[0]) == 0
    assert ended(right[20]) is None and ended(right[100]) is None  # .1 + 2 * .03
    assert ended(0 * labels) == pytest.approx(0.1)


@pytest.mark.slow
def test_a_training_by_recorded_passes_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS.build("trades", attack_steps=2)
    how = dataclasses.replace(FAST, epochs=1, batch_size=200, lr=0.01)
    plain = train(RECORD, method, how, run_in("plain"))
    graphs = pretend_graphs.install(monkeypatch)
    recorded = train(RECORD, method, how, run_in("recorded"))
    assert sum(graph.replays for graph in graphs) > 20
    assert recorded["train"]["passes"] == plain["train"]["passes"]
    assert "cuda-graphs" in recorded["train"]["prepared"]
    before = weights(plain, "plain")
    for key, value in weights(recorded, "recorded").items():
        torch.testing.assert_close(value, before[key], rtol=1e-3, atol=1e-5)
