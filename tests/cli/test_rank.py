"""rb-rank: order, ties, what is left out, every format, and the table on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rbtools.cli.rank import main

Record = dict[str, Any]
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


def text_of(records: list[Record]) -> str:
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records)


def run(arguments: list[str], records: list[Record] | str) -> Result:
    text = records if isinstance(records, str) else text_of(records)
    return CliRunner().invoke(main, arguments, input=text)


def out(arguments: list[str], records: list[Record]) -> str:
    result = run(arguments, records)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def places(arguments: list[str], records: list[Record]) -> list[tuple[int | None, str]]:
    found = [json.loads(line) for line in out(arguments, records).splitlines()]
    return [(one["rank"], one["arch"]["name"]) for one in found]


def accs(*values: float | None) -> list[Record]:
    """Records a, b, c, ... with these accuracies; None for none."""
    return [
        record("abcdefgh"[n], metrics={} if value is None else {"acc": value})
        for n, value in enumerate(values)
    ]


# --- order ----------------------------------------------------------------------------------------


def test_a_ranked_record_as_it_is_written() -> None:
    assert out(["--by", "acc"], [record("a", metrics={"acc": 0.5}, mine={"x": 1})]) == (
        '{"schema":1,"arch":{"name":"a"},"metrics":{"acc":0.5},"mine":{"x":1},"rank":1}\n'
    )


def test_the_best_comes_first_and_equals_share_a_rank() -> None:
    some = accs(0.5, 0.75, 0.5, 1.0, 0.75)
    assert places(["--by", "acc"], some) == [(1, "d"), (2, "b"), (2, "e"), (4, "a"), (4, "c")]
    assert places(["--by", "acc", "--lower"], some) == [(1, "a"), (1, "c"), (3, "b"), (3, "e"), (5, "d")]
    assert places(["--by", "acc", "--top", "3"], some) == [(1, "d"), (2, "b"), (2, "e")]


def test_less_is_better_where_the_metric_says_so() -> None:
    some = [record(name, metrics={"seconds_per_epoch": value}) for name, value in (("a", 3), ("b", 1))]
    assert places(["--by", "seconds_per_epoch"], some) == [(1, "b"), (2, "a")]
    assert places(["--by", "seconds_per_epoch", "--higher"], some) == [(1, "a"), (2, "b")]
    gaps = [record(name, metrics={"ge.acc": value}) for name, value in (("a", 3), ("b", 1))]
    assert places(["--by", "mean(ge.*)"], gaps) == [(1, "b"), (2, "a")]


def test_a_record_without_the_value_comes_last_and_is_counted() -> None:
    result = run(["--by", "acc"], accs(None, 0.5, None, 0.75))
    ranks = [(one["rank"], one["arch"]["name"]) for one in map(json.loads, result.stdout.splitlines())]
    assert ranks == [(1, "d"), (2, "b"), (None, "a"), (None, "c")]
    assert (result.exit_code, result.stderr) == (0, "rb-rank: 2 records without acc, ranked last.\n")


def test_a_null_is_no_value() -> None:
    some = [record("a", metrics={"acc": None}), record("b", metrics={"acc": 0.5})]
    for by in ("acc", "mean(acc)", "acc + 1"):
        result = run(["--by", by], some)
        assert [json.loads(line)["rank"] for line in result.stdout.splitlines()] == [1, None]
        assert result.stderr == f"rb-rank: 1 record without {by}, ranked last.\n"


def test_a_value_that_one_record_cannot_have_is_missing_there() -> None:
    some = [record("a", metrics={"acc": 1, "ge.acc": 0}), record("b", metrics={"acc": 1, "ge.acc": 2})]
    result = run(["--by", "acc / ge.acc"], some)
    assert [json.loads(line)["arch"]["name"] for line in result.stdout.splitlines()] == ["b", "a"]


def test_an_expression_with_globs() -> None:
    some = [
        record("a", metrics={"fgsm.8": 0.5, "pgd20.4": 0.5, "pgd20.8": 0.2, "acc": 1}),
        record("b", metrics={"fgsm.8": 0.6, "pgd20.4": 0.1, "pgd20.8": 0.8, "acc": 0}),
    ]
    assert places(["--by", "mean(fgsm.*, pgd20.*)"], some) == [(1, "b"), (2, "a")]
    assert places(["--by", "mean(fgsm.*, pgd20.*) + acc"], some) == [(1, "a"), (2, "b")]


def test_fields_of_the_architecture_rank_too() -> None:
    some = [{"schema": 1, "arch": {"name": name, "params": count}} for name, count in (("a", 9), ("b", 7))]
    assert places(["--by", "params"], some) == [(1, "b"), (2, "a")]
    assert places(["--by", "arch.params", "--higher"], some) == [(1, "a"), (2, "b")]


# --- what to rank by when nobody says -------------------------------------------------------------


def test_the_score_if_any_record_has_one() -> None:
    some = [record("a", metrics={"acc": 1}), record("b", metrics={"acc": 0, "score": 0.5})]
    result = run([], some)
    assert [json.loads(line)["arch"]["name"] for line in result.stdout.splitlines()] == ["b", "a"]
    assert result.stderr == "rb-rank: 1 record without score, ranked last.\n"


def test_else_what_was_evaluated_last() -> None:
    assert places([], TWO) == [(1, "nb201-1"), (2, "nb201-1")]
    assert json.loads(out([], TWO).splitlines()[0])["train"]["method"] == "trades"
    result = run(["-v"], TWO)
    assert result.stderr == "rb-rank: ranked by pgd20.8, higher is better.\n"


def test_a_metric_whose_name_is_no_expression_is_ranked_by_all_the_same() -> None:
    some = [record("a", metrics={"my metric!": 1}), record("b", metrics={"my metric!": 2})]
    assert places([], some) == [(1, "b"), (2, "a")]


def test_nothing_to_rank_by() -> None:
    result = run([], accs(None, None))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "rb-rank: error: No record has a metric to rank by. Evaluate the models first, for example with"
        " rb-attack pgd --eps 8.\n"
    )


# --- what is left out -----------------------------------------------------------------------------


def test_failed_records_and_bad_lines_are_left_out_and_counted() -> None:
    lines = [FAILED, "hello", text_of(accs(0.5)).strip(), "[]", FAILED]
    result = run(["--by", "acc"], "".join(f"{line}\n" for line in lines))
    assert result.exit_code == 1
    assert [json.loads(line)["rank"] for line in result.stdout.splitlines()] == [1]
    said = result.stderr.splitlines()
    assert said[0].startswith("rb-rank: error: line 2 is not JSON")
    assert said[1].startswith("rb-rank: error: line 4 is a list")
    assert said[2:] == ["rb-rank: 2 failed records left out.", "rb-rank: 2 bad lines left out."]


@pytest.mark.parametrize("arguments", [[], ["--by", "acc"], ["--format", "table"], ["--format", "csv"]])
def test_only_failed_records_leave_nothing(arguments: list[str]) -> None:
    result = run(arguments, FAILED + "\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "rb-rank: 1 failed record left out.\n"


def test_retry_errors_ranks_failed_records() -> None:
    result = run(["--by", "acc", "--retry-errors"], FAILED + "\n")
    assert json.loads(result.stdout)["rank"] == 1


# --- formats --------------------------------------------------------------------------------------


def test_csv() -> None:
    assert out(["--by", "pgd20.8", "--format", "csv"], TWO) == (
        "rank,name,dataset,method,pgd20.8,pgd20.8_low,pgd20.8_high,acc,acc_low,acc_high\n"
        "1,nb201-1,digits,trades,0.75,0.7,0.8,0.8,0.75,0.8500000000000001\n"
        "2,nb201-1,digits,erm,0.25,0.2,0.3,0.9,0.85,0.9500000000000001\n"
    )


def test_markdown() -> None:
    assert out(["--by", "pgd20.8", "--format", "md"], TWO) == (
        "| rank | name | dataset | method | pgd20.8 | acc |\n"
        "| ---: | --- | --- | --- | ---: | ---: |\n"
        "| 1 | nb201-1 | digits | trades | 0.7500 \\[0.7000, 0.8000\\] | 0.8000 \\[0.7500, 0.8500\\] |\n"
        "| 2 | nb201-1 | digits | erm | 0.2500 \\[0.2000, 0.3000\\] | 0.9000 \\[0.8500, 0.9500\\] |\n"
    )


def test_latex() -> None:
    assert out(["--by", "acc", "--top", "1", "--format", "latex"], TWO) == (
        "\\begin{tabular}{rlllrr}\n"
        "\\toprule\n"
        "rank & name & dataset & method & acc & pgd20.8 \\\\\n"
        "\\midrule\n"
        "1 & nb201-1 & digits & erm & 0.9000 [0.8500, 0.9500] & 0.2500 [0.2000, 0.3000] \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


def test_table() -> None:
    assert out(["--by", "pgd20.8", "--format", "table"], TWO) == (
        "rank  name     dataset  method                  pgd20.8                      acc\n"
        "────────────────────────────────────────────────────────────────────────────────\n"
        "   1  nb201-1  digits   trades  0.7500 [0.7000, 0.8000]  0.8000 [0.7500, 0.8500]\n"
        "   2  nb201-1  digits   erm     0.2500 [0.2000, 0.3000]  0.9000 [0.8500, 0.9500]\n"
    )


def test_jsonl_is_the_default_where_no_terminal_is() -> None:
    assert out(["--by", "acc"], TWO) == out(["--by", "acc", "--format", "jsonl"], TWO)


def test_the_columns_of_a_table_are_chosen_by_name_and_glob() -> None:
    some = [record("a", metrics={"acc": 1, "fgsm.4": 0.25, "pgd20.8": 0, "fgsm.8": 0.5})]
    assert out(["--by", "acc", "--metrics", "fgsm.8,fgsm.*", "--format", "csv"], some) == (
        "rank,name,acc,fgsm.8,fgsm.4\n1,a,1,0.5,0.25\n"
    )


def test_text_of_other_people_cannot_break_a_table() -> None:
    odd = [record('a|b\n\x1b[31m,"c" $x_1$ [red]:smile:', metrics={"acc": 0.5})]
    assert out(["--by", "acc", "--format", "csv"], odd).splitlines()[1:] == [
        '1,"a|b',
        '\x1b[31m,""c"" $x_1$ [red]:smile:",0.5',
    ]
    assert "\\|b" in out(["--by", "acc", "--format", "md"], odd)
    assert "\\$x\\_1\\$" in out(["--by", "acc", "--format", "latex"], odd)
    drawn = out(["--by", "acc", "--format", "table"], odd)
    assert "\x1b" not in drawn and len(drawn.splitlines()) == 3 and "[red]:smile:" in drawn


# --- the table on a terminal ----------------------------------------------------------------------

WIDE = [
    record(
        f"nb201-{number}",
        dataset="digits",
        train={"method": method, "seed": 0},
        metrics={"acc": 0.98, "seconds_per_epoch": 1.25, "pgd20.32": robust, "pr.uniform.0.1": 0.9}
        | {"probacc.uniform.0.1.0.05": 0.9, "train.acc": 1.0, "score": robust}
        | {f"corrupt.fog.{severity}": 0.5 for severity in range(1, 6)},
        evals=[{"metric": "pgd20.32", "value": robust, "ci95": [robust - 0.04, robust + 0.04]}],
    )
    for number, method, robust in ((13714, "trades", 0.83), (13714, "erm", 0.11), (7, "trades", 0.5))
]


def on_a_terminal(columns: int, arguments: list[str], **environment: str) -> str:
    """What rb-rank shows on a terminal so wide: standard output and standard error."""
    Path("wide.jsonl").write_text(text_of(WIDE))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = {**os.environ, "TERM": "xterm-256color", **environment}
    with subprocess.Popen(
        ["rb-rank", *arguments, "wide.jsonl"], stdin=theirs, stdout=theirs, stderr=theirs, env=settings
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux says so where the other end is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait(30) == 0
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def plain(text: str) -> list[str]:
    """The lines without their colours and what follows the text."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*[mK]", "", text).splitlines()]


def test_80_columns_show_whole_cells_and_say_what_is_not_shown() -> None:
    lines = plain(on_a_terminal(80, []))
    assert max(map(len, lines)) <= 80
    assert lines[:7] == [
        "                                                                   probacc",
        "                                                     pr.uniform   .uniform",
        "rank  name         method   score     acc  pgd20.32        .0.1  .0.1.0.05",
        "─" * 74,
        "   1  nb201-13714  trades  0.8300  0.9800    0.8300      0.9000     0.9000",
        "   2  nb201-7      trades  0.5000  0.9800    0.5000      0.9000     0.9000",
        "   3  nb201-13714  erm     0.1100  0.9800    0.1100      0.9000     0.9000",
    ]
    assert " ".join(lines[8:]) == (
        "not shown: the intervals of 1 column, dataset, seconds_per_epoch, train.acc, corrupt.fog.1,"
        " corrupt.fog.2, corrupt.fog.3, corrupt.fog.4 and 1 more (--metrics chooses columns; --format jsonl"
        " has all)"
    )


def test_140_columns_show_intervals_and_every_metric_but_details() -> None:
    lines = plain(on_a_terminal(140, []))
    assert max(map(len, lines)) <= 140
    assert lines[4] == (
        "   1  nb201-13714  digits   trades  0.8300  0.9800        1.25  0.8300 [0.7900, 0.8700]"
        "      0.9000     0.9000     1.0000   0.5000   0.5000"
    )
    assert lines[-1].startswith("not shown: corrupt.fog.3, corrupt.fog.4, corrupt.fog.5 (")


def test_a_wide_table_in_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (72, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, out(["--format", "table"], WIDE).splitlines())) <= columns
    monkeypatch.delenv("COLUMNS")
    assert "corrupt" in out(["--format", "table"], WIDE).splitlines()[1]


def test_long_names_lose_their_middle() -> None:
    name = "checkpoint-" + "x" * 40 + "-last"
    (row,) = out(["--by", "acc", "--format", "table"], [record(name, metrics={"acc": 1})]).splitlines()[2:]
    assert row.split() == ["1", "checkpoint-xxxx…xxxxxxxxxx-last", "1"]


def test_a_narrow_terminal_keeps_rank_name_and_key() -> None:
    lines = plain(on_a_terminal(24, []))
    assert [line.split() for line in lines[2:5]] == [
        ["1", "nb201-13714", "0.8300"],
        ["2", "nb201-7", "0.5000"],
        ["3", "nb201-13714", "0.1100"],
    ]


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours(settings: dict[str, str]) -> None:
    shown = on_a_terminal(100, [], **settings)
    colours = re.findall(r"\x1b\[([0-9;]*)m", shown)
    assert set(colours) <= {"", "0", "1"}


def test_a_terminal_can_have_records_too() -> None:
    shown = on_a_terminal(80, ["--format", "jsonl", "--top", "1"])
    assert json.loads(shown)["rank"] == 1


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--by", "pgd20.9"],
            "There is no metric or field 'pgd20.9'. Did you mean 'pgd20.8'? Metrics: acc, pgd20.8.",
        ),
        (["--by", "mean(fgsm.*)"], "No metric matches 'fgsm.*'. Metrics: acc, pgd20.8."),
        (["--by", "acc -"], "--by: Expression 'acc -^' does not parse"),
        (
            ["--by", "acc / 0"],
            "--by: Expression 'acc ^/ 0' has no value at the ^ (character 5): division by 0.",
        ),
        (["--by", "arch.name"], "Cannot rank by 'nb201-1', which is not a number."),
        (["--top", "0"], "0 is not in the range x>=1"),
        (["--format", "html"], "'html' is not one of 'jsonl', 'table', 'csv', 'md', 'latex'"),
        (["--metrics", "fgsm.*", "--format", "md"], "--metrics: No metric matches 'fgsm.*'."),
        (["--metrics", ",", "--format", "md"], "--metrics: The list of metrics is empty."),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], message: str) -> None:
    result = run(arguments, TWO)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rb-rank: error: ") and message in result.stderr


def test_a_metric_that_no_record_has_lists_those_of_all_records() -> None:
    some = [record("a", metrics={"acc": 1}), record("b", metrics={"fgsm.8": 1})]
    result = run(["--by", "pgd20.8"], some)
    assert "Metrics: acc, fgsm.8." in result.stderr


def test_a_tool_that_takes_no_checkpoint_does_not_offer_one() -> None:
    result = subprocess.run(["bash", "-c", "rb-rank <&-"], capture_output=True, text=True, timeout=60)
    assert result.stderr == (
        "rb-rank: error: Standard input is closed. Pipe records in (rb-arch --unique --sample 3 | ...),"
        " or name a file of records.\n"
    )
