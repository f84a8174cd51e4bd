"""Evaluations: the meaning of numbers, reuse of stored results, errors and their messages."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from rbtools import datasets
from rbtools.attacks import ATTACKS
from rbtools.attacks.base import Attack
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation import accuracy
from rbtools.evaluation.accuracy import Clean
from rbtools.evaluation.base import BATCH, OutcomeRows, batch_size
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.rare_failures import rare_failures
from rbtools.evaluation.robust_loss import robust_loss
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
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
from rbtools.store import Store
from tests.runner import Record, run_task

TEST_IMAGES = 355


def run_in(folder: Path | None, **options: Any) -> Run:
    return Run.of(tool="rb-test", store=Store(folder), device="cpu", threads=1, **options)


@pytest.fixture
def run(trained: dict[str, Record]) -> Run:
    """A run on the test's own store, which has the trained networks' checkpoints."""
    return run_in(Path("rb-store"))


@pytest.fixture
def record(trained: dict[str, Record]) -> Record:
    return trained["erm"]


class Counting(nn.Module):
    """A model that counts the images it is shown."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        logits: Tensor = self.model(images)
        return logits


class Seen:
    """All models that the engine loads, counted together."""

    def __init__(self) -> None:
        self.models: list[Counting] = []

    @property
    def images(self) -> int:
        return sum(model.seen for model in self.models)

    def since(self, before: int) -> int:
        return self.images - before


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, load = Seen(), resolve.load_model

    def counted(*args: Any) -> nn.Module:
        model = Counting(load(*args))
        found.models.append(model)
        return model

    monkeypatch.setattr(resolve, "load_model", counted)
    return found


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


# --- what is computed together, and what again ---------------------------------------------------


def keeping_nothing(**options: Any) -> Run:
    """A run that finds checkpoints in the store and computes everything else."""
    run = run_in(Path("rb-store"), **options)
    run.store.force = True
    return run


class Cramped(nn.Module):
    """A model on a device that holds so many images at a time."""

    def __init__(self, network: nn.Module, room: int) -> None:
        super().__init__()
        self.network, self.room = network, room

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        result: Tensor = self.network(images)
        return result


def test_memory_that_runs_out_halves_the_batch_and_goes_on(
    record: Record, run: Run, model_is: Callable[[nn.Module], None]
) -> None:
    wanted = run_task(record, pgd(8), keeping_nothing(n=60))
    model = resolve.load_model(record, data_of(record, run), run, torch.device("cpu"))
    model_is(Cramped(model, room=9))
    assert found(run_task(record, pgd(8), keeping_nothing(n=60))) == found(wanted)
    model_is(Cramped(model, room=0))
    with pytest.raises(RbError, match="Memory ran out with one image at a time"):
        run_task(record, pgd(8), keeping_nothing(n=60))


def test_more_examples_go_on_from_fewer_and_fewer_are_the_first_of_more(
    record: Record, run: Run, seen: Seen
) -> None:
    for n, images in ((10, 10), (30, 30), (20, 30)):
        some = run_task(record, accuracy.clean(), run.changed(n=n))
        assert seen.images == images
        with_others, seen.models = seen.models, []
        assert found(some) == found(run_task(record, accuracy.clean(), keeping_nothing(n=n)))
        seen.models = with_others


def test_an_entry_says_what_all_its_examples_took_and_where(record: Record, run: Run) -> None:
    run_task(record, accuracy.clean(), run.changed(n=10))
    (path,) = run.store.files("outcomes")
    known = OutcomeRows(np.ones(10, np.int32), {"seconds": 100.0}, ["cuda"])
    run.store.keep_outcomes(path.name, known.encoded())
    more = run_task(record, accuracy.clean(), run.changed(n=30))["evals"][-1]
    assert more["device"] == "cpu+cuda" and 100 < more["seconds"] < 200
    fewer = run_task(record, accuracy.clean(), run.changed(n=20))["evals"][-1]
    assert (fewer["device"], fewer["seconds"]) == (more["device"], more["seconds"])


@pytest.mark.slow
def test_a_further_distance_costs_that_distance_alone(record: Record, run: Run, seen: Seen) -> None:
    run = run.changed(n=40)
    run_task(record, pgd(8), run)
    before = seen.images
    both = run_task(record, pgd(8, 32), run)
    added = seen.since(before)
    before = seen.images
    alone = run_task(record, pgd(32), keeping_nothing(n=40))
    # Both classify the clean images once: the attack needs the correctly classified ones.
    assert added == seen.since(before)
    assert both["metrics"]["pgd3.32"] == alone["metrics"]["pgd3.32"]


def test_a_further_tolerance_costs_nothing(record: Record, run: Run, seen: Seen) -> None:
    def question(*rho: float) -> Evaluation:
        return noisy(NOISES.build("uniform"), (0.2,), Estimator(rho=rho), 5)

    run_task(record, question(0.1), run.changed(n=20))
    before = seen.images
    later = run_task(record, question(0.1, 0.4), run.changed(n=20))
    assert seen.since(before) == 0
    assert later["metrics"]["probacc.uniform.0.2.0.4"] >= later["metrics"]["probacc.uniform.0.2.0.1"]


def test_a_finished_evaluation_is_found(record: Record, run: Run, seen: Seen) -> None:
    first = run_task(record, pgd(8), run.changed(n=20))
    before = seen.images
    again = run_in(Path("rb-store"), n=20)
    assert run_task(record, pgd(8), again) == first
    assert (seen.since(before), again.store.found, again.store.computed) == (0, 1, 0)


def test_attacks_that_draw_for_a_whole_tile_do_not_depend_on_what_was_asked_before(
    record: Record, run: Run
) -> None:
    question = accuracy.attacked(ATTACKS.build("square", backend="pyautoattack", queries=20), (16 / 255,))
    run_task(record, question, run.changed(n=10))
    after = run_task(record, question, run.changed(n=60))
    assert found(after) == found(run_task(record, question, keeping_nothing(n=60)))


def test_an_interrupted_evaluation_goes_on_inside_the_test_set(
    record: Record, run: Run, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BATCH, "cpu", 32)
    tile = batch_size(torch.device("cpu"), (1, 8, 8))

    def interrupt() -> None:
        if seen.images >= 2 * tile:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_task(record, accuracy.clean(), run.changed(check_cancelled=interrupt))
    assert seen.images == 2 * tile == 256
    resumed = run_task(record, accuracy.clean(), run_in(Path("rb-store")))
    assert seen.images == TEST_IMAGES
    assert found(resumed) == found(run_task(record, accuracy.clean(), keeping_nothing()))


class Listening(nn.Module):
    """Everything is of class 0; keeps the noisy images that it is shown, by example and draw."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shown.append(images.detach().clone())
        return torch.eye(10)[0].expand(len(images), 10) + 0 * images.sum((1, 2, 3))[:, None]


def test_another_seed_is_other_work_only_where_there_is_chance(
    record: Record, run: Run, model_is: Callable[[nn.Module], None]
) -> None:
    model = Listening()
    model_is(model)
    fgsm = accuracy.attacked(ATTACKS.build("fgsm"), (8 / 255,))
    copies = noisy(NOISES.build("uniform"), (0.3,), Estimator(rho=()), 5)
    one, two = run.changed(n=20), run.changed(n=20, seed=1)
    assert found(run_task(record, fgsm, one)) == found(run_task(record, fgsm, two))
    assert run.store.computed == 1
    model.shown.clear()
    first, of_first = run_task(record, copies, one), torch.cat(model.shown)
    model.shown.clear()
    second, of_second = run_task(record, copies, two), torch.cat(model.shown)
    assert run.store.computed == 3
    clean, _ = images_and_labels()
    assert of_first.shape == of_second.shape
    same = (of_first == of_second).flatten(1).all(1)
    untouched = (of_first[:, None] == clean).flatten(2).all(2).any(1)
    assert torch.equal(same, untouched) and not same.all()
    assert (first["evals"][-1]["seed"], second["evals"][-1]["seed"]) == (0, 1)


# --- attacks ------------------------------------------------------------------------------------


def test_an_attack_of_one_norm_says_it_in_the_record(record: Record, run: Run) -> None:
    method = ATTACKS.build("cw-l2", steps=5, searches=2)
    result = run_task(record, accuracy.attacked(method, (0.5, 8.0)), run.changed(n=20))
    assert [entry["norm"] for entry in result["evals"][-2:]] == ["l2", "l2"]
    assert 0 <= result["metrics"]["cw-l2.8"] <= result["metrics"]["cw-l2.0.5"] <= result["metrics"]["acc"]


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
    norm: str, eps: float, known: dict[str, Record], run: Run
) -> None:
    record = known["erm"]
    result = run_task(record, accuracy.attacked(Liar(norm=norm), (eps,)), run)
    images, labels = images_and_labels()
    model = resolve.load_model(record, data_of(record, run), run, torch.device("cpu"))
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


def test_an_attack_that_returns_no_numbers_or_another_shape_is_no_success(
    record: Record, run: Run, model_is: Callable[[nn.Module], None]
) -> None:
    images, labels = images_and_labels()
    known = {image.numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}

    class Right(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            classes = [known[image.numpy().tobytes()] for image in inputs]
            return nn.functional.one_hot(torch.tensor(classes), 10).float()

    model_is(Right())
    with pytest.raises(RbError, match=r"The attack blind gave NaN or infinite pixels for image 123\."):
        run_task(record, accuracy.attacked(Blind(), (0.1,)), run)
    with pytest.raises(RbError, match=r"liar returned images of shape .*7, 8\); expected"):
        run_task(record, accuracy.attacked(Cutter(), (0.1,)), run)


def test_a_clean_error_counts_as_broken_and_is_not_attacked(record: Record, run: Run, seen: Seen) -> None:
    result = run_task(record, accuracy.attacked(Liar(), (1e-6,)), run)
    assert result["metrics"]["liar.0.000255"] == result["metrics"]["acc"] < 1
    # Every image once, and the unbroken ones once more for the final check.
    assert seen.images == TEST_IMAGES + round(result["metrics"]["acc"] * TEST_IMAGES)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval with continuity correction."""
    ends = stats.binomtest(round(share * n), n).proportion_ci(0.95, method="wilsoncc")
    return ends.low, ends.high


def test_an_accuracy_has_n_and_the_interval_of_wilson(record: Record, run: Run) -> None:
    entry = run_task(record, accuracy.clean(), run.changed(n=100))["evals"][-1]
    assert entry["n"] == 100
    assert entry["ci95"] == pytest.approx(wilson(entry["value"], 100), abs=1e-12)


# --- probabilistic robustness --------------------------------------------------------------------


def test_pr_is_what_a_loop_over_images_and_samples_gives(known: dict[str, Record], run: Run) -> None:
    record = known["erm"]
    samples, gammas, n = 7, (0.1, 0.4), 25
    question = noisy(NOISES.build("uniform"), gammas, Estimator(rho=(0.15,)), samples)
    result = run_task(record, question, run.changed(n=n, seed=3))
    images, labels = images_and_labels()
    model = resolve.load_model(record, data_of(record, run), run, torch.device("cpu"))
    chosen = datasets.subset(labels, n, seed=0)
    for gamma in gammas:
        shares = []
        for i in map(int, chosen):
            image, label = images[i : i + 1], labels[i]
            if model(image).argmax() != label:
                continue
            draws = Draws(3, "noise.uniform", torch.tensor([i]))
            right = 0
            for sample in range(samples):
                # [0, 1) on the grid of 2^-24, moved so that it is symmetric about 0
                unit = 2 * (draws.uniform((1, 8, 8), draw=sample) + 2.0**-25) - 1
                right += int(model((image + gamma * unit).clamp(0, 1)).argmax() == label)
            shares.append(right / samples)
        assert result["metrics"][f"pr.uniform.{gamma:g}"] == pytest.approx(sum(shares) / len(shares))
        passed = [share >= 1 - 0.15 - 1e-9 for share in shares]
        name = f"probacc.uniform.{gamma:g}.0.15"
        assert result["metrics"][name] == pytest.approx(sum(passed) / len(passed))
    assert result["metrics"]["pr.uniform.0.4"] < result["metrics"]["pr.uniform.0.1"]


def test_where_no_image_is_right_pr_has_a_reason_and_no_value(
    record: Record, run: Run, model_is: Callable[[nn.Module], None]
) -> None:
    class Wrong(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            labels = (images.flatten(1).sum(1) * 0).long() + 10  # an eleventh class, which no image has
            return nn.functional.one_hot(labels, 11).float()

    model_is(Wrong())
    question = noisy(NOISES.build("uniform"), (0.1,), Estimator(rho=(0.1,)), 3)
    result = run_task(record, question, run.changed(n=9))
    assert result["metrics"]["acc"] == 0 and "pr.uniform.0.1" not in result["metrics"]
    entry = next(entry for entry in result["evals"] if entry["metric"] == "pr.uniform.0.1")
    assert entry["value"] is None and "no image is classified correctly" in entry["reason"]
    assert "ci95" not in entry


# --- the generalisation error --------------------------------------------------------------------


def test_ge_is_train_minus_test_with_newcombes_interval(record: Record, run: Run) -> None:
    result = GapJob((accuracy.clean(),), 200)(record, run.changed(n=80))
    metrics = result["metrics"]
    assert metrics["ge.acc"] == pytest.approx(metrics["train.acc"] - metrics["acc"], abs=1e-15)
    entry = result["evals"][-1]
    assert (entry["metric"], entry["split"], entry["n"]) == ("ge.acc", "train-test", [200, 80])
    p, q = metrics["train.acc"], metrics["acc"]
    (low1, high1), (low2, high2) = wilson(p, 200), wilson(q, 80)
    below = math.sqrt((p - low1) ** 2 + (high2 - q) ** 2)
    above = math.sqrt((high1 - p) ** 2 + (q - low2) ** 2)
    assert entry["ci95"] == pytest.approx([p - q - below, p - q + above], abs=1e-12)


def test_ge_takes_what_the_evaluators_found(record: Record, run: Run, seen: Seen) -> None:
    run_task(record, pgd(8), run.changed(n=30))
    before = seen.images
    GapJob((accuracy.clean(),), 50)(record, run.changed(n=30))
    assert seen.since(before) == 50  # the test side came along with the attack


def test_ge_without_a_value_on_one_side_says_which(
    record: Record, run: Run, model_is: Callable[[nn.Module], None]
) -> None:
    images, labels = images_and_labels()
    known = {image.numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}

    class Memory(nn.Module):
        """Classifies only the test images correctly."""

        def forward(self, images: Tensor) -> Tensor:
            classes = [known.get(image.numpy().tobytes(), 10) for image in images]
            return nn.functional.one_hot(torch.tensor(classes), 11).float()

    model_is(Memory())
    question = noisy(NOISES.build("uniform"), (1e-3,), Estimator(rho=()), 2)
    result = GapJob((question,), 10)(record, run.changed(n=10))
    assert "ge.pr.uniform.0.001" not in result["metrics"]
    assert result["evals"][-1]["reason"].startswith("on train: no image is classified correctly")


# --- several protocols, several data sets --------------------------------------------------------


def test_another_protocol_of_the_same_name_is_an_error_that_shows_both(record: Record, run: Run) -> None:
    run = run.changed(n=20)
    first = run_task(record, pgd(8), run)
    with pytest.raises(RbError) as wrong:
        run_task(first, pgd(8, restarts=2), run)
    assert "already has 'pgd3.8', measured differently: restarts 1 there and 2 here." in str(wrong.value)
    assert "--as NAME" in str(wrong.value) and "--force" in str(wrong.value)
    both = run_task(first, pgd(8, restarts=2), run.changed(name_as="twice"))
    assert set(both["metrics"]) == {*first["metrics"], "twice"}
    replaced = run_task(first, pgd(8, restarts=2), run.changed(replace=True))
    entries = [entry for entry in replaced["evals"] if entry["metric"] == "pgd3.8"]
    assert [entry["restarts"] for entry in entries] == [2]


NOISE = NOISES.build("uniform")
PGD3 = ATTACKS.build("pgd", steps=3)
READ = Estimator(rho=(0.1, 0.2))
FOG = accuracy.corrupted((CORRUPTIONS.build("fog"),), (1, 2, 3, 4, 5))
ASKED = {
    "attack": (pgd(4, 8), pgd(4, 8, restarts=2)),
    "ladder": (accuracy.attacked(PGD3, (4 / 255, 8 / 255), ladder=True, detail=True), pgd(4, 8)),
    "corruption": (FOG, accuracy.corrupted((CORRUPTIONS.build("fog", constants="imagenet"),), (3,))),
    "pr": (noisy(NOISE, (0.1,), READ, 4), noisy(NOISE, (0.1,), READ, 5)),
    "only probacc": (noisy(NOISE, (0.1,), READ, 4, True), noisy(NOISE, (0.1,), READ, 4)),
    "everyone": (
        noisy(NOISE, (0.1,), dataclasses.replace(READ, denominator="all"), 4),
        noisy(NOISE, (0.1,), dataclasses.replace(READ, denominator="all"), 5),
    ),
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
    name: str, difference: bool, record: Record, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same protocol is accepted: all protocol fields of an entry are known before there is an outcome."""
    run = run.changed(n=6)
    first, second = (_from(question, record, run) for question in ASKED[name])

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


def _from(question: Any, record: Record, run: Run) -> Any:
    """The evaluation; a transfer from the record's own model."""
    return question(record, run) if callable(question) else question


def test_as_names_one_result(record: Record, run: Run) -> None:
    with pytest.raises(RbError, match=r"--as names one result, but this run has 2: pgd3.8, pgd3.16\."):
        run_task(record, pgd(8, 16), run.changed(n=5, name_as="mine"))


def test_another_split_stands_in_the_name_and_another_data_set_in_the_entry(
    record: Record, run: Run, photos: Path
) -> None:
    result = run_task(record, accuracy.clean(), run.changed(split="train", n=5))
    assert "train.acc" in result["metrics"] and result["evals"][-1]["split"] == "train"
    with pytest.raises(RbError, match="1 channels and the data set's have 3"):
        run_task(record, accuracy.clean(), run.changed(dataset=f"imagefolder:{photos}"))


# --- what is wrong with a model ------------------------------------------------------------------


def test_logits_that_are_not_finite_name_the_image(
    record: Record, run: Run, model_is: Callable[[nn.Module], None]
) -> None:
    images, _ = images_and_labels()

    class Breaks(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            logits = torch.zeros(len(inputs), 10)
            logits[(inputs == images[123]).flatten(1).all(1), 4] = torch.nan
            return logits

    model_is(Breaks())
    with pytest.raises(RbError, match="output for image 123 is not finite"):
        run_task(record, accuracy.clean(), run)


def checkpoint_file(record: Record) -> Path:
    """The record's checkpoint as a file of the user's, and the record changed to name it."""
    name = record["checkpoint"].removeprefix("sha256:")
    (found_,) = Path("rb-store/objects").glob(f"*/{name}")
    record["checkpoint_file"] = os.path.abspath("model.safetensors")
    Path("model.safetensors").write_bytes(found_.read_bytes())
    return Path("model.safetensors")


def test_a_missing_checkpoint_is_said(record: Record, run: Run) -> None:
    with pytest.raises(RbError, match=r"sha256:0{12}\.\.\. is not in the store .*rb-store.* with --store"):
        run_task({**record, "checkpoint": "sha256:" + 64 * "0"}, accuracy.clean(), run)
    gone = {**record, "checkpoint_file": "/gone.pt"}
    assert run_task(gone, accuracy.clean(), run)["metrics"]  # the store has the file of that hash
    with pytest.raises(RbError, match=r"The checkpoint /gone.pt does not exist, and the store has no file"):
        run_task({**gone, "checkpoint": "sha256:" + 64 * "0"}, accuracy.clean(), run)
    for name in ("sha256:../../etc/passwd", "md5:1", 7):
        with pytest.raises(RbError, match="Expected 'sha256:' and 64 hexadecimal digits"):
            run_task({**record, "checkpoint": name}, accuracy.clean(), run)


def test_a_checkpoint_that_changed_since_is_not_evaluated(record: Record, run: Run) -> None:
    file = checkpoint_file(record)
    run_task(record, accuracy.clean(), run.changed(n=5))
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(RbError, match=r"content has changed \(sha256:.*expected\)"):
        run_task(record, accuracy.clean(), run.changed(n=5))


# --- a store that cannot be written, or is damaged -----------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)


def test_on_a_full_disk_an_interruption_stays_one(
    record: Record, run: Run, seen: Seen, full_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BATCH, "cpu", 32)

    def interrupt() -> None:
        if seen.images:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_task(record, accuracy.clean(), run.changed(check_cancelled=interrupt))


@pytest.mark.parametrize("kind", ["results", "outcomes"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"\x93NUMPY", None])
def test_damaged_results_are_computed_again(
    kind: str, damage: bytes | None, record: Record, run: Run, seen: Seen
) -> None:
    good = run_task(record, accuracy.clean(), run.changed(n=20))
    for path in Path("rb-store/results").glob("*/*"):
        if kind == "outcomes" and json.loads(path.read_bytes().split(b"\n")[0])["what"].get("n"):
            path.unlink()  # so that the outcomes are asked for
    for path in Path("rb-store", kind).glob("*/*"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"9", b"8")[:-3] if damage is None else damage)
    before = seen.images
    again = run_in(Path("rb-store"), n=20)
    assert found(run_task(record, accuracy.clean(), again)) == found(good)
    assert seen.since(before) == (20 if kind == "outcomes" else 0)
    assert again.store.damaged
    fine = run_in(Path("rb-store"), n=20)
    run_task(record, accuracy.clean(), fine)
    assert not fine.store.damaged and fine.store.found == 1


@pytest.mark.parametrize(
    "kept", [None, 1, "x", {}, [1], [{}], [{"metric": 1, "value": 1}], [{"metric": "acc"}]]
)
def test_a_stored_value_that_is_no_list_of_entries_counts_as_absent(
    kept: object, record: dict[str, Any], run: Run
) -> None:
    unit = stored_results._Unit(resolve_inputs(record, run), (Clean(),))
    run.store.keep_result(unit.entries_key, unit.entries_fields, kept)
    assert unit.stored() is None
