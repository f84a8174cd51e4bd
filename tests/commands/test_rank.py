"""rb-rank: order, ties, what is left out, every format, and the table on a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests import runner
from tests.runner import Record

run = partial(runner.run, "rank")


def out(words: str, given: list[Record]) -> str:
    result = run(words, given)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def ranked(words: str, given: list[Record]) -> list[Record]:
    return [json.loads(line) for line in out(words, given).splitlines()]


def places(words: str, given: list[Record]) -> list[tuple[int | None, str]]:
    return [(one["rank"], one["arch"]["name"]) for one in ranked(words, given)]


def test_failed_records_and_bad_lines_are_left_out_and_counted() -> None:
    failed = '{"schema":1,"arch":{"name":"x"},"error":{"tool":"rb-train","message":"no"},"metrics":{"acc":9}}'
    lines = [failed, "hello", runner.lines(NETS[0]).strip(), "[]", failed]
    result = run("--by acc", "".join(f"{line}\n" for line in lines))
    assert result.exit_code == 1
    assert [json.loads(line)["rank"] for line in result.stdout.splitlines()] == [1]
    assert result.stderr.splitlines()[2:] == [
        "rb-rank: 2 failed records left out.",
        "rb-rank: 2 bad lines left out.",
    ]


def net(
    name: str, none: int, method: str = "pgd", seed: int = 0, dataset: str = "c10", **metrics: float
) -> Record:
    train = {"method": method, "seed": seed}
    arch = {"name": name, "none": none}
    return {"schema": 1, "arch": arch, "dataset": dataset, "train": train, "metrics": metrics}


NETS = [
    net("a", 1, acc=0.5, pgd=0.5),
    net("b", 0, acc=0.75, pgd=0.25),
    net("c", 1, acc=0.75, pgd=0.5),
    net("d", 0, acc=0.25, pgd=0.125),
]


def test_the_best_of_each_group() -> None:
    # Table 5 of RobBench in small: the best architecture for each number of zeroize operations.
    assert places("--by acc --within arch.none --top 1", NETS) == [(1, "b"), (1, "c")]
    ranks = [(1, "b"), (2, "d"), (1, "a"), (1, "c")]
    assert places("--by pgd --within arch.none", NETS) == ranks


def evaluated(**found: tuple[float, int]) -> Record:
    """A record of one checkpoint with metrics, each of so many images."""
    evals = [{"metric": name, "value": value, "n": n} for name, (value, n) in found.items()]
    return runner.model("a", *evals, checkpoint="sha256:1")


@pytest.mark.parametrize("more", ["", "--where 'pgd < 1'", "--aggregate arch.name", "--top 1"])
@pytest.mark.parametrize("turned", [False, True])
def test_two_evaluations_of_a_checkpoint_are_one_record(more: str, turned: bool) -> None:
    parts = [evaluated(acc=(0.5, 40), pgd=(0.25, 12)), evaluated(acc=(0.75, 8), fgsm=(0.375, 8))]
    result = run(f"--by fgsm {more}", parts[::-1] if turned else parts)
    found = runner.one(result)
    assert found["metrics"] == {"acc": 0.5, "pgd": 0.25, "fgsm": 0.375} and found["rank"] == 1
    assert {one["metric"]: one["value"] for one in found["evals"]} == found["metrics"]
    assert "1 record merged with an earlier one of the same model." in result.stderr


def test_a_difference_of_more_images_counts() -> None:
    few, many = evaluated(ge=(0.5, 0)), evaluated(ge=(0.25, 0))
    few["evals"][0]["n"], many["evals"][0]["n"] = [10, 10], [20, 10]
    assert json.loads(run("--by ge", [many, few]).stdout)["metrics"] == {"ge": 0.25}


SEEDS = [
    net(name, 0, method, seed, acc=acc, pgd=pgd)
    for name, method, seed, acc, pgd in (
        ("a", "pgd", 0, 0.5, 0.25),
        ("a", "pgd", 1, 0.75, 0.25),
        ("a", "erm", 0, 0.875, 0.0),
        ("b", "pgd", 0, 0.25, 0.5),
        ("a", "erm", 1, 1.0, 0.125),
    )
]


@pytest.mark.skipif(not shutil.which("script"), reason="needs script")
def test_a_terminal_gets_the_same_table_with_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    Path("seeds.jsonl").write_text(runner.lines(*SEEDS))
    words = ["script", "-qec", "rb-rank seeds.jsonl", os.devnull]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=300).stdout
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*[mK]", "", shown).splitlines()]
    assert "\x1b[" in shown and lines == out("--format table", SEEDS).splitlines()


def test_aggregate_takes_the_mean_over_seeds() -> None:
    found = ranked("--by acc --aggregate seed", SEEDS)
    assert [(one["rank"], one["arch"]["name"], one["train"], one["metrics"]["acc"]) for one in found] == [
        (1, "a", {"method": "erm"}, 0.9375),
        (2, "a", {"method": "pgd"}, 0.625),
        (3, "b", {"method": "pgd", "seed": 0}, 0.25),
    ]
    assert found[0]["aggregated"] == {"over": ["seed"], "records": 2, "seeds": [0, 1]}
    assert found[1]["evals"][0]["std"] == pytest.approx(0.125 * 2**0.5)
    table = out("--by acc --aggregate seed --format table --metric pgd", SEEDS)
    assert table.splitlines()[2].split() == "1 a c10 erm 0.9375 ± 0.0884 0.0625 ± 0.0884".split()


def test_seeds_first_and_then_all_else() -> None:
    found = ranked("--by acc --aggregate seed --aggregate-by train.method", SEEDS)
    assert [one["metrics"]["acc"] for one in found] == [0.9375, 0.4375]  # (0.625 + 0.25) / 2


def test_expressions_have_deviations_too() -> None:
    lines = out("--pivot train.method --metric acc,100*acc --format csv", SEEDS).splitlines()
    assert lines[0] == "method,records,acc,acc_std,100*acc,100*acc_std"
    for line in lines[1:]:
        _, _, acc, deviation, percent, other = line.split(",")
        assert float(percent) == pytest.approx(100 * float(acc))
        assert float(other) == pytest.approx(100 * float(deviation)) and float(other) > 0


def test_bands_and_rank_intervals() -> None:
    given = (("a", 0.9, [0.87, 0.93]), ("b", 0.88, [0.84, 0.91]), ("c", 0.5, [0.45, 0.55]))
    some = [
        runner.model(name, {"metric": "acc", "value": value, "n": 400, "ci95": ends})
        for name, value, ends in given
    ]
    result = run("--by acc --ci --seed 1", some)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["rank"], one["band"], one["rank_ci95"]) for one in found] == [
        (1, 1, [1, 2]),
        (2, 1, [1, 2]),
        (3, 2, [3, 3]),
    ]
    assert found[0]["ranking"] == {"by": "acc", "ci95": [0.87, 0.93], "bootstrap": 1000, "seed": 1}


def attacked(method: str, **found: tuple[float, list[float]]) -> Record:
    """A record with shares of 100 images and their intervals."""
    evals = [
        {"metric": metric.replace("_", "."), "value": value, "n": 100, "ci95": ends}
        for metric, (value, ends) in found.items()
    ]
    return runner.model("net", *evals, dataset="digits", train={"method": method})


ATTACKED = [
    attacked("erm", acc=(0.95, [0.888, 0.978]), pgd20_8=(0.0, [0.0, 0.037])),
    attacked("pgd", acc=(0.8, [0.711, 0.867]), pgd20_8=(0.5, [0.404, 0.596])),
]


@pytest.mark.parametrize("rows", ["--columns method --by pgd20.8", "--pivot train.method --by pgd20.8"])
def test_columns_in_the_order_of_the_user_with_intervals_and_the_best_in_bold(rows: str) -> None:
    words = f"{rows} --metric acc,pgd20.8 --percent --digits 1 --plus-minus --format md"
    assert out(words, ATTACKED).replace("\\", "") == (
        "| method | clean [%] | PGD-20, ε = 8/255 [%] |\n"
        "| --- | ---: | ---: |\n"
        "| pgd | 80.0 ± 7.8 | **50.0 ± 9.6** |\n"
        "| erm | **95.0 [88.8, 97.8]** | 0.0 [0.0, 3.7] |\n"
        "\n± is half of the 95 % interval, n = 100."
        " Brackets are 95 % intervals whose middle is far from the value.\n"
    )


def test_the_metric_of_the_order_comes_first_unless_it_is_listed() -> None:
    head = out("--by pgd20.8 --columns rank,train.method --metric acc --format csv", ATTACKED).splitlines()[0]
    assert head == "rank,method,pgd20.8,pgd20.8_low,pgd20.8_high,pgd20.8_n,acc,acc_low,acc_high,acc_n"
    for words, problem in (("x --format md", "no metric or field 'x'"), ("name", "the format is jsonl")):
        result = run(f"--by acc --columns {words}", ATTACKED)
        assert result.exit_code == 2 and problem in result.stderr


@pytest.mark.parametrize(
    ("width", "hidden", "brackets"), [(90, "", 4), (70, "dataset", 4), (60, "the intervals", 0)]
)
def test_a_narrow_table_has_all_intervals_or_none(
    width: int, hidden: str, brackets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = out("--by acc --format table", ATTACKED)
    assert text.count("[") == brackets and max(map(len, text.splitlines())) <= width
    assert ("Brackets are 95 % intervals, n = 100." in text) == (brackets > 0)
    assert (f"not shown: {hidden} (--columns" in text) == bool(hidden)


def test_a_column_has_equal_decimals() -> None:
    given = [net("a", 0, cost=9.5), net("b", 0, cost=25.123), net("c", 0, cost=7)]
    lines = out("--by cost --lower cost --format md", given).splitlines()
    assert [line.split("|")[-2].strip("* ") for line in lines[2:]] == ["7.00", "9.50", "25.12"]


def test_latex_is_no_wider_than_a_line_and_its_note_is_printed() -> None:
    text = out("--by acc --format latex", ATTACKED)
    head, _, tail = text.partition(r"\begin{adjustbox}{max width=\linewidth}")
    assert head == "% \\usepackage{booktabs,adjustbox}\n"
    note = "\n\\par\\smallskip{\\footnotesize Brackets are 95 \\% intervals, n = 100.\\par}\n"
    assert tail.endswith(r"\end{adjustbox}" + note)


PIVOT = "--pivot train.method --metric acc,pgd"


def test_methods_as_rows_and_the_best_in_bold() -> None:
    assert out(f"{PIVOT} --format md", SEEDS) == (
        "| method | records | clean | pgd |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| pgd | 3 | 0.5000 ± 0.2500 | **0.3333 ± 0.1443** |\n"
        "| erm | 2 | **0.9375 ± 0.0884** | 0.0625 ± 0.0884 |\n"
        "\n± is the standard deviation over the 2 to 3 records averaged in each row.\n"
    )
    assert out(f"{PIVOT} --format csv", SEEDS[:2]) == (
        "method,records,acc,acc_std,pgd,pgd_std\npgd,2,0.625,0.1767766952966369,0.25,0.0\n"
    )


def test_a_pivot_table_ranked_and_for_each_group() -> None:
    lines = out(f"{PIVOT} --by acc --within arch.name --format md", SEEDS).splitlines()
    assert [line for line in lines if "0." in line or "*arch" in line] == [
        "**arch.name\\: a**",
        "| erm | 2 | **0.9375 ± 0.0884** | 0.0625 ± 0.0884 |",
        "| pgd | 2 | 0.6250 ± 0.1768 | **0.2500 ± 0.0000** |",
        "**arch.name\\: b**",
        "| pgd | 1 | 0.2500 | 0.5000 |",
    ]


def of_images(name: str, **counts: int) -> Record:
    """A record with shares of so many images."""
    evals = [{"metric": metric.replace("_", "."), "value": 0.5, "n": n} for metric, n in counts.items()]
    return runner.model(name, *evals)


def test_a_table_of_several_numbers_of_images_has_them_below() -> None:
    mixed = of_images("a", acc=200, fgsm_8=200, pgd20_8=50)
    below = "200 images: clean; FGSM, ε = 8/255. 50 images: PGD-20, ε = 8/255."
    for given in ([mixed, of_images("b", acc=200, pgd20_8=50)], [mixed]):
        assert below in out("--by acc --format table", given)
    other = run("--by acc --format md", [mixed, of_images("b", acc=200, pgd20_8=100)]).stdout
    assert "50 to 100 images" in other
    assert below.replace("ε", r"$\varepsilon$") in out("--pivot arch.name --format latex", [mixed])


def test_merging_results_of_other_numbers_of_images_is_said() -> None:
    same = {"checkpoint": "sha256:1", "train": {"seed": 0}}
    parts = [{**of_images("a", acc=200), **same}, {**of_images("a", pgd20_8=50), **same}]
    words = "were measured on different numbers of images, such as 'clean' of 200, 'PGD-20, ε = 8/255' of 50."
    for more in ("", "--aggregate seed", "--where 'acc > 0'"):
        assert words in run(f"--by acc {more}", parts).stderr
    assert "numbers of images" not in run("--by acc --metric acc --format md", parts).stderr
    # the columns of each are already of different numbers of images
    twice = [of_images("a", acc=200, pgd20_8=50)] * 2
    assert "numbers of images" not in run("--by acc", twice).stderr


def test_a_mean_over_values_of_other_numbers_of_images_is_said_if_it_is_shown() -> None:
    seeds = [
        {**of_images("a", acc=acc, fgsm_8=50), "train": {"method": "pgd", "seed": seed}}
        for seed, acc in enumerate((50, 200))
    ]
    words = "'clean' has means of values measured on 50 to 200 images."
    assert words in run("--by fgsm.8 --aggregate seed", seeds).stderr
    assert words in run("--by 'mean(acc,fgsm.8)' --metric fgsm.8 --aggregate seed --format md", seeds).stderr
    assert out("--by fgsm.8 --metric fgsm.8 --aggregate seed --format md", seeds)  # without a warning


@pytest.mark.parametrize("option", ["--percent", "--digits 1", "--label acc=A", "--plus-minus"])
def test_options_of_tables_for_people_are_refused_for_programs(option: str) -> None:
    for form in ("jsonl", "csv"):
        result = run(f"--by acc --format {form} {option}", SEEDS)
        assert result.exit_code == 2 and f"the format is {form}." in result.stderr
    assert out(f"--by acc --format md {option}", SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["F1 score", "1e3", "Top-5 (%)", "acc - 1", "acc > 0.5"])
def test_tools_know_a_metric_by_a_name_that_is_no_expression(name: str) -> None:
    """The last record lacks it, so that its value cannot be the expression's."""
    given = [runner.model(f"n{i}", metrics={"acc": 0.1 * i, name: i}) for i in range(1, 5)]
    best_first = [(rank, f"n{5 - rank}") for rank in range(1, 5)]
    for words in (
        f"--by '{name}'",
        f"--by '{name}' --ci",
        f"--pareto '{name}'",
        f"--by '`{name}`' --higher '{name}'",
    ):
        assert places(f"{words} -q", given) == best_first
    if name in ("F1 score", "1e3", "Top-5 (%)"):
        assert [one["rank"] for one in ranked(f"--by '{name}' -q", [*given, runner.model("x")])][4] is None
        assert len(ranked(f"--by acc --where '{name} > 2'", given)) == 2
    assert out(f"--by acc --metric '{name}' --format csv-raw", given).startswith(
        f"rank,name,acc,{name}\n4"[:14]
    )
    assert 'failures="0"' in out(f"--by '{name}' --assert-point '`{name}` > 0' --format junit", given)
    for tool, words in (("corr", f"--rows '{name}' --cols acc"), ("score", f"--weight '{name}=2'")):
        assert runner.run(tool, words, given).exit_code == 0
    for plot in (
        "heatmap",
        f"scatter --x acc --y '{name}'",
        f"bars --metric '{name}'",
        f"hist --metric '{name}'",
    ):
        shown = runner.run("plot", f"{plot} -o x.svg", given)
        assert shown.exit_code == 0, shown.stderr
