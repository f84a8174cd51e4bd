"""Reproductions: the recipes of pipes run at SCALE=tiny, and what they print; missing data are named."""

from __future__ import annotations

import json
import re
import shlex
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rbtools.measures import MEASURES
from rbtools.papers import reproduce_prbench
from rbtools.papers.__main__ import main
from rbtools.papers.recipes import RECIPES, Setting
from tests import runner
from tests.runner import parsed

NAMES = ("nas-bench-201-robustness", "nas-robbench-201", "prbench")

pytestmark = pytest.mark.slow


def recipe(name: str, scale: str) -> str:
    """The pipe of a recipe, on one line."""
    return re.sub(r" +", " ", RECIPES[name](Setting(scale, jobs="1")))


def stage(command: str, text: str) -> str:
    tool, *arguments = shlex.split(command)
    if tool == "cat":
        return text
    done = runner.run(tool.removeprefix("rb-"), arguments, text)
    assert done.exit_code == 0, f"$ {command}\n{done.stderr[-2000:]}"
    return done.stdout


def apart(text: str, mark: str) -> list[str]:
    """The parts of a shell text between marks that stand outside groups, loops and quotes."""
    parts, depth = [""], 0
    for token in re.findall(r"\"[^\"]*\"|'[^']*'|\w+|; | \| |.", text):
        depth += (token in ("{", "for")) - (token in ("}", "done"))
        if token == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip(" ;") for part in parts if part.strip(" ;")]


def run(text: str) -> str:
    """What a recipe writes: of commands, loops (for x in a b; do ...; done), groups ({ ...; }), and pipes."""
    return "".join(_pipe(one) for one in apart(text, "; "))


def _pipe(text: str) -> str:
    first, *stages = apart(text, " | ")
    loop = re.fullmatch(r"for (\w+) in ([^;]*); do (.*?);? done", first)
    if loop:
        written = "".join(run(loop[3].replace(f"${loop[1]}", value)) for value in loop[2].split())
    elif first.startswith("{"):
        written = run(first[1:-1])
    else:
        written = stage(first, "")
    for command in stages:
        written = stage(command, written)
    return written


def words(pipe: str) -> list[str]:
    """The commands of a recipe."""
    return re.findall(r"rb-[a-z]+ [^|;}]*", pipe)


def parses(command: str) -> None:
    """A command with all its options is understood; it is not run."""
    named = {"how": "cutout", "noise": "gaussian", "set": "cifar10", "classes": "10", "search": "darts"}
    tool, *arguments = shlex.split(re.sub(r"\$(\w+)", lambda word: named.get(word[1], "1"), command))
    arguments = [word for word in arguments if word != "done"]
    assert parsed(tool.removeprefix("rb-"), *arguments), command


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
    text = run(recipe(name, "tiny"))
    records = [json.loads(line) for line in text.splitlines()]
    assert records and all("error" not in record for record in records)
    shown = compare(name, text)
    assert "printed / ours / difference" in shown
    assert re.search(r"\d+ of \d+ claims hold here", shown)
    cells = re.findall(r"[-\d.]+ / [-\d.]+ / [+-][\d.]+", shown)
    assert len(cells) >= 6, "next to nothing of the paper was measured"


def test_the_curves_of_wci_end_with_correlations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEASURES.load("wci"), "size", (1, 4))
    text = run(recipe("wci", "tiny"))
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
    text = run(recipe("theory", "tiny"))
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


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
@pytest.mark.parametrize("name", RECIPES)
def test_missing_data_are_named_before_anything_runs(name: str, how: tuple[str, ...]) -> None:
    done = papers(f"reproduce-{name}", "--scale", "full", "--data", "nowhere", *how)
    assert done.exit_code == 1 and done.stdout == "" and not Path("reproduced").exists()
    assert "nowhere/cifar-10-batches-py\n    from: its authors" in done.stderr
    assert "layout: data_batch_1" in done.stderr
    weights = "nowhere/nas-bench-201\n    from: the authors of NAS-Bench-201"
    assert (weights in done.stderr) == (name == "nas-bench-201-robustness")


def test_names_are_listed_and_others_refused() -> None:
    listed = papers().stdout.split()
    assert listed[:3] == [
        "reproduce-nas-bench-201-robustness",
        "reproduce-nas-robbench-201",
        "reproduce-prbench",
    ]
    assert "figures-wci" in listed
    assert papers("reproduce-prbench", "--scale", "large").exit_code == 2
    assert "no table is named" in papers("reproduce-search").stderr


def test_a_recipe_runs_its_pipe_and_keeps_records_that_did_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        RECIPES, "theory", lambda setting: "rb-arch --space fcnn --depth 2 --sample 1 --width 4"
    )
    done = papers("reproduce-theory", "--scale", "tiny", "--reproduced", "made")
    assert done.exit_code == 0 and "fcnn: 1 networks" in done.stdout
    records = Path("made/theory-tiny.jsonl")
    first = records.stat().st_mtime_ns
    papers("reproduce-theory", "--scale", "tiny", "--reproduced", "made")
    assert records.stat().st_mtime_ns == first and [*Path("made").glob("new-*")] == []
    monkeypatch.setitem(RECIPES, "theory", lambda setting: "rb-arch --index 99999999 | cat")
    failed = papers("reproduce-theory", "--scale", "tiny", "--reproduced", "made")
    assert failed.exit_code == 1 and "goes on there" in failed.stderr and records.stat().st_mtime_ns == first


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("scale", ["mini", "full"])
def test_every_command_of_a_recipe_is_one(name: str, scale: str) -> None:
    """The commands of the larger scales are parsed, with all options, but not run."""
    commands = words(recipe(name, scale))
    assert len(commands) >= (6 if name in NAMES else 3 if name == "wci" else 1)
    for command in commands:
        parses(command)


@pytest.mark.parametrize("scale", ["mini", "full"])
def test_the_columns_of_prbench_are_at_the_radii_of_its_recipe(scale: str) -> None:
    lists = re.findall(r"--gamma (\S+)", recipe("prbench", scale))
    measured = {f"{float(Fraction(word)):g}" for one in lists for word in one.split(",")}
    columns = reproduce_prbench.metrics(scale).values()
    names = [name.split(".", 2) for name in columns if name.startswith(("pr.", "probacc."))]
    shown = {re.sub(r"\.0\.\d+$", "", radius) if kind == "probacc" else radius for kind, _, radius in names}
    assert {f"{float(radius):g}" for radius in shown} <= measured
