"""Evaluations: the meaning of numbers, reuse of stored results, errors and their messages."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import rbtools
from rbtools import datasets
from rbtools.attacks import ATTACKS
from rbtools.attacks.base import Attack
from rbtools.cli.image_answers import ImageAnswers
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation import accuracy, under_corruption
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.rare_failures import rare_failures
from rbtools.evaluation.robust_loss import robust_loss
from rbtools.evaluation.spec import Evaluation
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import data_of
from rbtools.jobs import stored_results
from rbtools.jobs.train_test_gap import GapJob
from rbtools.jobs.transfer import transferred
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.probabilistic.splitting import Splitting
from rbtools.registry import param
from rbtools.rng.draws import Draws
from tests.runner import Record, entry, run_in, run_task

TEST_IMAGES = 355


@pytest.fixture
def record(trained: dict[str, Record]) -> Record:
    """A trained network, whose checkpoint is in the test's own store."""
    return trained["erm"]


def network_of(record: Record) -> nn.Module:
    return resolve.load_model(record, data_of(record, run_in()), run_in(), torch.device("cpu"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that go through the models that the engine loads."""
    sizes: list[int] = []
    load = resolve.load_model

    def counted(*args: Any) -> nn.Module:
        model = load(*args)
        model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
        return model

    monkeypatch.setattr(resolve, "load_model", counted)
    return sizes


@pytest.fixture
def model_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], None]:
    """Put a model of the test's own in the place of the record's."""
    return lambda model: monkeypatch.setattr(resolve, "load_model", lambda *_: model.eval())


def pgd(*eps: float, **params: Any) -> accuracy.attacked:
    return accuracy.attacked(ATTACKS.build("pgd", **{"steps": 3, **params}), tuple(e / 255 for e in eps))


def found(record: Record) -> dict[str, Any]:
    """A record without its cost fields."""
    costs = ("seconds", "device", "passes", "prepared")
    entries = [{k: v for k, v in entry.items() if k not in costs} for entry in record["evals"]]
    return {"metrics": record["metrics"], "evals": entries}


def images_and_labels() -> tuple[Tensor, Tensor]:
    data = datasets.load("digits", "test")
    return data.images.float().div(255), data.labels


class Cramped(nn.Module):
    """A model on a device that holds so many images at a time."""

    def __init__(self, network: nn.Module, room: int) -> None:
        super().__init__()
        self.network, self.room = network, room

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.network(images)


def test_memory_that_runs_out_halves_the_batch_and_goes_on(
    record: Record, model_is: Callable[[nn.Module], None]
) -> None:
    wanted = run_task(record, pgd(8), run_in(force=True, n=60))
    model = network_of(record)
    model_is(Cramped(model, room=9))
    assert found(run_task(record, pgd(8), run_in(force=True, n=60))) == found(wanted)
    model_is(Cramped(model, room=0))
    with pytest.raises(RbError, match="Memory ran out with one image at a time"):
        run_task(record, pgd(8), run_in(force=True, n=60))


def test_attacks_that_draw_for_a_whole_tile_do_not_depend_on_what_was_asked_before(record: Record) -> None:
    question = accuracy.attacked(ATTACKS.build("square", backend="pyautoattack", queries=20), (16 / 255,))
    run_task(record, question, run_in(n=10))
    after = run_task(record, question, run_in(n=60))
    assert found(after) == found(run_task(record, question, run_in(force=True, n=60)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Liar(Attack):
    """Claims the negative of the image, however small the budget is."""

    name = "liar"
    random = False
    stem = "liar"

    eps: float = 8 / 255
    norm: str = param("linf", "Norm.")

    def __call__(self, model: Any, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        return 3 * (1 - images) - 1  # out of the box as well


@pytest.mark.parametrize(("norm", "eps"), [("linf", 4 / 255), ("linf", 0.2), ("l2", 0.5)])
def test_an_attack_that_leaves_its_budget_is_brought_back(
    norm: str, eps: float, known: dict[str, Record]
) -> None:
    record = known["erm"]
    result = run_task(record, accuracy.attacked(Liar(norm=norm), (eps,)), run_in())
    images, labels = images_and_labels()
    model = network_of(record)
    outside = 3 * (1 - images) - 1
    if norm == "linf":
        inside = torch.maximum(torch.minimum(outside, images + eps), images - eps).clamp(0, 1)
    else:
        delta = outside - images
        inside = (images + eps * delta / delta.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).clamp(0, 1)

    def right(inputs: Tensor) -> Tensor:
        return torch.cat([model(part) for part in inputs.split(64)]).argmax(1) == labels

    expected = (right(images) & right(inside)).float().mean()
    name = f"liar.{eps * 255:g}" if norm == "linf" else f"liar.{eps:g}"
    assert result["metrics"][name] == pytest.approx(float(expected), abs=0.5 / TEST_IMAGES)
    assert (right(images) & right(outside)).float().mean() < expected - 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutter(Liar):
    """Returns images of another shape."""

    def __call__(self, model: Any, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        return images[:, :, 1:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blind(Liar):
    """Returns no numbers for one image."""

    name = "blind"

    def __call__(self, model: Any, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        images = images.clone()
        images[draws.examples == 123, 0, 4, 4] = torch.nan
        return images


def test_an_attack_that_returns_no_numbers_or_another_shape_is_no_success(known: dict[str, Record]) -> None:
    record = known["erm"]
    with pytest.raises(RbError, match=r"The attack blind returned NaN or infinite pixels for image 123\."):
        run_task(record, accuracy.attacked(Blind(), (0.1,)), run_in())
    with pytest.raises(RbError, match=r"liar returned images of shape .*7, 8\); expected"):
        run_task(record, accuracy.attacked(Cutter(), (0.1,)), run_in())


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval with continuity correction."""
    ends = stats.binomtest(round(share * n), n).proportion_ci(0.95, method="wilsoncc")
    return ends.low, ends.high


def test_pr_is_what_a_loop_over_images_and_samples_gives(known: dict[str, Record]) -> None:
    question = noisy(NOISES.build("uniform"), (0.1, 0.4), Estimator(rho=(0.15,)), 7)
    metrics = run_task(known["erm"], question, run_in(n=25, seed=3))["metrics"]
    (images, labels), model = images_and_labels(), network_of(known["erm"])
    for gamma in (0.1, 0.4):
        shares = []
        for i in datasets.subset(labels, 25, seed=0).tolist():
            draws = Draws(3, "noise.uniform", torch.tensor([i]))
            # [0, 1) on the grid of 2^-24, moved so that it is symmetric about 0
            units = [2 * (draws.uniform((1, 8, 8), draw=sample) + 2.0**-25) - 1 for sample in range(7)]
            copies = (images[i] + gamma * torch.cat(units)).clamp(0, 1)
            if model(images[i : i + 1]).argmax() == labels[i]:
                shares.append((model(copies).argmax(1) == labels[i]).double().mean().item())
        assert metrics[f"pr.uniform.{gamma}"] == pytest.approx(np.mean(shares))
        assert metrics[f"probacc.uniform.{gamma}.0.15"] == pytest.approx(np.mean([p > 0.849 for p in shares]))


def test_ge_is_train_minus_test_with_newcombes_interval(record: Record) -> None:
    result = GapJob((accuracy.clean(),), 200)(record, run_in(n=80))
    metrics = result["metrics"]
    assert metrics["ge.acc"] == pytest.approx(metrics["train.acc"] - metrics["acc"], abs=1e-15)
    entry = result["evals"][-1]
    assert (entry["metric"], entry["split"], entry["n"]) == ("ge.acc", "train-test", [200, 80])
    p, q = metrics["train.acc"], metrics["acc"]
    (low1, high1), (low2, high2) = wilson(p, 200), wilson(q, 80)
    below = math.sqrt((p - low1) ** 2 + (high2 - q) ** 2)
    above = math.sqrt((high1 - p) ** 2 + (q - low2) ** 2)
    assert entry["ci95"] == pytest.approx([p - q - below, p - q + above], abs=1e-12)


def test_where_no_image_is_right_pr_and_its_ge_have_a_reason_and_no_value(
    record: Record, model_is: Callable[[nn.Module], None]
) -> None:
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(64, 11))
    wrong[1].weight.data.zero_()
    wrong[1].bias.data = torch.eye(11)[10]  # a class that no image has
    model_is(wrong)
    question = noisy(NOISES.build("uniform"), (1e-3,), Estimator(rho=()), 2)
    result = GapJob((question,), 10)(record, run_in(n=10))
    assert not {"pr.uniform.0.001", "ge.pr.uniform.0.001"} & result["metrics"].keys()
    gap, pr = ({e["metric"]: e for e in result["evals"]}[f"{side}pr.uniform.0.001"] for side in ("ge.", ""))
    assert pr["value"] is None and "no image is classified correctly" in pr["reason"] and "ci95" not in pr
    assert gap["reason"].startswith("on train: no image is classified correctly")


NOISE = NOISES.build("uniform")
PGD3 = ATTACKS.build("pgd", steps=3)
READ = Estimator(rho=(0.1, 0.2))
FOG = under_corruption.corrupted((CORRUPTIONS.build("fog"),), (1, 2, 3, 4, 5))
ASKED = {
    "attack": (pgd(4, 8), pgd(4, 8, restarts=2)),
    "ladder": (accuracy.attacked(PGD3, (4 / 255, 8 / 255), ladder=True, detail=True), pgd(4, 8)),
    "corruption": (FOG, under_corruption.corrupted((CORRUPTIONS.build("fog", constants="imagenet"),), (3,))),
    "pr": (noisy(NOISE, (0.1,), READ, 4), noisy(NOISE, (0.1,), READ, 5)),
    "only probacc": (noisy(NOISE, (0.1,), READ, 4, True), noisy(NOISE, (0.1,), READ, 4)),
    "rare": (
        rare_failures(NOISE, (0.1,), Splitting(particles=10, moves=1, runs=2)),
        rare_failures(NOISE, (0.1,), Splitting(particles=12, moves=1, runs=2)),
    ),
    "loss": tuple(
        robust_loss(ATTACKS.build("pgd", steps=3, iterate="last", restarts=n), (0.1,)) for n in (1, 2)
    ),
    "transfer": tuple(
        lambda record, run, n=n: transferred(
            ATTACKS.build("pgd", steps=3, restarts=n), (8 / 255,), (json.dumps(record),), run
        )
        for n in (1, 2)
    ),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("difference", [False, True], ids=["plain", "ge"])
def test_another_protocol_is_refused_before_the_work(
    name: str, difference: bool, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same protocol is accepted: all protocol fields of an entry are known before there is an outcome."""
    run = run_in(n=6)
    asked: Any = ASKED[name]  # a transfer is from the record's own model
    first, second = (one(record, run) if callable(one) else one for one in asked)

    def work(record: Record, question: Evaluation, **own: Any) -> Record:
        if difference:
            return GapJob((question,), 6)(record, run.changed(**own))
        return run_task(record, question, run.changed(**own))

    done = json.loads(json.dumps(work(record, first)))
    monkeypatch.setattr(resolve, "load_model", lambda *_: pytest.fail("it was computed"))
    assert work(done, first)["metrics"] == done["metrics"]
    others = [(second, {})]
    others += [(first, {"seed": 7})] * any(spec.random for spec in first.specs)
    others += [(first, {"name_as": "a", "replace": True})] * (len(first.specs) > 1)
    for question, own in others:
        with pytest.raises(RbError, match=r"measured differently|--as names one result"):
            work(done, question, **own)


def test_logits_that_are_not_finite_name_the_image(
    record: Record, model_is: Callable[[nn.Module], None]
) -> None:
    images, _ = images_and_labels()

    class Breaks(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            logits = torch.zeros(len(inputs), 10)
            logits[(inputs == images[123]).flatten(1).all(1), 4] = torch.nan
            return logits

    model_is(Breaks())
    with pytest.raises(RbError, match="output for image 123 is not finite"):
        run_task(record, accuracy.clean(), run_in())


def checkpoint_file(record: Record) -> Path:
    """The record's checkpoint as a file of the user's, and the record changed to name it."""
    name = record["checkpoint"].removeprefix("sha256:")
    (found_,) = Path("rb-store/objects").glob(f"*/{name}")
    record["checkpoint_file"] = os.path.abspath("model.safetensors")
    Path("model.safetensors").write_bytes(found_.read_bytes())
    return Path("model.safetensors")


def test_a_missing_checkpoint_is_said(record: Record) -> None:
    with pytest.raises(RbError, match=r"sha256:0{12}\.\.\. is not in the store .*rb-store.* with --store"):
        run_task({**record, "checkpoint": "sha256:" + 64 * "0"}, accuracy.clean(), run_in())
    gone = {**record, "checkpoint_file": "/gone.pt"}
    assert run_task(gone, accuracy.clean(), run_in())["metrics"]  # the store has the file of that hash
    for name in ("sha256:../../etc/passwd", "md5:1", 7):
        with pytest.raises(RbError, match="Expected 'sha256:' and 64 hexadecimal digits"):
            run_task({**record, "checkpoint": name}, accuracy.clean(), run_in())


def test_a_checkpoint_that_changed_since_is_not_evaluated(record: Record) -> None:
    file = checkpoint_file(record)
    run_task(record, accuracy.clean(), run_in(n=5))
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(RbError, match=r"content has changed \(sha256:.*expected\)"):
        run_task(record, accuracy.clean(), run_in(n=5))


@pytest.mark.parametrize("kind", ["results", "outcomes"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"\x93NUMPY", None])
def test_damaged_results_are_computed_again(
    kind: str, damage: bytes | None, record: Record, seen: list[int]
) -> None:
    good = run_task(record, accuracy.clean(), run_in(n=20))
    for path in Path("rb-store/results").glob("*/*"):
        if kind == "outcomes" and json.loads(path.read_bytes().split(b"\n")[0])["what"].get("n"):
            path.unlink()  # so that the outcomes are asked for
    for path in Path("rb-store", kind).glob("*/*"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"9", b"8")[:-3] if damage is None else damage)
    seen.clear()
    again = run_in(n=20)
    assert found(run_task(record, accuracy.clean(), again)) == found(good)
    assert sum(seen) == (20 if kind == "outcomes" else 0)
    assert again.store.damaged
    fine = run_in(n=20)
    run_task(record, accuracy.clean(), fine)
    assert not fine.store.damaged and fine.store.found == 1


@pytest.mark.parametrize("left", [0, 8])
def test_rows_that_the_store_lacks_are_computed_again(left: int, record: Record, seen: list[int]) -> None:
    """The entries are stored, and the rows are lost or come from a run with fewer images."""
    task, spec = accuracy.clean(), accuracy.Clean()

    def rows(n: int, **how: bool) -> np.ndarray:
        return stored_results.task_entries(resolve_inputs(record, run_in(n=n)), task).rows(spec, **how)

    whole = rows(20)
    for path in Path("rb-store/outcomes").glob("*/*"):
        path.unlink()
    if left:
        rows(left)
    seen.clear()
    assert rows(20).tolist() == whole[:left].tolist() and not seen
    assert rows(20, again=True).tolist() == whole.tolist() and sum(seen) == 20 - left


@pytest.mark.parametrize("draws", [2, 3, 20])
def test_the_error_by_draws_is_right_in_the_mean(draws: int) -> None:
    """Over all numbers of correct passes, the mean squared error is the variance of the mean share."""
    right = np.arange(draws + 1)
    found = [accuracy.Clean(draws=draws).entry(np.array([k, k, k]))["draws_error"] ** 2 for k in right]
    for share in (0.1, 0.5, 0.8):
        chance = stats.binom.pmf(right, draws, share)
        assert chance @ found == pytest.approx(share * (1 - share) / draws / 3, rel=1e-4)


@pytest.mark.parametrize("kept", [1, {}, [], [1], [{}], [{"metric": 1, "value": 1}], [{"metric": "acc"}]])
def test_a_stored_value_that_is_no_list_of_entries_counts_as_absent(kept: object, record: Record) -> None:
    unit = stored_results._Unit(resolve_inputs(record, run_in()), (accuracy.Clean(),))
    unit.inputs.run.store.keep_result(unit.entries_key, unit.entries_fields, kept)
    assert unit.stored() is None


@pytest.mark.parametrize("detail", [False, True])
def test_bits_give_the_value_of_the_entry(known: dict[str, Record], detail: bool) -> None:
    record = rbtools.attack(known["erm"], "fgsm", eps=[4], n=60, detail=detail, store="rb-store")
    record = rbtools.pr(record, gamma=0.1, rho=[0.1], samples=3, n=60, store="rb-store")
    screen: Any = SimpleNamespace(once=pytest.fail)  # nothing is damaged
    for one in record["evals"]:
        found = ImageAnswers(screen).shares(record, one)
        if one["metric"] in ("seconds_per_epoch", "pr.uniform.0.1"):
            assert found is None
            continue
        assert found is not None
        gives, counts = found
        assert gives.dtype == counts.dtype == np.float32 and gives.shape == counts.shape == (60,)
        assert gives.sum() / counts.sum() == pytest.approx(one["value"])
    # Which images count is known only by the clean accuracy.
    uneven = entry(record, "probacc.uniform.0.1.0.1")
    assert uneven["n"] < 60 and ImageAnswers(screen).shares({**record, "evals": [uneven]}, uneven) is None
