"""Transfer from several sources: the ensemble, the union of each image's answers, which source broke it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools import datasets
from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from rbtools.evaluation import base
from rbtools.evaluation.base import Batch
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.jobs import transfer
from rbtools.jobs.transfer import transferred
from rbtools.store import Store
from rbtools.store.content_store import object_name
from tests.conftest import SMALL_ARCH
from tests.networks import class_means, nearest
from tests.runner import Record, entry, lines, one, run, run_task

EPS = 40 / 255
CONTEXT = Run.of(tool="test", device="cpu", threads=1)


def named(letter: str) -> str:
    """The name of the checkpoint whose file has this letter only: no network is read from it."""
    return object_name(letter.encode())


SOURCES = sorted("abc", key=named)  # as they are attacked; d is the evaluated model


def record_of(letter: str) -> Record:
    return {"schema": 1, "arch": SMALL_ARCH, "dataset": "digits", "checkpoint": named(letter)}


def store_in(folder: str) -> Store:
    """A store with the checkpoints."""
    store = Store(folder)
    for letter in "abcd":
        store.keep_object(letter.encode())
    return store


def classifier(seed: int) -> nn.Sequential:
    """The nearest mean image, by half of the pixels: linear, and different for each seed."""
    return nearest(class_means() * (torch.rand(64, generator=torch.Generator().manual_seed(seed)) < 0.5))


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The networks by the letters of their checkpoints; `loads` lists what was loaded."""
    found: dict[str, Any] = {letter: classifier(seed) for seed, letter in enumerate("abcd")}
    found["loads"] = []

    def load(record: Record, *_: object) -> nn.Module:
        letter = next(one for one in "abcde" if record["checkpoint"] == named(one))
        found["loads"].append(letter)
        return found[letter]

    monkeypatch.setattr(resolve, "load_model", load)
    CONTEXT.kept.clear()
    yield found
    CONTEXT.kept.clear()


def task(letters: str, name: str = "mi-fgsm", **params: Any) -> Evaluation:
    sources = tuple(json.dumps(record_of(letter)) for letter in letters)
    return transferred(ATTACKS.build(name, **params), (EPS,), sources, CONTEXT)


def answers(asked: Evaluation, batch: Batch) -> tuple[Tensor, dict[str, float]]:
    """Which images survive, and the sums."""
    outcome = asked.specs[0].rows(batch)
    return outcome.values, outcome.totals


def batch_for(model: nn.Module) -> Batch:
    data = datasets.load("digits", "test")
    images, load = data.images[:200].float() / 255, lambda *of: transfer.loaded(CONTEXT, *of)
    return Batch(model, images, data.labels[:200], torch.arange(200), seed=0, chunk_size=64, load=load)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("mi-fgsm", {"diversity": 0.7, "kernel": 3}),
        ("pgd", {"steps": 5}),
        ("aa", {"attacks": "fgsm,noise"}),
    ],
)
def test_an_image_survives_if_it_survives_each_of_the_attacks_alone(
    name: str, params: dict[str, Any], networks: dict[str, Any]
) -> None:
    """Of linear networks the mean of the logits is the network of the mean weights: it is a source here."""
    mean = classifier(0)
    for place, weights in enumerate(mean.parameters()):
        weights.data = torch.stack([[*networks[letter].parameters()][place] for letter in "abc"]).mean(0)
    networks["e"] = mean
    batch = batch_for(networks["d"])
    left, counts = batch.clean, []
    for alone in ("e", *SOURCES):
        survived = answers(task(alone, name, **params), batch)[0]
        counts.append(int((left & ~survived).sum()))
        left = left & survived
    assert counts[0] and sum(counts[1:]) and left.any()  # the ensemble leaves some that a source breaks
    found, totals = answers(task("bca", name, **params), batch)
    assert torch.equal(found, left)
    assert [totals[f"broken_by_source.{number}"] for number in range(4)] == counts


def test_the_order_of_the_sources_changes_nothing_and_they_are_loaded_once(
    networks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BATCH", {"cpu": 8})  # digits come in batches of 32
    context = Run.of(tool="test", store=store_in("one"), device="cpu", threads=1, n=100)
    found = run_task(record_of("d"), task("bca"), context)
    assert sorted(networks["loads"]) == ["a", "b", "c", "d"]
    keys = [task("".join(letters)).specs[0].column() for letters in itertools.permutations("abc")]
    assert all(key == keys[0] for key in keys) and keys[0]["source"] == [*map(named, SOURCES)]
    networks["loads"].clear()
    again = run_task(record_of("d"), task("acb"), context)
    assert again["evals"] == found["evals"] and not networks["loads"]
    told = entry(found, "transfer.mi-fgsm10.40")
    assert list(told["broken_by_source"]) == ["ensemble", *map(named, SOURCES)]
    broken = round(100 * (found["metrics"]["acc"] - told["value"]))
    assert sum(told["broken_by_source"].values()) == broken > 0


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), "It has 7 classes, but the evaluated model has 10"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), "It does not take images of shape 1x8x8"),
    ],
)
@pytest.mark.parametrize("letters", ["b", "ab"])
def test_a_source_for_other_images_or_classes_is_refused(
    letters: str, network: nn.Module, says: str, networks: dict[str, Any]
) -> None:
    networks["b"] = network.eval()
    with pytest.raises(RbError, match=r"of --from cannot be attacked\.") as refused:
        answers(task(letters), batch_for(networks["d"]))
    assert says in str(refused.value) and (named("b")[:19] in str(refused.value)) == (letters == "ab")


def test_sources_at_the_command_line(networks: dict[str, Any]) -> None:
    store_in("rb-store")
    for letter in "abc":
        Path(f"{letter}.jsonl").write_text(lines(record_of(letter)))
    how = "--attack mi-fgsm --eps 40 --n 60 --device cpu"
    one(run("attack", f"transfer --from 'c.jsonl, a.jsonl,b.jsonl' {how}", [record_of("d")]))
    assert sorted(networks["loads"]) == ["a", "b", "c", "d"]
    twice = run("attack", f"transfer --from a.jsonl,b.jsonl,a.jsonl {how}", [record_of("d")])
    assert twice.exit_code == 2 and f"the checkpoint {named('a')[:19]}... twice" in twice.stderr
