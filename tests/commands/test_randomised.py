"""Randomised models at the command line: noticed, judged by rates, the same for every batch and worker."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from tests.networks import class_means, nearest
from tests.runner import Record, entry, one, run

NOISE = "x + .25 * torch.randn_like(x)"
N = "--n 40"


def network(forward: str = NOISE) -> str:
    """The options that name a linear network on digits behind this change of images."""
    sys.modules.pop("noisy", None)  # a user's module is imported once in a process
    importlib.invalidate_caches()
    shutil.rmtree("__pycache__", ignore_errors=True)
    Path("noisy.py").write_text(
        "import random, torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        f"    def forward(self, x): return self.layers({forward})\n"
        "def make(): return Net()\n"
    )
    state = nearest(class_means()).state_dict()
    torch.save({f"layers.{name}": value for name, value in state.items()}, "noisy.pt")
    return "--checkpoint noisy.pt --arch python:noisy:make --allow-code --dataset digits"


def attack(words: str, forward: str = NOISE) -> Result:
    return run("attack", f"{words} {network(forward)} {N}")


def values(record: Record) -> dict[str, Any]:
    return {entry["metric"]: (entry["value"], entry["ci95"]) for entry in record["evals"]}


PGD = "pgd --eps 48 --steps 4 --eot 4"


def test_a_randomised_model_is_noticed_and_judged_by_rates() -> None:
    result = attack(PGD)
    record = one(result)
    assert record["randomised"] is True
    assert "is randomised: its forward pass draws random numbers. Results are means over 20" in result.stderr
    assert "attacks average over 4 draws (--eot)" in result.stderr
    assert "gradient of a single draw (--eot 1)" in attack("fgsm --eps 48 --eot 1").stderr
    mean = entry(record, "pgd4-eot4.48")
    assert mean["verdict_draws"] == 20 and mean["eot"] == 4 and mean["eot_mean"] == "loss"
    assert 0 < mean["draws_error"] < 0.02
    assert entry(record, "acc")["value"] > mean["value"] + 0.2
    assert "randomised" not in one(attack(PGD, forward="x"))


def test_gradients_are_means_over_20_draws_without_being_asked_and_other_means_have_other_names() -> None:
    own, one_draw, chosen = (
        attack(f"pgd --eps 48 --steps 3 {words}") for words in ("", "--eot 1", "--eot 20")
    )
    assert "attacks average over 20 draws (--eot)" in own.stderr
    assert entry(one(own), "pgd3.48")["eot"] == entry(one(chosen), "pgd3.48")["eot"] == 20
    assert entry(one(own), "pgd3.48")["value"] < entry(one(one_draw), "pgd3-eot1.48")["value"] - 0.05
    assert entry(one(attack("pgd --eps 48 --steps 3 --eot 2", forward="x")), "pgd3-eot2.48")["eot"] == 2


@pytest.mark.slow
def test_the_strongest_attack_is_not_weaker_than_one_step() -> None:
    words = ("fgsm --eps 48 --n 24", "aa --attacks apgd-ce,apgd-dlr --eps 48 --n 24")
    fgsm, strongest = (one(run("attack", f"{one_} {network()}"))["evals"][-1] for one_ in words)
    assert strongest["eot"] == 20 and strongest["value"] <= fgsm["ci95"][1]


@pytest.mark.slow
def test_autoattack_is_its_variant_for_randomised_models_and_no_weaker_than_its_parts() -> None:
    aa = entry(one(attack("aa --variant rand --eps 48 --eot 6")), "aa-eot6.48")
    assert aa["variant"] == "rand" and aa["eot"] == 6
    for other in ("pgd --eps 48 --steps 4", "fgsm --eps 48", "square --eps 48 --queries 30"):
        part = one(attack(f"{other} --eot 6"))["evals"][-1]
        assert aa["value"] <= part["value"] + 3 * (aa["draws_error"] + part["draws_error"])


def test_results_do_not_depend_on_batch_workers_or_the_images_after_them() -> None:
    whole = values(one(attack(f"{PGD} --store a")))
    for number, words in enumerate(("--batch 48", "--jobs 2")):
        assert values(one(attack(f"{PGD} {words} --store {number}"))) == whole
    fewer = one(run("attack", f"{PGD} {network()} --n 17 --store b"))
    more = one(attack(f"{PGD} --store b"))  # goes on from the 17
    assert entry(fewer, "acc")["n"] == 17 and values(more) == whole


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        ("nn.functional.dropout(x, .2, True)", "dropout is on in its forward pass"),
        ("torch.roll(x, random.randint(0, 1), 3)", "so images are passed one by one"),
    ],
)
@pytest.mark.slow
def test_kinds_of_randomness_are_told_apart(forward: str, says: str) -> None:
    words = f"fgsm --eps 48 --eot 2 --draws 4 --n 12 {network(forward)}"
    result = run("attack", words)
    record = one(result)
    assert says in result.stderr and record["randomised"] is True
    shutil.rmtree("rb-store")
    assert values(one(run("attack", f"{words} --batch 5"))) == values(record)


def test_what_has_no_verdict_by_rates_is_refused_and_one_draw_is_accepted() -> None:
    curve = "curve --queries 40"
    for words in (curve, "aa --two-phase 10", "pgd --eps 1,2 --ladder", f"{PGD} --save-adv adv"):
        result = attack(words)
        assert result.exit_code == 1 and "randomised" in json.loads(result.stdout)["error"]["message"]
    assert one(attack(f"{curve} --draws 1"))["metrics"]["curve.8"] > 0


@pytest.mark.slow
def test_corruptions_and_noise_have_rates_too() -> None:
    corrupted = one(run("corrupt", f"contrast --severity 3 {network()} {N} --draws 5"))
    assert entry(corrupted, "corrupt.contrast.3")["verdict_draws"] == 5
    words = f"--noise uniform --gamma 0.1 --samples 20 {network()} {N} --store none"
    counts = [one(run("pr", f"{words} {more}")) for more in ("", "--batch 30")]
    assert values(counts[0]) == values(counts[1])
    assert counts[0]["randomised"] is True


def test_rb_verify_measures_the_rates_again() -> None:
    result = run("verify", "--allow-code", [one(attack(f"{PGD} --draws 6"))])
    verdicts = one(result)["verify"]["entries"]
    assert [verdicts[name]["verdict"] for name in ("acc", "pgd4-eot4.48")] == ["match"] * 2
