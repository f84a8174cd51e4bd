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
from torch import nn

from rbtools.datasets import load
from tests.runner import Record, run

NOISE = "x + .25 * torch.randn_like(x)"
N = ("--n", "40")


def network(forward: str = NOISE) -> list[str]:
    """The options that name a small network on digits, trained with noise, behind this change of images."""
    sys.modules.pop("noisy", None)  # a user's module is imported once in a process
    importlib.invalidate_caches()
    shutil.rmtree("__pycache__", ignore_errors=True)
    Path("noisy.py").write_text(
        "import random, torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))\n"
        "        self.norm = nn.BatchNorm2d(1, affine=False, track_running_stats=False)\n"
        f"    def forward(self, x): return self.layers({forward})\n"
        "def make(): return Net()\n"
    )
    if not Path("noisy.pt").exists():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        digits = load("digits", "train")
        images, labels = digits.images.float() / 255, digits.labels
        optimizer = torch.optim.Adam(layers.parameters(), 1e-2)
        for _ in range(150):
            loss = nn.functional.cross_entropy(layers(images + 0.25 * torch.randn_like(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.save({f"layers.{name}": value for name, value in layers.state_dict().items()}, "noisy.pt")
    return [
        "--checkpoint",
        "noisy.pt",
        "--arch",
        "python:noisy:make",
        "--allow-code",
        "--dataset",
        "digits",
    ]


def attack(*words: str, forward: str = NOISE) -> Result:
    return run("attack", [*words, *network(forward), *N])


def record(result: Result) -> Record:
    assert result.exit_code == 0, result.stderr
    one: Record = json.loads(result.stdout)
    return one


def entry(one: Record, metric: str) -> Record:
    return next(entry for entry in one["evals"] if entry["metric"] == metric)


def values(one: Record) -> dict[str, Any]:
    return {entry["metric"]: (entry["value"], entry["ci95"]) for entry in one["evals"]}


PGD = ("pgd", "--eps", "48", "--steps", "4", "--eot", "4")


def test_a_randomised_model_is_noticed_and_judged_by_rates() -> None:
    result = attack(*PGD)
    one = record(result)
    assert one["randomised"] is True
    assert "is randomised: its forward pass draws random numbers. Verdicts are means over 20" in result.stderr
    assert "attacks use means over 4 draws (--eot)" in result.stderr
    assert "gradient of one draw" in attack("fgsm", "--eps", "48").stderr
    mean = entry(one, "pgd4.48")
    assert mean["verdict_draws"] == 20 and mean["eot"] == 4 and mean["eot_mean"] == "loss"
    assert 0 < mean["draws_error"] < 0.02
    assert entry(one, "acc")["value"] > mean["value"] + 0.2
    assert "randomised" not in record(attack(*PGD, forward="x"))


def test_means_and_rates_find_what_one_lucky_draw_does_not() -> None:
    one = record(attack(*PGD))
    single = record(attack(*PGD[:5], "--draws", "1"))
    assert "verdict_draws" not in entry(single, "pgd4.48")
    assert one["metrics"]["pgd4.48"] < single["metrics"]["pgd4.48"]


def test_autoattack_is_its_variant_for_randomised_models_and_no_weaker_than_its_parts() -> None:
    one = record(attack("aa", "--variant", "rand", "--eps", "48", "--eot", "6"))
    assert entry(one, "aa.48")["variant"] == "rand" and entry(one, "aa.48")["eot"] == 6
    for other in (PGD[:5], ("fgsm", "--eps", "48"), ("square", "--eps", "48", "--queries", "30")):
        parts = record(attack(*other, "--eot", "6"))
        name = next(reversed(parts["metrics"]))
        slack = 3 * (entry(one, "aa.48")["draws_error"] + entry(parts, name)["draws_error"])
        assert one["metrics"]["aa.48"] <= parts["metrics"][name] + slack


def test_results_do_not_depend_on_batch_workers_or_the_images_after_them(tmp_path: Path) -> None:
    one = values(record(attack(*PGD, "--store", str(tmp_path / "a"))))
    for number, words in enumerate((("--batch", "48"), ("--jobs", "2"))):
        assert values(record(attack(*PGD, *words, "--store", str(tmp_path / f"{number}")))) == one
    fewer = record(run("attack", [*PGD, *network(), "--n", "17", "--store", str(tmp_path / "b")]))
    more = record(attack(*PGD, "--store", str(tmp_path / "b")))  # goes on from the 17
    assert entry(fewer, "acc")["n"] == 17 and values(more) == one


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        ("nn.functional.dropout(x, .2, True)", "dropout is on in its forward pass"),
        ("torch.roll(x, random.randint(0, 1), 3)", "every image goes through it alone"),
    ],
)
def test_kinds_of_randomness_are_told_apart(forward: str, says: str) -> None:
    words = ["fgsm", "--eps", "48", "--eot", "2", "--draws", "4", "--n", "12", *network(forward)]
    result = run("attack", words)
    one = record(result)
    assert says in result.stderr and one["randomised"] is True
    shutil.rmtree("rb-store")
    assert values(record(run("attack", [*words, "--batch", "5"]))) == values(one)


def test_a_model_that_depends_on_the_batch_is_refused() -> None:
    result = attack(*PGD, forward="self.norm(x)")
    assert result.exit_code == 1
    assert "depends on the others of its batch" in json.loads(result.stdout)["error"]["message"]


def test_what_has_no_verdict_by_rates_is_refused_and_one_draw_is_accepted() -> None:
    of_pgd = ((*PGD[:2], "1,2", "--ladder"), (*PGD, "--save-adv", "adv"))
    for words in (("curve", "--queries", "40"), ("aa", "--two-phase", "10"), *of_pgd):
        result = attack(*words)
        assert result.exit_code == 1 and "randomised" in json.loads(result.stdout)["error"]["message"]
    assert record(attack("curve", "--queries", "40", "--draws", "1"))["metrics"]["curve.8"] > 0


def test_the_checklist_judges_by_rates() -> None:
    result = attack(
        "check", "--eps", "48", "--steps", "4", "--queries", "30", "--samples", "5", "--draws", "10"
    )
    tests = entry(record(result), "obfuscation.failed")["tests"]
    assert [test["holds"] for test in tests] == [True, True, True, True, True]
    assert any(test.get("noise", 0) > 0 for test in tests)


def test_corruptions_and_noise_have_rates_too() -> None:
    one = record(run("corrupt", ["contrast", "--severity", "3", *network(), *N, "--draws", "5"]))
    assert entry(one, "corrupt.contrast.3")["verdict_draws"] == 5
    words = ["--noise", "uniform", "--gamma", "0.1", "--samples", "20", *network(), *N]
    counts = [record(run("pr", [*words, *more, "--store", "none"])) for more in ((), ("--batch", "30"))]
    assert values(counts[0]) == values(counts[1])
    assert counts[0]["randomised"] is True


def test_rb_verify_measures_the_rates_again() -> None:
    result = run("verify", ["--allow-code"], [record(attack(*PGD, "--draws", "6"))])
    verdicts = json.loads(result.stdout)["verify"]["entries"]
    names = ("acc", "pgd4.48")
    assert {name: verdicts[name]["verdict"] for name in names} == dict.fromkeys(names, "match")
