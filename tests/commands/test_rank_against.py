"""rb-rank --against: the published row of a record, the comparison, and its output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rbtools.inputs.checkpoints import CheckpointHints
from rbtools.spaces import nasbench201
from tests import runner
from tests.runner import Record

EPS = 8 / 255
PRBENCH = [
    {"dataset": "CIFAR-10", "model": "ResNet-18", "method": "TRADES", "acc": 80.0, "ar": {"PGD20": 50.0}},
    {"dataset": "CIFAR-10", "model": "ResNet-18", "method": "Corr_Uniform", "acc": 94.17},
    {"dataset": "CIFAR-100", "model": "ResNet-18", "method": "TRADES", "acc": 55.0},
]


def entry(metric: str, value: float, n: int = 1000, **protocol: Any) -> Record:
    return {"tool": "rb-attack", "metric": metric, "split": "test", "n": n, **protocol, "value": value}


def attacked(stem: str, value: float, eps: float = EPS, norm: str = "linf", **protocol: Any) -> Record:
    where = f"l2.{eps:g}" if norm == "l2" else f"{eps * 255:g}"
    attack = re.sub(r"\d+", "", stem)
    return entry(f"{stem}.{where}", value, attack=attack, norm=norm, eps=eps, **protocol)


def model(*entries: Record, dataset: str = "cifar10", name: str = "resnet18", **more: Any) -> Record:
    return runner.model(name, *entries, dataset=dataset, checkpoint=f"sha256:{entries}", **more)


def run(words: str, given: list[Record]) -> Result:
    return runner.run("rank", f"--by acc {words}", given)


def compared(against: str, *given: Record) -> list[Record | None]:
    """The `published` field of each record, ordered by decreasing acc."""
    result = run(f"--against {against}", list(given))
    assert result.exit_code == 0, result.stderr
    return [record.get("published") for record in runner.records(result)]


@pytest.fixture
def prbench() -> str:
    Path("board.json").write_text(json.dumps(PRBENCH))
    return "prbench --against-file board.json"


def test_a_robustbench_model_is_the_one_that_arch_names() -> None:
    (beside,) = compared("robustbench", model(entry("acc", 0.9), leaderboard="Carmon2019Unlabeled"))
    assert beside is not None and beside["row"] == "cifar10/Linf/Carmon2019Unlabeled"
    assert beside["metrics"]["acc"]["value"] == 0.8969
    hints = CheckpointHints(arch="robustbench:Carmon2019Unlabeled")
    assert hints.leaderboard == {"leaderboard": "Carmon2019Unlabeled"}
    assert CheckpointHints(arch="resnet18").leaderboard == {}


@pytest.mark.parametrize(
    "record",
    [
        model(entry("acc", 0.9), leaderboard="Nobody2020Nothing"),
        model(entry("acc", 0.9), leaderboard="Carmon2019Unlabeled", dataset="cifar100"),
        model(entry("acc", 0.9), leaderboard=7),
    ],
)
def test_other_names_and_data_sets_have_no_published_values(record: Record) -> None:
    assert compared("robustbench", record) == [None]


def test_a_name_of_several_threat_models_is_the_one_that_was_attacked() -> None:
    name = "Rebuffi2021Fixing_70_16_cutmix_extra"  # CIFAR-10, Linf and L2
    l2, linf, clean, said = compared(
        "robustbench",
        model(entry("acc", 0.94), attacked("aa", 0.8, 0.5, "l2"), leaderboard=name),
        model(entry("acc", 0.93), attacked("aa", 0.6), leaderboard=name),
        model(entry("acc", 0.92), leaderboard=name),
        model(entry("acc", 0.91), leaderboard=f"cifar10/L2/{name}"),
    )
    assert l2 is not None and l2["row"].startswith("cifar10/L2/") and "aa.l2.0.5" in l2["metrics"]
    assert linf is not None and linf["row"].startswith("cifar10/Linf/") and "aa.8" in linf["metrics"]
    assert clean is None  # it is ambiguous which of the two is meant
    assert said is not None and said["row"].startswith("cifar10/L2/")


def test_prbench_rows_are_of_data_set_network_method_and_noise(prbench: str) -> None:
    noise = {"method": "corruption", "config": {"noise": "uniform"}}
    found = compared(
        prbench,
        model(entry("acc", 0.9), train=noise),
        model(entry("acc", 0.8), train={"method": "corruption", "config": {"noise": "gaussian"}}),
        model(entry("acc", 0.7), train={"method": "trades"}),
        model(entry("acc", 0.6), train={"method": "trades"}, dataset="cifar100"),
        model(entry("acc", 0.5), train={"method": "trades"}, name="vgg19"),
        model(entry("acc", 0.4)),
    )
    first, noise, trades, other, *more = [None if beside is None else beside["row"] for beside in found]
    assert (first, noise) == ("cifar10/resnet18/corruption", None)
    assert (trades, other) == ("cifar10/resnet18/trades", "cifar100/resnet18/trades")
    assert more == [None, None]


def test_a_cell_has_the_values_of_its_class() -> None:
    twin = next(i for i, first in enumerate(nasbench201.classes()) if first != i)
    index = nasbench201.classes()[twin]
    values = {"val_acc": {"0": 0.7, "1": 0.8, "2": 0.9, "threeseed": 0.8}}
    values["val_pgd_8.0_acc"] = {"0": 0.4, "1": 0.5, "2": 0.6, "threeseed": 0.5}
    Path("all.json").write_text(json.dumps({"cifar10": {str(index): values}}))
    trained = {**model(entry("acc", 0.8), attacked("pgd20", 0.52, steps=20)), "arch": nasbench201.arch(twin)}
    pgd, standard, other = compared(
        "nasrobbench201 --against-file all.json",
        {**trained, "train": {"method": "pgd", "seed": 5}},
        {**trained, "metrics": {"acc": 0.7}, "evals": [], "train": {"method": "erm"}},
        {**trained, "metrics": {"acc": 0.6}, "evals": [], "dataset": "cifar100"},
    )
    assert standard is None and other is None
    assert pgd is not None and pgd["metrics"]["pgd20.8"]["value"] == 0.5  # the mean over seeds
    assert pgd["metrics"]["pgd20.8"]["within"] and pgd["metrics"]["pgd20.8"]["n"] == 10_000


def test_the_robustness_dataset() -> None:
    folder = Path("data/cifar10")
    folder.mkdir(parents=True)
    (folder.parent / "meta.json").write_text(json.dumps({"ids": {}, "epsilons": {"pgd@Linf": [1.0]}}))
    for key, values in {"clean": {"9": 0.8}, "pgd@Linf": {"9": [0.3]}, "fog": {"9": [0.5] * 5}}.items():
        content = {"cifar10": {key: {"accuracy": values}}}
        (folder / f"{key}_accuracy.json").write_text(json.dumps(content))
    entries = [entry("acc", 0.8), attacked("pgd40", 0.31, 1 / 255, steps=40)]
    entries.append(entry("corrupt.fog.3", 0.9, corruption="fog", severity=3))
    (beside,) = compared(
        "jung2023 --against-file data",
        {**model(*entries, train={"method": "erm"}), "arch": nasbench201.arch(9)},
    )
    assert beside is not None
    verdicts = {name: one["within"] for name, one in beside["metrics"].items()}
    assert verdicts == {"acc": True, "pgd40.1": True, "corrupt.fog.3": False}


def test_the_difference_is_judged_by_both_numbers_of_images(prbench: str) -> None:
    (beside,) = compared(prbench, model(entry("acc", 0.8), train={"method": "trades"}))
    assert beside is not None
    close = beside["metrics"]["acc"]
    told = [close[name] for name in ("value", "difference", "n", "p", "within")]
    assert told == [0.8, 0.0, 10_000, 1.0, True]
    # Binomial errors of .8: .01265 with 1,000 images and .004 with 10,000; together .01327 (Wilson: .01326).
    assert close["standard_error"] == pytest.approx(0.01327, rel=2e-3)
    for value, within in ((0.824, True), (0.826, False), (0.774, True), (0.771, False)):
        (beside,) = compared(prbench, model(entry("acc", value), train={"method": "trades"}))
        assert beside is not None and beside["metrics"]["acc"]["within"] is within


def test_another_protocol_is_not_compared_and_said(prbench: str) -> None:
    record = model(entry("acc", 0.8), attacked("pgd20", 0.5, steps=10), train={"method": "trades"})
    result = run(f"--against {prbench}", [record])
    beside = json.loads(result.stdout)["published"]["metrics"]
    assert beside["pgd20.8"] == {"reason": "measured differently: steps 20 there and 10 here"}
    assert "pgd20.8: measured differently: steps 20 there and 10 here (1 record)" in result.stderr
