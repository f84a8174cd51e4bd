"""rb-plot: files by their ending, what is refused, what is said on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import rbtools
from rbtools.plots import PLOTS
from rbtools.plots.base import encode
from tests import runner
from tests.runner import lines, model


def record(name: str, **metrics: float) -> dict[str, Any]:
    return model(name, metrics=metrics)


SOME = [record("a", acc=0.5), record("b", acc=0.75), record("c", acc=0.8)]


def run(words: str | list[str], records: list[dict[str, Any]] | str = SOME) -> Result:
    return runner.run("plot", words, records)


STARTS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


@pytest.mark.parametrize("ending", STARTS)
@pytest.mark.slow
def test_the_ending_says_how_and_the_same_records_make_the_same_bytes(ending: str) -> None:
    for name in ("one", "two"):
        result = run(["hist", "--metric", "acc", "-o", f"{name}.{ending}"])
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == f"rb-plot: {name}.{ending} shows 3 records.\n"
    data = Path(f"one.{ending}").read_bytes()
    assert data.startswith(STARTS[ending]) and data == Path(f"two.{ending}").read_bytes()
    assert [path.name for path in sorted(Path().iterdir())] == [f"one.{ending}", f"two.{ending}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.jpg"], "-o x.jpg ends in '.jpg'. Expected a file name that ends in .png, .svg, .pdf."),
        (["-o", "x.png", "--metric", "pgd*"], "--metric: No metric matches 'pgd*'. Metrics: acc."),
        (["-o", "nowhere/x.png"], "Cannot write nowhere/x.png: nowhere does not exist. Name a file"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    result = run(["hist", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_file_is_not_written_over_its_own_records() -> None:
    Path("x.png").write_text(lines(*SOME))
    result = run("hist -o x.png x.png")
    assert result.exit_code == 2 and "x.png is both read and written" in result.stderr


def test_a_heat_map_takes_what_rb_corr_writes() -> None:
    some = [record("abc"[n], acc=0.1 * n, pgd=0.2 * n, ge=-n) for n in range(3)]
    pairs = runner.run("corr", "--metric '*'", some).stdout
    result = run("heatmap -o corr.png", pairs)
    assert (result.exit_code, result.stderr) == (0, "rb-plot: corr.png shows 9 correlations.\n")
    assert run("heatmap -o own.png", some).exit_code == 0
    assert Path("corr.png").read_bytes() == Path("own.png").read_bytes()
    mixed = run("heatmap -o x.png", pairs + lines(*some))
    assert mixed.exit_code == 2 and "Give only one of them" in mixed.stderr


def test_corruptions_draws_an_image_without_records() -> None:
    for name in ("one", "two"):
        result = run(["corruptions", "fog,contrast", "--severity", "1,5", "-o", f"{name}.png"], "")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == f"rb-plot: {name}.png shows digits, image 2, under 2 corruptions.\n"
    assert Path("one.png").read_bytes() == Path("two.png").read_bytes()


def test_the_function_for_notebooks_draws_the_same() -> None:
    assert run("hist --metric acc --bins 4 -o x.svg").exit_code == 0
    figure = rbtools.plot(SOME, "hist", metric="acc", bins=4)
    assert Path("x.svg").read_bytes() == encode(figure, "svg")


def test_every_plot_is_listed() -> None:
    listed = [line.split()[0] for line in run("--list").stdout.splitlines()]
    assert {*PLOTS, "report", "corruptions", "adv"} == {*listed}
