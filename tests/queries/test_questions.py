"""Models that can only be queried: what is sent, kept and reported, for a program."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import rbtools
from rbtools.attacks.aa import AutoAttack
from rbtools.attacks.pgd import PGD
from rbtools.attacks.square import Square
from rbtools.errors import RbError
from rbtools.queries.base import BatchAnswers
from rbtools.queries.model import Paid, Questions, probes
from rbtools.store.kept_answers import KeptAnswers
from tests.runner import run

# BatchAnswers by the distance to the mean image of each class, and writes the size of each batch to a file.
PROGRAM = """
import json, sys, types
import numpy as np
form, log = sys.argv[1:]
means = np.load(log + ".npy")
while True:
    try:
        images = np.lib.format.read_array(types.SimpleNamespace(read=sys.stdin.buffer.read))
    except ValueError:
        break
    with open(log, "a") as file:
        file.write(f"{len(images)}\\n")
    pixels = images.reshape(len(images), -1) / 255
    scores = 2 * pixels @ means.T - (means**2).sum(1)
    for row in scores:
        if form == "label":
            print(json.dumps({"label": int(row.argmax())}))
        else:
            shares = np.exp(row - row.max())
            print(json.dumps({form: (shares / shares.sum() if form == "probs" else row).tolist()}))
    sys.stdout.flush()
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """The command of a program that answers in this form."""
    (tmp_path / "answers.py").write_text(PROGRAM)
    digits = load_digits()
    means = [digits.data[digits.target == label].mean(0) / 16 for label in range(10)]
    np.save(tmp_path / "log.npy", np.stack(means))

    def command(form: str) -> str:
        words = [sys.executable, str(tmp_path / "answers.py"), form, str(tmp_path / "log")]
        return shlex.quote(shlex.join(words))

    return command


def paid(tmp_path: Path) -> int:
    """The number of images that the programs were asked about."""
    log = tmp_path / "log"
    return sum(map(int, log.read_text().split())) if log.exists() else 0


def measured(words: str, tmp_path: Path, store: str = "store", n: int = 20) -> dict[str, Any]:
    done = run("attack", f"{words} --n {n} --store {tmp_path / store}")
    assert done.exit_code == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def entry(record: dict[str, Any], metric: str) -> dict[str, Any]:
    return next(one for one in record["evals"] if one["metric"] == metric)


def test_the_answers_in_all_forms_give_the_same_accuracies(program: Any, tmp_path: Path) -> None:
    logits, probs = (
        measured(f"square --eps 32 --queries 20 --model-cmd {program(form)}", tmp_path, form)["metrics"]
        for form in ("logits", "probs")
    )
    label = measured(f"noise --eps 32 --model-cmd {program('label')}", tmp_path, "label")
    assert logits == probs and logits["acc"] == label["metrics"]["acc"]


def test_a_second_run_pays_only_for_the_images_that_identify_the_model(program: Any, tmp_path: Path) -> None:
    command = f"--model-cmd {program('logits')}"
    first = measured(f"square --eps 32 --queries 20 {command}", tmp_path)
    after = paid(tmp_path)
    assert measured(f"square --eps 32 --queries 20 {command}", tmp_path)["metrics"] == first["metrics"]
    assert paid(tmp_path) == after + 32
    more = measured(f"square --eps 32 --queries 40 {command} --as more", tmp_path)  # repeats the first 20
    whole = measured(f"square --eps 32 --queries 40 {command} --as more", tmp_path, "other")
    assert more["metrics"] == whole["metrics"]
    kept, other = (
        json.loads(run("store", f"ls --kind answers --store {tmp_path / name}").stdout)
        for name in ("store", "other")
    )
    assert kept["checkpoint"] == first["checkpoint"]
    assert paid(tmp_path) == kept["stored"]["answers"] + other["stored"]["answers"] + 4 * 32


def test_a_declared_version_is_asked_nothing_again(program: Any, tmp_path: Path) -> None:
    words = f"none --model-cmd {program('logits')} --model-version 1"
    first = measured(words, tmp_path)
    after = paid(tmp_path)
    assert measured(words, tmp_path)["metrics"] == first["metrics"]
    assert paid(tmp_path) == after
    assert measured(words[:-1] + "2", tmp_path)["checkpoint"] != first["checkpoint"]


def test_another_model_behind_the_same_command_is_told(program: Any, tmp_path: Path) -> None:
    first = measured(f"none --model-cmd {program('logits')}", tmp_path)
    (tmp_path / "answers.py").write_text(PROGRAM.replace("2 * pixels", "3 * pixels"))
    done = run("attack", f"none --n 20 --store {tmp_path / 'store'} --model-cmd {program('logits')}")
    assert "It counts as a new model, and its earlier answers are not used" in done.stderr
    assert json.loads(done.stdout)["checkpoint"] != first["checkpoint"]
    old = run("attack", f"none --n 30 --allow-code --store {tmp_path / 'store'}", [first])
    assert old.exit_code == 1 and "Create a new record, or declare a version" in old.stderr


def test_a_record_alone_reaches_no_model(program: Any, tmp_path: Path) -> None:
    record = measured(f"none --model-cmd {program('logits')}", tmp_path)
    after = paid(tmp_path)
    refused = run("attack", f"none --n 30 --store {tmp_path / 'store'}", [record])
    assert refused.exit_code == 1 and "add --allow-code" in refused.stderr
    assert paid(tmp_path) == after
    allowed = run("attack", f"none --n 30 --force --allow-code --store {tmp_path / 'store'}", [record])
    assert allowed.exit_code == 0 and json.loads(allowed.stdout)["evals"][0]["n"] == 30


def test_a_spent_budget_keeps_what_was_answered(program: Any, tmp_path: Path) -> None:
    words = f"square --eps 32 --queries 40 --model-cmd {program('logits')}"
    stopped = run("attack", f"{words} --n 20 --store {tmp_path / 'store'} --budget 100")
    assert stopped.exit_code == 1 and "The budget of 100 queries is used up" in stopped.stderr
    assert paid(tmp_path) == 100
    assert measured(words, tmp_path)["metrics"] == measured(words, tmp_path, "other")["metrics"]
    kept = json.loads(run("store", f"ls --kind answers --store {tmp_path / 'other'}").stdout)
    assert paid(tmp_path) == 3 * 32 + 2 * kept["stored"]["answers"]


def test_autoattack_on_scores_is_square_and_names_what_is_left_out(program: Any, tmp_path: Path) -> None:
    record = measured(f"aa --eps 128 --model-cmd {program('logits')}", tmp_path, n=4)
    found = entry(record, "square.128")
    assert found["left_out"] == ["apgd-ce", "apgd-t", "fab-t"] and found["grid"] == "8bit"
    assert not any(name.startswith("aa") for name in record["metrics"])
    alone = measured(f"square --eps 128 --model-cmd {program('logits')}", tmp_path, n=4)
    assert "left_out" not in entry(alone, "square.128")
    assert entry(alone, "square.128")["value"] == found["value"]


def test_a_preset_runs_what_can_run(program: Any, tmp_path: Path) -> None:
    done = run("attack", f"preset jung2023 --eps 32 --n 4 --store none --model-cmd {program('logits')}")
    assert done.exit_code == 0, done.stderr
    assert set(json.loads(done.stdout)["metrics"]) == {"acc", "square.32"}
    assert "Left out: The attack fgsm needs gradients" in done.stderr
    told = run("attack", f"aa --eps 128 --n 2 --store none --model-cmd {program('logits')}").stderr
    assert "Left out: apgd-ce, apgd-t, fab-t of aa, which need more than a model's answers." in told
    none = run("attack", f"preset rice2020 --n 4 --store none --model-cmd {program('label')}")
    assert none.exit_code == 1 and "needs gradients, but the model returns only labels" in none.stderr


def test_the_checklist_uses_square_in_place_of_pgd(program: Any, tmp_path: Path) -> None:
    done = run("attack", f"check --eps 32 --queries 20 --n 6 --store none --model-cmd {program('logits')}")
    assert done.exit_code == 0, done.stderr
    assert "Tests a and b are left out" in done.stderr
    checklist = entry(json.loads(done.stdout), "obfuscation.failed")
    assert checklist["left_out"] == ["a", "b"]
    tests = checklist["tests"]
    assert [test["test"] for test in tests] == ["c", "d", "e"]
    assert "Square's accuracy never rises" in tests[1]["says"]


@pytest.mark.parametrize(
    ("tool", "words", "metric"),
    [
        ("corrupt", "fog --severity 3", "corrupt.fog.3"),
        ("pr", "--gamma 0.1 --samples 5", "pr.uniform.0.1"),
        ("certify", "smooth --eps 0.1 --samples 20", "cert.smooth.0.25.0.1"),
    ],
)
def test_labels_are_enough(program: Any, tool: str, words: str, metric: str) -> None:
    done = run(tool, f"{words} --n 4 --store none --model-cmd {program('label')}")
    assert done.exit_code == 0, done.stderr
    assert metric in json.loads(done.stdout)["metrics"]


def test_options_that_do_not_fit_are_refused(program: Any) -> None:
    for words, says in (
        ("--model-cmd x --checkpoint model.pt", "Both --model-cmd and --checkpoint are given"),
        ("--model-cmd x --budget 9 --jobs 2", "--budget only works with a single process"),
        ("--checkpoint model.pt --rate 2", "--rate only applies to --model-cmd and --model-url"),
        ("--model-cmd x file.jsonl", "Both --model-cmd and FILE are given"),
        ("--model-pixels float", "--model-pixels only applies to a model in --model-cmd or --model-url"),
    ):
        done = run("attack", f"none {words}")
        assert done.exit_code == 2 and says in done.stderr


class Twice:
    """A service that answers with scores and counts images."""

    def __init__(self) -> None:
        self.images: list[np.ndarray] = []

    def ask(self, images: np.ndarray) -> BatchAnswers:
        self.images += [*images]
        scores = images.reshape(len(images), -1)[:, :3].astype(np.float32)
        return BatchAnswers("logits", scores)

    def close(self) -> None: ...


def test_equal_images_are_sent_once_as_8_bit_pixels_with_channels_last() -> None:
    service = Twice()
    ask = Questions(service, "logits", "uint8", KeptAnswers(None, {}), Paid(None, print))
    images = torch.rand(3, 3, 4, 5)
    images[2] = images[0] + 1e-4 * (images[0] < 0.5)  # mostly the same 8-bit image
    first = ask(torch.cat([images[:2], images[:1]]))
    assert len(service.images) == 2 and service.images[0].shape == (4, 5, 3)
    assert service.images[0].dtype == np.uint8 and np.array_equal(first[0], first[2])
    sent = torch.from_numpy(service.images[0]).permute(2, 0, 1)
    assert torch.equal(sent, images[0].mul(255).round().to(torch.uint8))
    assert np.array_equal(ask(images[:2]), first[:2]) and len(service.images) == 2


def test_floats_are_sent_as_they_are() -> None:
    service = Twice()
    ask = Questions(service, "logits", "float", KeptAnswers(None, {}), Paid(None, print))
    image = torch.rand(1, 1, 2, 2)
    ask(torch.cat([image, image + 1e-4]))
    assert len(service.images) == 2 and service.images[0].dtype == np.float32
    assert torch.equal(torch.from_numpy(service.images[0]).permute(2, 0, 1), image[0])


def test_the_fixed_images_are_fixed_and_differ() -> None:
    images = probes((3, 8, 8))
    assert torch.equal(images, probes((3, 8, 8))) and images.shape == (32, 3, 8, 8)
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    assert len({image.numpy().tobytes() for image in images}) == 32


def test_functions_of_arrays_are_evaluated_in_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(20, 1, 4, 4, generator=generator)
    weights = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)

    def scores(pixels: np.ndarray) -> np.ndarray:
        return pixels.reshape(len(pixels), -1).astype(np.float32) @ weights

    def shares(pixels: np.ndarray) -> np.ndarray:
        exp = np.exp(scores(pixels))
        return exp / exp.sum(1, keepdims=True)

    labels = torch.from_numpy(scores(images.numpy()).argmax(1))
    attack = Square(eps=0.1, queries=30)
    found = [rbtools.evaluate(one, (images, labels), attack) for one in (scores, shares)]
    assert found[0].value == found[1].value < 1
    ours = rbtools.evaluate(lambda pixels: scores(pixels).argmax(1), (images, labels), "acc")
    assert ours.value == 1
    with pytest.raises(RbError, match="needs gradients, but the model returns only logits"):
        rbtools.evaluate(scores, (images, labels), PGD(eps=0.1))
    record = rbtools.attack(scores, "square", eps=0.1 * 255, queries=30, data=(images, labels))
    assert record["metrics"]["square.25.5"] == found[0].value
    left = rbtools.evaluate(scores, (images, labels), AutoAttack(eps=0.1))
    assert left.metric.startswith("square.") and left.entry["left_out"] == ["apgd-ce", "apgd-t", "fab-t"]


@pytest.mark.parametrize("name", ["hopskipjump", "rays", "surfree", "boundary", "noise"])
def test_attacks_on_labels_run_on_a_program(program: Any, name: str) -> None:
    limit = "--samples 5" if name == "noise" else "--queries 30"
    done = run("attack", f"{name} {limit} --eps 2 --n 4 --store none --model-cmd {program('label')}")
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["metrics"]) == 2


def test_a_dry_run_of_a_known_model_asks_nothing(program: Any, tmp_path: Path) -> None:
    words = (
        f"square --eps 32 --queries 20 --n 20 --store {tmp_path / 'store'} --model-cmd {program('logits')}"
    )
    assert run("attack", words).exit_code == 0
    after = paid(tmp_path)
    told = run("attack", words.replace("--queries 20", "--queries 30") + " --dry-run")
    assert paid(tmp_path) == after and "at most 620 queries" in told.stderr
