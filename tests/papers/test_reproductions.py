"""Reproductions: the recipes of pipes run at SCALE=tiny, and what they print; missing data are named."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rbtools.measures import MEASURES
from rbtools.papers import pipes, recipes, reproduce_prbench
from rbtools.papers.__main__ import main
from rbtools.papers.recipes import Setting
from tests import runner
from tests.runner import parsed

NAMES = ("nas-bench-201-robustness", "nas-robbench-201", "prbench")

pytestmark = pytest.mark.slow


def commands(name: str, scale: str) -> list[list[str]]:
    return list(pipes.commands(recipes.pipe(name, Setting(scale, jobs="1"))))


def run(stages: recipes.Pipe) -> str:
    """What a pipe writes, with its commands called in this process."""
    written = ""
    for stage in stages:
        if isinstance(stage, tuple):
            written = "".join(map(run, stage))
        else:
            done = runner.run(stage[0].removeprefix("rb-"), stage[1:], written)
            assert done.exit_code == 0, f"$ {stage}\n{done.stderr[-2000:]}"
            written = done.stdout
    return written


def papers(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def compare(name: str, text: str) -> str:
    """The report on the records of a recipe at the scale tiny."""
    Path("records.jsonl").write_text(text)
    done = papers(f"reproduce-{name}", "--scale", "tiny", "--records", "records.jsonl")
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_ends_with_the_published_values_beside_ours(name: str) -> None:
    text = run(recipes.pipe(name, Setting("tiny", jobs="1")))
    records = [json.loads(line) for line in text.splitlines()]
    assert records and all("error" not in record for record in records)
    shown = compare(name, text)
    assert "printed / ours / difference" in shown
    assert re.search(r"\d+ of \d+ claims hold here", shown)
    cells = re.findall(r"[-\d.]+ / [-\d.]+ / [+-][\d.]+", shown)
    assert len(cells) >= 6, "next to nothing of the paper was measured"


def test_the_curves_of_wci_end_with_correlations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEASURES.load("wci"), "size", (1, 4))
    text = run(recipes.pipe("wci", Setting("tiny", jobs="1")))
    plain, record = [json.loads(line) for line in text.splitlines()]
    assert "regularize" not in plain["train"]["config"]
    assert record["train"]["config"]["regularize"] == ["l2"]
    shown = compare("wci", text)
    history = record["train"]["history"]
    assert f"| l2 | 3 | {history['wci'][2]:.4g} | {history['wci.trace'][2]:.4g} |" in shown
    # rho of 3 ranks is one of four numbers, or none where two epochs are equal.
    assert re.search(r"\| l2 \| 3 \| (-?[10]\.[05]0|-?0\.87) ", shown), shown
    assert re.search(r"\d+ of \d+ claims hold here", shown)
    bounds = [entry["metric"] for entry in record["evals"] if entry.get("measure") == "bound"]
    assert bounds == [f"bound.wci{number}.pgd.32" for number in (4, 2, 3, 1)]
    assert "| bound.wci2.pgd.32 | sum_l \\|W_l\\|^2 / (2 sigma_l^2) |" in shown


def test_the_theory_ends_with_bounds_of_its_own_networks() -> None:
    text = run(recipes.pipe("theory", Setting("tiny", jobs="1")))
    assert [json.loads(line)["arch"]["space"] for line in text.splitlines()] == ["fcnn", "rescnn"]
    shown = compare("theory", text)
    first, second = shown.split("rescnn: 1 networks")
    for name in ("robbench1.clean", "robbench1.robust", "robbench2.clean", "separation.robust"):
        assert f"| bound.{name}" in first and f"| bound.{name}" in second
    assert "| bound.robbench1.clean.pgd.sphere.0.01 |" in first
    for title in ("Theorem 1", "Corollary 1", "Theorem 2", "Algorithm 1"):
        cells = shown.partition(f"{title}, ")[2].splitlines()[4].split(" | ")[1:]
        assert len(cells) >= 3 and "-" not in cells, "not all was measured"
    assert "kappa" in second and "kappa" not in first


@pytest.mark.parametrize("name", recipes.NAMES)
def test_missing_data_are_named_before_anything_runs(name: str) -> None:
    done = papers(f"reproduce-{name}", "--scale", "full", "--data", "nowhere")
    assert done.exit_code == 1 and done.stdout == "" and not Path("reproduced").exists()
    assert "nowhere/cifar-10-batches-py\n    from: its authors" in done.stderr
    assert "layout: data_batch_1" in done.stderr
    weights = "nowhere/nas-bench-201\n    from: the authors of NAS-Bench-201"
    assert (weights in done.stderr) == (name == "nas-bench-201-robustness")


def test_a_recipe_runs_its_pipe_and_keeps_records_that_did_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing = ["rb-arch", *"--space fcnn --depth 2 --sample 1 --width 4".split()]
    monkeypatch.setattr(recipes, "pipe", lambda name, setting: [listing])
    done = papers("reproduce-theory", "--scale", "tiny", "--reproduced", "made")
    assert done.exit_code == 0 and "fcnn: 1 networks" in done.stdout
    records = Path("made/theory-tiny.jsonl")
    first = records.stat().st_mtime_ns
    papers("reproduce-theory", "--scale", "tiny", "--reproduced", "made")
    assert records.stat().st_mtime_ns == first and [*Path("made").glob("*.new")] == []
    fails = [["rb-arch", "--index", "99999999"], ["cat"]]
    monkeypatch.setattr(recipes, "pipe", lambda name, setting: fails)
    failed = papers("reproduce-theory", "--scale", "tiny", "--reproduced", "made")
    assert failed.exit_code == 1 and "to continue" in failed.stderr and records.stat().st_mtime_ns == first


@pytest.mark.parametrize("name", recipes.NAMES)
@pytest.mark.parametrize("scale", ["mini", "full"])
def test_every_command_of_a_recipe_is_one(name: str, scale: str) -> None:
    """The commands of the larger scales are parsed, with all options, but not run."""
    every = commands(name, scale)
    assert len(every) >= 5
    for tool, *arguments in every:
        assert parsed(tool.removeprefix("rb-"), *arguments), arguments


@pytest.mark.parametrize("scale", ["mini", "full"])
def test_the_columns_of_prbench_are_at_the_radii_of_its_recipe(scale: str) -> None:
    every = commands("prbench", scale)
    lists = [one[one.index("--gamma") + 1] for one in every if "--gamma" in one]
    measured = {f"{float(Fraction(word)):g}" for one in lists for word in one.split(",")}
    columns = reproduce_prbench.metrics(scale).values()
    names = [name.split(".", 2) for name in columns if name.startswith(("pr.", "probacc."))]
    shown = {re.sub(r"\.0\.\d+$", "", radius) if kind == "probacc" else radius for kind, _, radius in names}
    assert {f"{float(radius):g}" for radius in shown} <= measured
