"""rb-rank: order, ties, what is left out, every format, and the table on a terminal."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests import runner
from tests.runner import Record, on_a_terminal

FAILED = '{"schema":1,"arch":{"name":"x"},"error":{"tool":"rb-train","message":"no"},"metrics":{"acc":9}}'


def record(name: str, **more: Any) -> Record:
    return {"schema": 1, "arch": {"name": name}, **more}


def model(name: str, method: str, acc: float, pgd: float, score: float | None = None) -> Record:
    """A record as a pipe makes it."""
    metrics = {"acc": acc, "pgd20.8": pgd} | ({} if score is None else {"score": score})
    evals = [
        {"metric": key, "value": value, "n": 100, "ci95": [value - 0.05, value + 0.05]}
        for key, value in list(metrics.items())[:2]
    ]
    train = {"method": method, "seed": 0}
    return record(name, dataset="digits", train=train, metrics=metrics, evals=evals)


TWO = [model("nb201-1", "erm", 0.9, 0.25), model("nb201-1", "trades", 0.8, 0.75)]


def run(words: str, given: list[Record] | str) -> Result:
    return runner.run("rank", words, given)


def out(words: str, given: list[Record]) -> str:
    result = run(words, given)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def ranked(words: str, given: list[Record]) -> list[Record]:
    return [json.loads(line) for line in out(words, given).splitlines()]


def places(words: str, given: list[Record]) -> list[tuple[int | None, str]]:
    return [(one["rank"], one["arch"]["name"]) for one in ranked(words, given)]


def accs(*values: float | None) -> list[Record]:
    """Records a, b, c, ... with these accuracies; None for none."""
    return [
        record("abcdefgh"[n], metrics={} if value is None else {"acc": value})
        for n, value in enumerate(values)
    ]


# --- order ----------------------------------------------------------------------------------------


def test_a_ranked_record_as_it_is_written() -> None:
    assert out("--by acc", [record("a", metrics={"acc": 0.5}, mine={"x": 1})]) == (
        '{"schema":1,"arch":{"name":"a"},"metrics":{"acc":0.5},"mine":{"x":1},"rank":1}\n'
    )


def test_the_best_comes_first_and_equals_share_a_rank() -> None:
    some = accs(0.5, 0.75, 0.5, 1.0, 0.75)
    assert places("--by acc", some) == [(1, "d"), (2, "b"), (2, "e"), (4, "a"), (4, "c")]
    assert places("--by acc:lower", some) == [(1, "a"), (1, "c"), (3, "b"), (3, "e"), (5, "d")]
    assert places("--by acc --top 3", some) == [(1, "d"), (2, "b"), (2, "e")]


def test_less_is_better_where_the_metric_says_so() -> None:
    some = [record(name, metrics={"ge.acc": value}) for name, value in (("a", 3), ("b", 1))]
    assert places("--by mean(ge.*)", some) == [(1, "b"), (2, "a")]
    assert places("--by ge.acc:higher", some) == [(1, "a"), (2, "b")]


def test_a_record_without_the_value_comes_last_and_is_counted() -> None:
    result = run("--by acc", accs(None, 0.5, None, 0.75))
    assert [one["rank"] for one in runner.records(result)] == [1, 2, None, None]
    assert (result.exit_code, result.stderr) == (0, "rb-rank: 2 records without acc, ranked last.\n")


def test_fields_of_the_architecture_rank_too() -> None:
    some = [{"schema": 1, "arch": {"name": name, "params": count}} for name, count in (("a", 9), ("b", 7))]
    assert places("--by params", some) == [(1, "b"), (2, "a")]
    assert places("--by arch.params:higher", some) == [(1, "a"), (2, "b")]


# --- what to rank by when nobody says -------------------------------------------------------------


def test_the_score_if_any_record_has_one() -> None:
    some = [record("a", metrics={"acc": 1}), record("b", metrics={"acc": 0, "score": 0.5})]
    result = run("", some)
    assert [one["arch"]["name"] for one in runner.records(result)] == ["b", "a"]
    assert result.stderr == "rb-rank: 1 record without score, ranked last.\n"


def test_else_what_was_evaluated_last() -> None:
    assert places("", TWO) == [(1, "nb201-1"), (2, "nb201-1")]
    assert json.loads(out("", TWO).splitlines()[0])["train"]["method"] == "trades"
    result = run("-v", TWO)
    assert result.stderr == "rb-rank: ranked by pgd20.8, higher is better.\n"


def test_a_metric_whose_name_is_no_expression_is_ranked_by_all_the_same() -> None:
    some = [record("a", metrics={"my metric!": 1}), record("b", metrics={"my metric!": 2})]
    assert places("", some) == [(1, "b"), (2, "a")]


def test_nothing_to_rank_by() -> None:
    result = run("", accs(None, None))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "rb-rank: error: No record has a metric to rank by. Evaluate the models first, for example with"
        " rb-attack pgd --eps 8.\n"
    )


# --- what is left out -----------------------------------------------------------------------------


def test_failed_records_and_bad_lines_are_left_out_and_counted() -> None:
    lines = [FAILED, "hello", runner.lines(*accs(0.5)).strip(), "[]", FAILED]
    result = run("--by acc", "".join(f"{line}\n" for line in lines))
    assert result.exit_code == 1
    assert [json.loads(line)["rank"] for line in result.stdout.splitlines()] == [1]
    said = result.stderr.splitlines()
    assert said[0].startswith("rb-rank: error: line 2 is not JSON")
    assert said[1].startswith("rb-rank: error: line 4 is a list")
    assert said[2:] == ["rb-rank: 2 failed records left out.", "rb-rank: 2 bad lines left out."]


@pytest.mark.parametrize("words", ["", "--by acc", "--format table", "--format csv"])
def test_only_failed_records_leave_nothing(words: str) -> None:
    result = run(words, FAILED + "\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "rb-rank: 1 failed record left out.\n"


# --- formats --------------------------------------------------------------------------------------


def test_table() -> None:
    assert out("--by pgd20.8 --format table", TWO) == (
        "rank  name     dataset  method        PGD-20, ε = 8/255                    clean\n"
        "────────────────────────────────────────────────────────────────────────────────\n"
        "   1  nb201-1  digits   trades  0.7500 [0.7000, 0.8000]  0.8000 [0.7500, 0.8500]\n"
        "   2  nb201-1  digits   erm     0.2500 [0.2000, 0.3000]  0.9000 [0.8500, 0.9500]\n"
    )


def test_jsonl_is_the_default_where_no_terminal_is() -> None:
    assert out("--by acc", TWO) == out("--by acc --format jsonl", TWO)


# --- the table on a terminal ----------------------------------------------------------------------


def wide(number: int, method: str, robust: float) -> Record:
    """A record with many metrics, one of them with an interval."""
    metrics = {"acc": 0.98, "seconds_per_epoch": 1.25, "pgd20.32": robust, "pr.uniform.0.1": 0.9}
    metrics |= {"probacc.uniform.0.1.0.05": 0.9, "train.acc": 1.0, "score": robust}
    metrics |= {f"corrupt.fog.{severity}": 0.5 for severity in range(1, 6)}
    ends = {"pgd20.32": {"ci95": [robust - 0.04, robust + 0.04]}}
    evals = [{"metric": name, "value": value, **ends.get(name, {})} for name, value in metrics.items()]
    train = {"method": method, "seed": 0}
    return record(f"nb201-{number}", dataset="digits", train=train, metrics=metrics, evals=evals)


WIDE = [wide(13714, "trades", 0.83), wide(13714, "erm", 0.11), wide(7, "trades", 0.5)]


def shown(columns: int, words: str = "", **environment: str) -> str:
    """What rb-rank shows on a terminal so wide."""
    Path("wide.jsonl").write_text(runner.lines(*WIDE))
    return on_a_terminal(f"rb-rank {words} wide.jsonl", columns, **environment)


def plain(text: str) -> list[str]:
    """The lines without their colours and what follows the text."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*[mK]", "", text).splitlines()]


def test_80_columns_show_whole_cells_and_say_what_is_not_shown() -> None:
    lines = plain(shown(80))
    assert max(map(len, lines)) <= 80
    assert lines[:8] == [
        "                                                                  ProbAcc",
        "                                                             PR  uniform,",
        "                                              PGD-20,  uniform,  γ = 0.1,",
        "rank  name         method   score   clean  ε = 32/255   γ = 0.1  ρ = 0.05",
        "─" * 73,
        "   1  nb201-13714  trades  0.8300  0.9800      0.8300    0.9000    0.9000",
        "   2  nb201-7      trades  0.5000  0.9800      0.5000    0.9000    0.9000",
        "   3  nb201-13714  erm     0.1100  0.9800      0.1100    0.9000    0.9000",
    ]
    assert " ".join(lines[9:]) == (
        "not shown: the intervals of 1 column, dataset, seconds_per_epoch, train.acc, corrupt.fog.1,"
        " corrupt.fog.2, corrupt.fog.3, corrupt.fog.4 and 1 more (--metric chooses columns; --format jsonl"
        " has all)"
    )


def test_a_wide_terminal_shows_intervals_and_every_metric_but_details() -> None:
    lines = plain(shown(300))
    assert max(map(len, lines)) <= 120  # wider lines are hard to read
    assert lines[5] == (
        "   1  nb201-13714  digits   trades  0.8300  0.9800       1.25  0.8300 [0.7900, 0.8700]"
        "    0.9000    0.9000  1.0000"
    )
    assert lines[-2].startswith("not shown: corrupt.fog.1, corrupt.fog.2, corrupt.fog.3, ")


def test_a_wide_table_in_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (72, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, out("--format table", WIDE).splitlines())) <= columns
    monkeypatch.delenv("COLUMNS")
    assert "severity 5" in out("--format table", WIDE).splitlines()[3]


def test_long_names_lose_their_middle() -> None:
    name = "checkpoint-" + "x" * 40 + "-last"
    (row,) = out("--by acc --format table", [record(name, metrics={"acc": 1})]).splitlines()[2:]
    assert row.split() == ["1", "checkpoint-xxxx…xxxxxxxxxx-last", "1"]


def test_a_narrow_terminal_keeps_rank_name_and_key() -> None:
    lines = plain(shown(24))
    assert [line.split() for line in lines[2:5]] == [
        ["1", "nb201-13714", "0.8300"],
        ["2", "nb201-7", "0.5000"],
        ["3", "nb201-13714", "0.1100"],
    ]


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours(settings: dict[str, str]) -> None:
    colours = re.findall(r"\x1b\[([0-9;]*)m", shown(100, **settings))
    assert set(colours) <= {"", "0", "1"}


def test_a_terminal_can_have_records_too() -> None:
    assert json.loads(shown(80, "--format jsonl --top 1"))["rank"] == 1


# --- several keys, conditions, groups -------------------------------------------------------------


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


def test_several_keys() -> None:
    assert places("--by acc,pgd", NETS) == [(1, "c"), (2, "b"), (3, "a"), (4, "d")]
    lower = places("--by acc:lower --by pgd:lower", NETS)
    assert lower == [(1, "d"), (2, "a"), (3, "b"), (4, "c")]
    assert places("--by acc", NETS)[:2] == [(1, "b"), (1, "c")]


def test_where_leaves_out_what_it_does_not_hold_for() -> None:
    assert places("--by acc --where 'arch.none == 0 and acc < 0.5'", NETS) == [(1, "d")]
    result = run("--by acc --where 'fgsm > 0'", [*NETS, net("e", 0, acc=1, fgsm=1)])
    assert result.stderr == "rb-rank: 4 records without a name in --where left out.\n"
    result = run("--by acc --where 'acc > 2'", NETS)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "rb-rank: --where 'acc > 2' holds for no record.\n"


def test_the_best_of_each_group() -> None:
    # Table 5 of RobBench in small: the best architecture for each number of zeroize operations.
    assert places("--by acc --within arch.none --top 1", NETS) == [(1, "b"), (1, "c")]
    table = out("--by pgd --within arch.none --format csv --metric acc", NETS)
    assert table.splitlines() == [
        "rank,name,dataset,method,arch.none,pgd,acc",
        "1,b,c10,pgd,0,0.25,0.75",
        "2,d,c10,pgd,0,0.125,0.25",
        "1,a,c10,pgd,1,0.5,0.5",
        "1,c,c10,pgd,1,0.5,0.75",
    ]


def test_data_sets_that_are_mixed_are_named() -> None:
    mixed = [net("a", 0, acc=0.5), net("b", 0, dataset="c100", acc=0.25)]
    assert run("--by acc", mixed).stderr == (
        "rb-rank: warning: the ranking mixes 2 data sets (c10, c100). --within dataset ranks each by"
        " itself.\n"
    )
    assert places("--by acc --within dataset", mixed) == [(1, "a"), (1, "b")]
    entry = {"metric": "score", "value": 0.5, "within": {"dataset": "c10"}}
    scored = [{**one, "metrics": {"score": 0.5}, "evals": [entry]} for one in mixed]
    assert run("", scored).stderr == ""


# --- records of the same model --------------------------------------------------------------------


def evaluated(**found: tuple[float, int]) -> Record:
    """A record of one checkpoint with metrics, each of so many images."""
    evals = [{"metric": name, "value": value, "n": n} for name, (value, n) in found.items()]
    metrics = {name: value for name, (value, _) in found.items()}
    return {"schema": 1, "arch": {"name": "a"}, "checkpoint": "sha256:1", "metrics": metrics, "evals": evals}


@pytest.mark.parametrize("more", ["", "--where 'pgd < 1'", "--aggregate arch.name", "--top 1"])
@pytest.mark.parametrize("turned", [False, True])
def test_two_evaluations_of_a_checkpoint_are_one_record(more: str, turned: bool) -> None:
    parts = [evaluated(acc=(0.5, 40), pgd=(0.25, 12)), evaluated(acc=(0.75, 8), fgsm=(0.375, 8))]
    result = run(f"--by fgsm {more}", parts[::-1] if turned else parts)
    found = runner.one(result)
    assert found["metrics"] == {"acc": 0.5, "pgd": 0.25, "fgsm": 0.375} and found["rank"] == 1
    assert {one["metric"]: one["value"] for one in found["evals"]} == found["metrics"]
    assert result.stderr == (
        "rb-rank: warning: 1 record merged with an earlier one of the same model: of a metric that both have,"
        " the value of more images counts, with equal numbers the later one.\n"
    )


def test_a_merged_record_stands_where_its_model_came_first_and_lacks_what_its_parts_lack() -> None:
    parts = [evaluated(acc=(0.5, 40)), net("b", 0, acc=0.5), evaluated(pgd=(0.25, 12))]
    lines = run("--by acc", parts).stdout.splitlines()
    assert [json.loads(line)["arch"]["name"] for line in lines] == ["a", "b"]
    refused = run("--by acc --within nonsense", parts)
    assert refused.exit_code == 2 and "--within: no record has 'nonsense'." in refused.stderr


def test_without_merging_a_group_is_of_all_its_records() -> None:
    parts = [evaluated(acc=(0.5, 40)), evaluated(acc=(0.75, 10))]
    found = runner.one(run("--by acc --no-merge --aggregate-by arch.name", parts))
    assert found["metrics"] == {"acc": 0.625} and found["aggregated"]["records"] == 2


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


def test_group_takes_the_mean_over_all_else() -> None:
    table = out("--by pgd --aggregate-by train.method --format csv --metric acc", SEEDS)
    assert table.splitlines()[0] == "rank,method,records,pgd,pgd_std,acc,acc_std"
    rows = [line.split(",") for line in table.splitlines()[1:]]
    assert [row[:3] for row in rows] == [["1", "pgd", "3"], ["2", "erm", "2"]]
    assert [float(row[3]) for row in rows] == pytest.approx([1 / 3, 1 / 16])
    assert [float(row[5]) for row in rows] == pytest.approx([0.5, 15 / 16])


def test_seeds_first_and_then_all_else() -> None:
    found = ranked("--by acc --aggregate seed --aggregate-by train.method", SEEDS)
    assert [one["metrics"]["acc"] for one in found] == [0.9375, 0.4375]  # (0.625 + 0.25) / 2


def test_a_group_for_records_without_the_field() -> None:
    some = [*SEEDS[:1], record("x", metrics={"acc": 0.5})]
    result = run("--by acc --aggregate-by train.method", some)
    assert result.stderr == "rb-rank: warning: 1 record without train.method, in a group of their own.\n"


def test_expressions_have_deviations_too() -> None:
    lines = out("--pivot train.method --metric acc,100*acc --format csv", SEEDS).splitlines()
    assert lines[0] == "method,records,acc,acc_std,100*acc,100*acc_std"
    for line in lines[1:]:
        _, _, acc, deviation, percent, other = line.split(",")
        assert float(percent) == pytest.approx(100 * float(acc))
        assert float(other) == pytest.approx(100 * float(deviation)) and float(other) > 0


def test_fields_are_columns_as_they_are_keys() -> None:
    some = [{**record("a", metrics={"acc": 0.5}), "train": {"method": "erm", "epochs": 3}}]
    words = "--by acc --metric train.epochs,train.method --format csv"
    assert out(words, some).splitlines()[1].endswith(",0.5,3,erm")


def test_negative_numbers_in_latex_have_a_minus() -> None:
    some = [record("a-b", metrics={"ge.acc": -0.5}), record("c", metrics={"ge.acc": 0.5})]
    text = out("--by ge.acc --format latex", some)
    assert r"1 & a-b & $-$0.5000 \\" in text


# --- bands and fronts -----------------------------------------------------------------------------


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
    assert result.stderr == "rb-rank: rank intervals from 1000 draws: drawn from value and n for 3 records.\n"
    table = run("--by acc --ci --format csv --top 2", some).stdout
    assert [line.split(",")[:4] for line in table.splitlines()] == [
        ["rank", "name", "band", "ranks"],
        ["1", "a", "1", "1–2"],
        ["2", "b", "1", "1–2"],
    ]


def test_the_pareto_front_is_marked() -> None:
    for words, order, front in (
        ("--pareto acc,pgd", "bcad", "c"),
        ("--pareto acc,pgd:lower --by pgd", None, "bd"),
    ):
        found = {one["arch"]["name"]: one["pareto"] for one in ranked(words, NETS)}
        assert found == {name: name in front for name in "abcd"}
        assert order is None or "".join(found) == order
    table = out("--pareto acc,pgd --top 2 --format csv", NETS)
    assert [line.split(",")[-3:] for line in table.splitlines()] == [
        ["front", "acc", "pgd"],
        ["", "0.75", "0.25"],
        ["*", "0.75", "0.5"],
    ]


# --- the tables of papers -------------------------------------------------------------------------

PIVOT = "--pivot train.method --metric acc,pgd"


def test_methods_as_rows_and_the_best_in_bold() -> None:
    assert out(f"{PIVOT} --format md", SEEDS) == (
        "| method | records | clean | pgd |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| pgd | 3 | 0.5000 ± 0.2500 | **0.3333 ± 0.1443** |\n"
        "| erm | 2 | **0.9375 ± 0.0884** | 0.0625 ± 0.0884 |\n"
        "\n± is the standard deviation over the 2 to 3 records averaged in each row.\n"
    )
    one_seed = "--where \"train.seed == 0 and arch.name == 'a'\""
    assert out(f"{PIVOT} --format latex {one_seed}", SEEDS) == (
        "% \\usepackage{booktabs}\n\\begin{tabular}{lrr}\n\\toprule\nmethod & clean & pgd \\\\\n\\midrule\n"
        "pgd & 0.5000 & \\textbf{0.2500} \\\\\n"
        "erm & \\textbf{0.8750} & 0.0000 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )
    assert out(f"{PIVOT} --format csv", SEEDS[:2]) == (
        "method,records,acc,acc_std,pgd,pgd_std\npgd,2,0.625,0.1767766952966369,0.25,0.0\n"
    )
    assert out(f"{PIVOT} --format table", SEEDS).splitlines()[2:4] == [
        "pgd           3  0.5000 ± 0.2500   0.3333 ± 0.1443*",
        "erm           2  0.9375 ± 0.0884*  0.0625 ± 0.0884",
    ]


def test_a_pivot_table_ranked_and_for_each_group() -> None:
    lines = out(f"{PIVOT} --by acc --within arch.name --format md", SEEDS).splitlines()
    assert [line for line in lines if "0." in line or "*arch" in line] == [
        "**arch.name\\: a**",
        "| erm | 2 | **0.9375 ± 0.0884** | 0.0625 ± 0.0884 |",
        "| pgd | 2 | 0.6250 ± 0.1768 | **0.2500 ± 0.0000** |",
        "**arch.name\\: b**",
        "| pgd | 0.2500 | 0.5000 |",
    ]
    lines = out(f"{PIVOT} --format csv --within arch.name", SEEDS).splitlines()
    assert [",".join(line.split(",")[:3]) for line in lines] == [
        *("name,method,records", "a,pgd,2", "a,erm,2", "b,pgd,1")
    ]


def test_a_pivot_table_as_records() -> None:
    found = ranked(PIVOT, SEEDS)
    assert [(one["train"]["method"], one["aggregated"]["records"]) for one in found] == [
        ("pgd", 3),
        ("erm", 2),
    ]
    assert not any("rank" in one for one in found)


# --- what goes wrong ------------------------------------------------------------------------------


WRONG = {
    "--by pgd20.9": "There is no metric or field 'pgd20.9'. Did you mean 'pgd20.8'? Metrics: acc, pgd20.8.",
    '--by "acc -"': "--by: Expression 'acc -' does not parse",
    "--by arch.name": "Cannot rank by 'nb201-1', which is not a number.",
    "--top 0": "0 is less than 1",
    "--format html": "'html' is not one of 'jsonl', 'table', 'csv', 'csv-raw', 'md', 'latex'",
    "--metric fgsm.* --format md": "--metric: No metric matches 'fgsm.*'.",
    "--metric , --format md": "--metric: The list of metrics is empty.",
    '--metric "acc -" --format md': "--metric: Expression 'acc -' does not parse",
    "--by ,": "--by is an empty list.",
    '--where "acx > 1"': "--where: There is no metric or field 'acx'. Did you mean 'acc'?",
    "--within datset": "--within: no record has 'datset'. Did you mean 'dataset'?",
    "--aggregate-by method": "--aggregate-by: no record has 'method'. Did you mean 'train.method'?",
    "--pivot method": "--pivot: no record has 'method'. Did you mean 'train.method'?",
    "--aggregate seeds": "--aggregate: no record has 'seeds'. Did you mean 'seed'?",
    '--where "train.method in [pgd]"': "field 'pgd'. Texts need quotes: 'pgd'. Metrics: ",
    "--pareto acc,fgsm": "There is no metric or field 'fgsm'.",
    "--pivot train.method --aggregate-by dataset": "--pivot and --aggregate-by both say what the rows are.",
    "--pivot train.method --top 1": "--top needs a ranking, but --pivot keeps the order.",
    "--pivot train.method --ci": "--ci needs a ranking, but --pivot keeps the order.",
    "--aggregate-by *": "--aggregate-by: Expression '*' does not parse",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_use_is_one_line(words: str) -> None:
    result = run(words, TWO)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rb-rank: error: ") and WRONG[words] in result.stderr


def test_a_metric_that_no_record_has_lists_those_of_all_records() -> None:
    some = [record("a", metrics={"acc": 1}), record("b", metrics={"fgsm.8": 1})]
    result = run("--by pgd20.8", some)
    assert "Metrics: acc, fgsm.8." in result.stderr


def test_a_tool_that_takes_no_checkpoint_does_not_offer_one() -> None:
    result = subprocess.run(["bash", "-c", "rb-rank <&-"], capture_output=True, text=True, timeout=300)
    assert result.stderr == (
        "rb-rank: error: Standard input is closed. Pipe records in (rb-arch --unique --sample 3 | ...),"
        " or name a file of records.\n"
    )


# --- tables for papers ----------------------------------------------------------------------------


def of_images(name: str, **counts: int) -> Record:
    """A record with shares of so many images."""
    evals = [{"metric": metric.replace("_", "."), "value": 0.5, "n": n} for metric, n in counts.items()]
    return {**record(name), "metrics": {one["metric"]: one["value"] for one in evals}, "evals": evals}


@pytest.mark.parametrize("form", ["table", "md", "latex"])
def test_a_table_of_several_numbers_of_images_has_them_below(form: str) -> None:
    mixed = of_images("a", acc=200, fgsm_8=200, pgd20_8=50)
    below = "200 images: clean; FGSM, ε = 8/255. 50 images: PGD-20, ε = 8/255."
    below = below.replace(":", r"\:") if form == "md" else below
    table = f"--by acc --format {form}"
    assert below in out(table, [mixed, of_images("b", acc=200, pgd20_8=50)])
    other = run(table, [mixed, of_images("b", acc=200, pgd20_8=100)]).stdout
    assert "50 to 100 images" in other
    alike = out(table, [of_images("a", acc=50, pgd20_8=50), of_images("b", acc=50)])
    assert (alike.splitlines()[-1].removeprefix("% ") == "50 images.") == (form != "table")
    assert below in out(f"--pivot arch.name --format {form}", [mixed])


def test_merging_results_of_other_numbers_of_images_is_said() -> None:
    same = {"checkpoint": "sha256:1", "train": {"seed": 0}}
    parts = [{**of_images("a", acc=200), **same}, {**of_images("a", pgd20_8=50), **same}]
    words = "are of different numbers of images, such as acc of 200, pgd20.8 of 50."
    for more in ("", "--aggregate seed", "--where 'acc > 0'"):
        assert words in run(f"--by acc {more}", parts).stderr
    alike = [parts[0], {**of_images("a", pgd20_8=200), **same}]
    assert "numbers of images" not in run("--by acc", alike).stderr
    # the columns of each are already of different numbers of images
    twice = [of_images("a", acc=200, pgd20_8=50)] * 2
    assert "numbers of images" not in run("--by acc", twice).stderr


def test_a_mean_over_values_of_other_numbers_of_images_is_said() -> None:
    seeds = [{**of_images("a", acc=n), "train": {"seed": seed}} for seed, n in enumerate((50, 200))]
    words = "a mean of acc is over values of 50 to 200 images."
    for fields in ("--aggregate=seed", "--aggregate-by=arch.name"):
        assert words in run(f"--by acc {fields}", seeds).stderr
        assert words not in run(f"--by acc {fields}", seeds[:1] * 2).stderr


def test_a_column_of_several_numbers_of_images_is_said() -> None:
    fewer = model("nb201-2", "erm", 0.7, 0.5)
    fewer["evals"][1]["n"] = 50
    result = run("--by pgd20.8 --format csv", [TWO[0], fewer])
    assert "pgd20.8 are of different numbers of images, 50 to 100." in result.stderr
    assert run("--by pgd20.8 --format jsonl", [TWO[0], fewer]).stderr == ""
    noisy = [of_images(name, **{"pr.uniform.0.1": n}) for name, n in (("a", 90), ("b", 80))]
    assert out("--by pr.uniform.0.1 --format csv", noisy)


def test_a_table_with_deviations_says_what_they_are() -> None:
    seeds = [model("nb201-1", "erm", acc, 0.5) for acc in (0.8, 0.9)]
    seeds[1]["train"]["seed"] = 1
    words = "--by pgd20.8 --aggregate seed --metric acc --format"
    for form in ("md", "latex", "table"):
        assert "± is the standard deviation over the 2 records" in out(f"{words} {form}", seeds)
    assert "standard" not in out(f"{words} csv", seeds)


@pytest.mark.parametrize("option", ["--percent", "--digits 1", "--label acc=A", "--plus-minus"])
def test_options_of_tables_for_people_are_refused_for_programs(option: str) -> None:
    for form in ("jsonl", "csv"):
        result = run(f"--by acc --format {form} {option}", TWO)
        assert result.exit_code == 2 and f"{form} keeps numbers and names." in result.stderr
    assert out(f"--by acc --format md {option}", TWO)
