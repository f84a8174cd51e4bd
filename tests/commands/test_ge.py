"""rb-ge at the command line: any evaluation on train and on test, and the difference."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result

import rbtools
from rbtools import datasets
from rbtools.probabilistic import intervals
from tests import runner
from tests.runner import Record, entry, one

SOME = "--n 40 --n-train 60 --device cpu"


def run(words: str, *given: Record) -> Result:
    return runner.run("ge", words, given)


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("acc", ["acc"]),
        ("attack fgsm --eps 4,8", ["fgsm.4", "fgsm.8"]),
        ("corrupt contrast,brightness --severity 5", ["corrupt.contrast.5", "corrupt.brightness.5"]),
        (
            "pr --gamma 0.3 --rho 0.2 --samples 4",
            ["pr.uniform.0.3", "probacc.uniform.0.3.0.2", "pr-all.uniform.0.3"],
        ),
    ],
    ids=["acc", "attack", "corrupt", "pr"],
)
def test_the_difference_comes_with_both_sides(
    question: str, names: list[str], trained: dict[str, Record]
) -> None:
    record = one(run(f"{question} {SOME}", trained["erm"]))
    assert record["mine"] == {"kept": [1, 2]}
    metrics = record["metrics"]
    for name in names:
        assert metrics[f"ge.{name}"] == pytest.approx(metrics[f"train.{name}"] - metrics[name], abs=1e-12)
        gap = entry(record, f"ge.{name}")
        assert gap["split"] == "train-test" and gap["tool"] == "rb-ge"
        low, high = gap["ci95"]
        assert -1 <= low < gap["value"] < high <= 1
        assert gap["n"] == [60, 40] or question.startswith("pr")
    assert [gap["metric"] for gap in record["evals"][-len(names) :]] == [f"ge.{name}" for name in names]


def test_all_images_of_both_splits_are_the_default(trained: dict[str, Record]) -> None:
    record = one(run("acc --device cpu", trained["erm"]))
    assert record["evals"][-1]["n"] == [1442, 355]


def test_n_counts_the_images_of_either_side(trained: dict[str, Record]) -> None:
    record = one(run("acc --n 30 --device cpu", trained["erm"]))
    assert record["evals"][-1]["n"] == [30, 30]
    assert "[default: --n]" in " ".join(run("acc --help").stdout.split())


def test_a_difference_can_be_named(trained: dict[str, Record]) -> None:
    metrics = one(run(f"acc --as gap {SOME}", trained["erm"]))["metrics"]
    assert metrics["gap"] == pytest.approx(metrics["train.acc"] - metrics["acc"]) and "ge.acc" not in metrics


def test_the_gaps_of_robust_loss_and_error_are_test_minus_train(known: dict[str, Record]) -> None:
    record = one(run(f"loss attack pgd --steps 3 --eps 8,32 {SOME}", known["erm"]))
    metrics = record["metrics"]
    for eps in ("8", "32"):
        for name in ("loss", "error"):
            gap = entry(record, f"test_minus_train.{name}.pgd3.{eps}")
            one_side, other = metrics[f"{name}.pgd3.{eps}"], metrics[f"train.{name}.pgd3.{eps}"]
            assert gap["value"] == pytest.approx(one_side - other, abs=1e-12)
            assert gap["split"] == "test-train" and gap["n"] == [40, 60] and gap["iterate"] == "last"
            assert gap["ci95"][0] < gap["value"] < gap["ci95"][1]
    assert metrics["loss.pgd3.32"] > metrics["loss.pgd3.8"] and metrics["error.pgd3.32"] > 1 - metrics["acc"]
    # The error is that of rb-attack with the same last iterate. Of a linear network a clean error stays one.
    words = "pgd --steps 3 --eps 32 --iterate last --n 40 --device cpu"
    evaluated = one(runner.run("attack", words, [known["erm"]]))
    assert metrics["error.pgd3.32"] == pytest.approx(1 - evaluated["metrics"]["pgd3.32"], abs=1e-9)
    loss = entry(record, "loss.pgd3.8")
    assert loss["attacked"] == "all" and loss["ci95"][0] < loss["value"] < loss["ci95"][1]


def test_the_loss_is_that_of_the_attacked_images(trained: dict[str, Record]) -> None:
    """By hand: one step of the sign of the gradient, on every image."""

    exact = "--eps 16 --precision fp32"
    record = one(run(f"loss attack fgsm {exact} {SOME}", trained["erm"]))
    model, data = rbtools.load(trained["erm"]), datasets.load("digits", "train")
    chosen = datasets.subset(data.labels, 1442, seed=0)[:60]
    images, labels = (data.images[chosen].float() / 255).requires_grad_(), data.labels[chosen]
    torch.nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    assert images.grad is not None
    moved = (images + 16 / 255 * images.grad.sign()).clamp(0, 1).detach()
    losses = torch.nn.functional.cross_entropy(model(moved), labels, reduction="none")
    found = entry(record, "train.loss.fgsm.16")
    assert found["value"] == pytest.approx(float(losses.mean()), rel=1e-4)
    want = intervals.of_images(losses.detach().numpy(), 0.0)
    assert found["ci95"] == pytest.approx(want, rel=1e-3)


def test_images_that_the_training_held_out_are_no_training_images(trained: dict[str, Record]) -> None:
    """With --val the first images in the order of --n are held out: of a few, all would be."""
    plain = {key: trained["erm"][key] for key in ("schema", "arch", "dataset")}
    record = one(runner.run("train", "--method erm --epochs 1 --val 0.05 --device cpu", [plain]))
    assert record["train"]["validation"]["n"] == 72
    words = "acc --device cpu"
    gap = entry(one(run(words, record)), "ge.acc")
    assert gap["n"] == [1442 - 72, 355]
    few = one(run(f"{words} --n-train 72", record))
    assert entry(few, "train.acc")["indices"] == gap["train_indices"]
    assert entry(few, "ge.acc")["n"] == [72, 355] and "indices" not in entry(few, "acc")
    rest = np.setdiff1d(np.arange(1442), datasets.subset(datasets.load("digits", "train").labels, 72, seed=0))
    Path("rest.txt").write_text(" ".join(map(str, rest)))
    words = "fgsm --eps 0 --split train --indices rest.txt --device cpu"
    evaluated = one(runner.run("attack", words, [record]))
    acc = one(run("acc --device cpu", record))["metrics"]["train.acc"]
    assert evaluated["metrics"]["train.acc"] == acc
    assert entry(evaluated, "train.acc")["indices"] == gap["train_indices"]
    # Trained on all images, or other data: all of the split.
    assert "train_indices" not in entry(one(run(f"acc {SOME}", trained["erm"])), "ge.acc")


def test_a_data_set_of_one_split_has_no_generalisation_error(
    trained: dict[str, Record], tmp_path: Path
) -> None:
    images = np.zeros((10, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "one.npz", x_test=images, y_test=np.arange(10))
    result = run(f"acc --dataset npz:{tmp_path}/one.npz --device cpu", trained["erm"])
    assert result.exit_code == 1
    message = json.loads(result.stdout)["error"]["message"]
    assert "has no split 'train'" in message and "give a data set that has train and test" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("acc --split train", "No such option '--split'"),
        ("accuracy", "No such command 'accuracy'"),
        ("attack fgsm --eps -1", "--eps is -1."),
        ("corrupt contrast --severity 9", "--severity is 9."),
        ("pr --gamma 8", "Did you mean 8/255?"),
        ("acc --n-train 0", "Invalid value for '--n-train'"),
        ("loss attack apgd-ce", "stops at examples that are broken"),
        ("loss attack square", "stops at examples that are broken"),
        ("loss attack pgd --iterate any", "stops at examples that are broken"),
        ("loss attack pgd --target 1", "stops at examples that are broken"),
    ],
)
def test_wrong_use_is_a_usage_error(words: str, message: str) -> None:
    result = run(words)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stderr.startswith("rb-ge: error: ")


def test_the_gap_of_pr_is_given_over_right_images_and_over_all(trained: dict[str, Record]) -> None:
    question = "pr --gamma 0.3 --rho 0.2 --samples 5"
    record = one(run(f"{question} {SOME}", trained["erm"]))
    metrics, entries = record["metrics"], {entry["metric"]: entry for entry in record["evals"]}
    over_all = entries["ge.pr-all.uniform.0.3"]
    assert over_all["denominator"] == "all" and over_all["n"] == [60, 40]
    assert entries["ge.pr.uniform.0.3"]["denominator"] == "correct"
    # A share of copies over all images is at most the number of right images, plus the copies of wrong ones.
    assert metrics["pr-all.uniform.0.3"] >= metrics["pr.uniform.0.3"] * metrics["acc"] - 1e-12
    assert metrics["ge.pr-all.uniform.0.3"] + metrics["pr-all.uniform.0.3"] <= 1
    assert not any(name.startswith("ge.probacc-all") for name in metrics)


def test_the_first_images_of_either_split_can_be_chosen(trained: dict[str, Record]) -> None:
    record = one(run("acc --indices 0-49 --device cpu", trained["erm"]))
    entries = {entry["metric"]: entry for entry in record["evals"]}
    first = "sha256:" + hashlib.sha256(" ".join(map(str, range(50))).encode()).hexdigest()
    assert entries["ge.acc"]["n"] == [50, 50]
    assert entries["acc"]["indices"] == entries["train.acc"]["indices"] == first
    again = run("acc --indices 0-49 --device cpu", record)
    assert one(again)["metrics"] == record["metrics"]
