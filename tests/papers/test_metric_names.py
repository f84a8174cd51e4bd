"""Every metric that a figure, a table or a claim of a paper needs is one that the paper's recipe makes.

The names come from the tools. The commands of a recipe are read with all their options, and each of their
jobs says what it would add to the record of a small network. Measures, whose names are known only afterwards,
run on two images, and trainings that are tracked run for one epoch.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import pytest

from rbtools.cli import filter_loop
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs.evaluate_record import Ask, PlanJob
from rbtools.measures import MEASURES
from rbtools.papers import evaluation_presets, items, pipes, recipes, reproduce_prbench, reproduce_search
from rbtools.papers import reproduce_nas_bench_201_robustness as jung
from rbtools.papers import reproduce_nas_robbench_201 as robbench
from rbtools.papers import sidebyside as side
from rbtools.papers.recipes import Setting
from rbtools.records import expr
from rbtools.spaces import nasbench201
from tests import runner
from tests.papers import test_nas_robbench_201_items as of_robbench
from tests.papers import test_robustness_dataset_items as of_jung

Record = dict[str, Any]
TRACKED = ("theory", "wci")  # their items show the history of trainings
OPTIONS = ("metric", "rows", "cols", "x", "y", "by", "right")  # options of rb-plot that name metrics
LONG = (*TRACKED, "robustness-dataset")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in items.NAMES]


def commands(name: str, scale: str) -> list[list[str]]:
    return list(pipes.commands(recipes.pipe(name, Setting(scale, jobs="1"))))


def jobs(name: str, scale: str) -> list[Any]:
    """The jobs of all commands that evaluate; none of them runs."""
    found: dict[str, Any] = {}

    def take(source: object, functions: list[Any], *_: object, **__: object) -> int:
        found.update({repr(job): job for job in functions})
        return 0

    files = {"--from", "--checkpoint"}  # those of the user
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_loop, "filter_records", take)
        for tool, *words in commands(name, scale):
            if tool not in ("rb-arch", "rb-search", "rb-train"):
                kept = [
                    one
                    for before, one in zip([tool, *words], words, strict=False)
                    if not {before, one} & files
                ]
                done = runner.run(tool.removeprefix("rb-"), kept)
                assert done.exit_code == 0, done.output
    return [*found.values()]


def added(job: Any, record: Record) -> set[str]:
    """The metrics that a job adds to a record."""
    run = runner.run_in().changed(split="test")
    if isinstance(job, PlanJob):
        entries = [next(plan(Ask(resolve_inputs(record, run)))) for plan in job.plans(record, run)]
        evaluations: Any = getattr(job, "evaluations", ())
        clean = {spec.name() for one in evaluations for spec in one.along}
        return clean | {entry["metric"] for some in entries for entry in some}
    small = {"probes": 1, "iterations": 2}
    measures = [
        dataclasses.replace(one, **{key: value for key, value in small.items() if hasattr(one, key)})
        for one in job.measures
    ]
    return {
        *dataclasses.replace(job, measures=tuple(measures), batches=1, batch_size=2)(record, run)["metrics"]
    }


def sources(name: str, scale: str, trained: Record) -> list[Record]:
    """Small records that the jobs of a recipe can evaluate. Those with a history are of its own training."""
    train = trained["train"]
    if name not in TRACKED:
        # The weight of the term on softmax outputs, for theorem 2 of PRBench, as of TRADES.
        return [{**trained, "train": {**train, "config": {**train["config"], "lambda": 6.0}}}]
    training = next(one[1:] for one in commands(name, scale) if one[0] == "rb-train")
    archs = [runner.run("arch", one[1:]) for one in commands(name, "tiny") if one[0] == "rb-arch"]
    small = "--attack-steps 1 --step-size 0.01"  # algorithm 1 has one epoch
    if name == "wci":
        small = "--attack-steps 1 --epochs 1 --milestones 1 --batch-size 721 --dataset digits"
        small += " --every 1 --track-n 4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MEASURES.load("wci"), "size", (1, 4))
        record = runner.one(runner.run("train", [*training, *small.split()], archs[0].stdout))
    # Kernels and bounds of the theory are of fresh weights.
    return [{**record, "arch": runner.one(one)["arch"]} for one in archs] if name == "theory" else [record]


MADE: dict[tuple[str, str], list[Record]] = {}


def made(name: str, scale: str, trained: Record) -> list[Record]:
    """Records with all metrics that a recipe makes, which several tests need."""
    if (name, scale) not in MADE:
        asked, MADE[name, scale] = jobs(name, scale), []
        for record in sources(name, scale, trained):
            names = {*record["metrics"]}.union(*(added(job, record) for job in asked))
            MADE[name, scale].append({**record, "metrics": dict.fromkeys(sorted(names), 0.5)})
    return copy.deepcopy(MADE[name, scale])


def lacking(text: str, records: Iterable[Record]) -> set[str]:
    """The names in a list of metrics and expressions that no record has; a glob needs one metric."""
    known = {
        name
        for one in records
        for part in (one["metrics"], one["train"], one["train"]["history"], one["arch"])
        for name in part
    }
    parts = [text] if text in known else expr.items(text)
    names = {name for part in parts for name in (expr.Expression(part).names if "(" in part else [part])}
    return {name for name in names if not expr.expand(name, known)}


def needed(item: items.Item) -> list[str]:
    """The lists of metrics that an item shows."""
    calls = [
        call
        for some in item.panels.values()
        for call in some
        if call.tool == "plot" or "by" not in call.options
    ]
    scores = [evaluation_presets.SCORES[one] for call in calls if (one := call.options.get("preset"))]
    return [
        *(call.options[name] for call in calls for name in OPTIONS if name in call.options),
        *(term.metric for score in scores for term in score.terms),
        *([f"bound.{item.bound}.*"] if item.bound else []),
    ]


@pytest.mark.parametrize(
    "scale", ["full", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mini", "tiny"))]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_an_item_is_made(name: str, scale: str, trained: dict[str, Record]) -> None:
    paper = items.paper(name, scale)
    module = side.comparison(paper.records)
    own = made(paper.records, scale, trained["pgd"])
    if module is jung:
        jung.networks(own, scale)  # the mean over corruptions
    shown = {"": module.for_figures(own) if hasattr(module, "for_figures") else own}
    shown |= {item.of: made(item.of, scale, trained["pgd"]) for item in paper.items.values() if item.of}
    columns = getattr(module, "metrics", lambda _: paper.columns)(scale)
    asked = {number: (item.of, needed(item)) for number, item in paper.items.items() if item.from_records}
    asked |= {f"column {column}": ("", [metric]) for column, metric in columns.items()}
    for place, (of, texts) in asked.items():
        assert not set[str]().union(*(lacking(text, shown[of]) for text in texts)), place


@pytest.mark.parametrize(
    ("name", "records"),
    [("nas-bench-201-robustness", of_jung.RECORDS), ("nas-robbench-201", of_robbench.RECORDS)],
)
def test_the_records_of_other_tests_have_metrics_that_the_recipe_makes(
    name: str, records: list[Record], trained: dict[str, Record]
) -> None:
    assert {*records[0]["metrics"]} <= {*made(name, "full", trained["pgd"])[0]["metrics"]}


EIGHTEEN = [i for i in nasbench201.unique() if nasbench201.live_kernel_params(nasbench201.cells()[i]) == 18]
NEIGHBOURS = {nasbench201.classes()[index] for index in nasbench201.neighbours(13714)}
CELLS = sorted({*range(13), *nasbench201.unique()[::300], *EIGHTEEN[:24], *NEIGHBOURS, 13714})
SETS = ("cifar10", "cifar100", "imagenet16-120")


def drawn(record: Record, draw: random.Random, **fields: Any) -> Record:
    """The record with random values of its metrics, as figures and tables read it."""
    metrics = {name: draw.random() for name in record["metrics"]}
    details = [
        {
            "metric": name,
            "detail": {
                "confidence": {"prediction": [draw.random(), draw.random()], "label": [[draw.random()]]}
            },
        }
        for name in metrics
        if name.startswith(("acc", "fgsm"))
    ]
    return side.essential({**record, **fields, "metrics": metrics, "evals": details})


def of_cells(record: Record, draw: random.Random) -> list[Record]:
    return [
        drawn(record, draw, arch=nasbench201.arch(index), dataset=name) for name in SETS for index in CELLS
    ]


def of_methods(record: Record, draw: random.Random) -> list[Record]:
    noises = [("corruption", {"noise": noise}) for noise in ("gaussian", "laplace")]
    filtered = [("trades", {"filter": "chen-lee", "warm_steps": warm}) for warm in (2, 5)]
    trainings = [*((method, {}) for method in reproduce_prbench.PAPER), *noises, *filtered]
    return [
        drawn(record, draw, train={**record["train"], "method": method, "config": config})
        for method, config in trainings
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_can_be_told_of_the_records_of_its_recipe(name: str, trained: dict[str, Record]) -> None:
    draw, paper = random.Random(0), items.paper(name, "full")
    own = made(paper.records, "full", trained["pgd"])
    module, tables = side.comparison(paper.records), dict[str, Any]()
    if module is jung or module is robbench:
        records = of_cells(own[0], draw)
        values = reproduce_search.printed_values(
            reproduce_search.JUNG if module is jung else reproduce_search.ROBBENCH
        )
        number = "table 1" if module is jung else "table 2"
        tables[number] = side.PaperTable("searches, which take long", {}, values, ())
        if module is robbench:
            others = of_cells(made("nas-bench-201-robustness", "full", trained["pgd"])[0], draw)
            means = robbench.best_means(records, others, "full")
            tables["best means"] = side.PaperTable("", {}, means, ())
    elif name == "prbench":
        records = of_methods(own[0], draw)
    else:
        for record in own:
            history = record["train"]["history"]
            record["train"]["history"] = {key: [draw.random() for _ in range(12)] for key in history}
            # The limits of lemmas are in the entries of their bounds.
            some = {key: one for key, one in record["metrics"].items() if key.startswith("bound.")}
            record["evals"] = [
                {"metric": key, "value": one, "inputs": {"limit": 3}} for key, one in some.items()
            ]
        records, tables = own, module.tables(own, "full")
    found = module.claims(records, "full", tables)
    assert len(found) >= len(paper.claims) and not [one for one in found if one.lacking]
