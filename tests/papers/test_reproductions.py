"""Reproductions: the recipes of pipes run at SCALE=tiny, and what they print; missing data are named."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from rbtools.cli import tools

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("nas-bench-201-robustness", "nas-robbench-201", "prbench")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("make"), reason="needs make")]


def recipe(name: str, scale: str) -> str:
    """The pipe of a recipe, as make would give it to the shell."""
    environment = Path("ready")  # a set-up that counts as whole: make has nothing to install
    environment.mkdir(exist_ok=True)
    for stamp in ("venv.stamp", "run.stamp"):
        (environment / stamp).touch()
    line = ["make", "-n", f"reproduce-{name}", f"SCALE={scale}", "JOBS=1", f"VENV={environment.absolute()}"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace("\\\n", " ")
    (pipe,) = re.findall(r"mkdir -p '[^']*'; (.*?) > '[^']*\.jsonl'", text, re.S)
    return " ".join(pipe.split())


def stage(command: str, text: str) -> str:
    tool, *arguments = shlex.split(command)
    if tool == "cat":
        return text
    main = tools.tool(tool.removeprefix("rb-")).command
    done = CliRunner().invoke(main, arguments, input=text, prog_name=tool)
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
    main = tools.tool(tool.removeprefix("rb-")).command
    done = CliRunner().invoke(main, [*arguments, "--print-config"], prog_name=tool)
    assert done.exit_code == 0, f"$ {command}\n{done.stderr}"


def compare(name: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    script = ROOT / f"bench/reproduce_{name.replace('-', '_')}.py"
    return subprocess.run(
        [sys.executable, str(script), *arguments], input=text, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_ends_with_the_published_values_beside_ours(name: str) -> None:
    text = run(recipe(name, "tiny"))
    records = [json.loads(line) for line in text.splitlines()]
    assert records and all("error" not in record for record in records)
    done = compare(name, "--scale", "tiny", text=text)
    assert done.returncode == 0, done.stderr
    assert "published / ours / difference" in done.stdout
    assert re.search(r"\d+ of \d+ claims hold here", done.stdout)
    cells = re.findall(r"[-\d.]+ / [-\d.]+ / [+-][\d.]+", done.stdout)
    assert len(cells) >= 6, "next to nothing of the paper was measured"


def test_the_curves_of_wci_end_with_correlations() -> None:
    text = run(recipe("wci", "tiny"))
    (record,) = [json.loads(line) for line in text.splitlines()]
    assert record["train"]["config"]["regularize"] == ["l2"]
    done = compare("wci", "--scale", "tiny", text=text)
    assert done.returncode == 0, done.stderr
    history = record["train"]["history"]
    assert f"| l2 | 3 | {history['wci'][2]:.4g} | {history['wci.trace'][2]:.4g} |" in done.stdout
    # rho of 3 ranks is one of four numbers, or none where two epochs are equal.
    assert re.search(r"\| l2 \| 3 \| (-?[10]\.[05]0|-?0\.87) ", done.stdout), done.stdout
    assert re.search(r"\d+ of \d+ claims hold here", done.stdout)
    bounds = [entry["metric"] for entry in record["evals"] if entry.get("measure") == "bound"]
    assert bounds == [f"bound.wci{number}.pgd.32" for number in (4, 2, 1)]
    assert "| bound.wci2.pgd.32 | sum_l \\|W_l\\|^2 / (2 sigma_l^2) |" in done.stdout
    commands = [command for scale in ("mini", "full") for command in words(recipe("wci", scale))]
    for command in commands:
        parses(command)
    assert len(commands) == 6


def test_the_theory_ends_with_bounds_of_its_own_networks() -> None:
    text = run(recipe("theory", "tiny"))
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["arch"]["space"] for record in records] == ["fcnn", "rescnn"]
    done = compare("theory", "--scale", "tiny", text=text)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("rescnn: 1 networks")
    for name in ("robbench1.clean", "robbench1.robust", "robbench2.clean", "separation.robust"):
        assert f"| bound.{name}" in first and f"| bound.{name}" in second
    assert "kappa" in second and "kappa" not in first
    for scale in ("mini", "full"):
        for command in words(recipe("theory", scale)):
            parses(command)


@pytest.mark.parametrize("name", (*NAMES, "wci", "theory"))
def test_missing_data_are_named_before_anything_runs(name: str) -> None:
    done = compare(name, "--scale", "full", "--need", "--data", "nowhere")
    assert done.returncode == 1 and done.stdout == ""
    assert "nowhere/cifar-10-batches-py\n    from: its authors" in done.stderr
    assert "layout: data_batch_1" in done.stderr
    assert compare(name, "--scale", "mini", "--need").returncode == 0


def test_missing_weights_are_named() -> None:
    done = compare("nas-bench-201-robustness", "--scale", "full", "--need", "--weights", "nowhere")
    assert (
        "nowhere\n    from: the authors of NAS-Bench-201" in done.stderr and "000000-FULL.pth" in done.stderr
    )


def test_a_scale_that_is_none_is_refused() -> None:
    done = compare("prbench", "--scale", "large", "--need")
    assert done.returncode == 2 and "invalid choice: 'large'" in done.stderr


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["mini", "full"])
def test_every_command_of_a_recipe_is_one(name: str, scale: str) -> None:
    """The commands of the larger scales are parsed, with all options, but not run."""
    commands = words(recipe(name, scale))
    assert len(commands) >= 6
    for command in commands:
        parses(command)


@pytest.mark.parametrize("scale", ["mini", "full"])
def test_the_columns_of_prbench_are_at_the_radii_of_its_recipe(
    scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = re.findall(r"--gamma (\S+)", recipe("prbench", scale))
    measured = {f"{float(Fraction(word)):g}" for one in lists for word in one.split(",")}
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    columns = runpy.run_path(str(ROOT / "bench" / "reproduce_prbench.py"))["metrics"](scale).values()
    names = [name.split(".", 2) for name in columns if name.startswith(("pr.", "probacc."))]
    shown = {re.sub(r"\.0\.\d+$", "", radius) if kind == "probacc" else radius for kind, _, radius in names}
    assert {f"{float(radius):g}" for radius in shown} <= measured
