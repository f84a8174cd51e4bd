"""rb-ge at the command line: any evaluation on train and on test, and the difference."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rbtools
from rbtools import datasets
from rbtools.probabilistic import intervals
from tests import runner
from tests.runner import Record, entry, one

SOME = "--n 40 --n-train 60 --device cpu"

run = runner.command("ge")


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
    assert "has no split 'train'" in message and "use a data set that has both" in message


def test_the_gap_of_pr_is_given_over_right_images_and_over_all(trained: dict[str, Record]) -> None:
    question = "pr --gamma 0.3 --rho 0.2 --samples 5"
    record = one(run(f"{question} {SOME}", trained["erm"]))
    metrics, entries = record["metrics"], {entry["metric"]: entry for entry in record["evals"]}
    over_all = entries["ge.pr-all.uniform.0.3"]
    assert over_all["denominator"] == "all" and over_all["n"] == [60, 40]
    assert entries["ge.pr.uniform.0.3"]["denominator"] == "correct"
    # A share of copies over all images is at most the number of right images, plus the copies of wrong ones.
    assert metrics["pr-all.uniform.0.3"] >= metrics["pr.uniform.0.3"] * metrics["acc"] - 1e-12
    assert not any(name.startswith("ge.probacc-all") for name in metrics)
    for name in ("pr.uniform.0.3", "probacc.uniform.0.3.0.2", "pr-all.uniform.0.3"):
        assert metrics[f"ge.{name}"] == pytest.approx(metrics[f"train.{name}"] - metrics[name], abs=1e-12)


def test_the_first_images_of_either_split_can_be_chosen(trained: dict[str, Record]) -> None:
    record = one(run("acc --indices 0-49 --device cpu", trained["erm"]))
    entries = {entry["metric"]: entry for entry in record["evals"]}
    first = "sha256:" + hashlib.sha256(" ".join(map(str, range(50))).encode()).hexdigest()
    assert entries["ge.acc"]["n"] == [50, 50]
    assert entries["acc"]["indices"] == entries["train.acc"]["indices"] == first
    again = run("acc --indices 0-49 --device cpu", record)
    assert one(again)["metrics"] == record["metrics"]
