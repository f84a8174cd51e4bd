"""rb-convert: files in, records out, and the other way; what goes wrong loses nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests import runner
from tests.runner import Record, records

ROW = {"dataset": "CIFAR-10", "model": "ResNet-18", "method": "PGD", "acc": 83.83, "ar": {"AA": 46.34}}
METRICS = {"acc": 0.8383, "aa.8": 0.4634}
RECORD = runner.model("resnet18", dataset="cifar10", train={"method": "pgd"}, metrics=METRICS)


def run(words: str, given: list[Record] | str = "") -> Result:
    return runner.run("convert", words, given)


@pytest.fixture
def board() -> str:
    rows = [ROW, {**ROW, "method": "TRADES", "acc": 83.34}]
    Path("board.json").write_text(json.dumps(rows))
    return "board.json"


def test_standard_input_is_read_where_no_file_is_named(board: str) -> None:
    text, expected = Path(board).read_text(), run(f"prbench {board}").stdout
    assert run("prbench", text).stdout == run("prbench -", text).stdout == expected != ""


def test_records_become_a_file_and_the_file_the_records(board: str) -> None:
    result = run("prbench --write again.json", run(f"prbench {board}").stdout)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert json.loads(Path("again.json").read_text()) == json.loads(Path(board).read_text())


def test_a_dash_writes_to_standard_output() -> None:
    result = run("prbench --write -", [RECORD])
    assert json.loads(result.stdout) == [ROW]


def test_what_is_not_expressed_is_listed_once_for_each_kind() -> None:
    more = {**RECORD, "mine": 1, "metrics": {**METRICS, "wci": 3.0}}
    result = run("prbench --write out.json", [more, {**more, "train": {"method": "mart"}}])
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "rb-convert: not expressed in prbench, metrics (and how often): wci (2).",
        "rb-convert: not expressed in prbench, fields (and how often): mine (2).",
    ]


def test_a_file_that_is_cut_off_leaves_the_others_and_says_where_it_ends(board: str) -> None:
    Path("cut.json").write_text(Path(board).read_text()[:-2])
    result = run(f"prbench cut.json {board}")
    assert result.exit_code == 1 and "Expected what rb-convert prbench --help" in result.stderr
    broken, *rest = records(result)
    assert broken["error"]["message"].startswith("cut.json is no complete JSON: Expecting ")
    assert len(rest) == 2


def test_a_row_that_is_none_becomes_an_error_record_between_the_others() -> None:
    Path("board.json").write_text(json.dumps([ROW, {"model": "x"}, 7, ROW | {"method": "MART"}]))
    result = run("prbench board.json")
    assert result.exit_code == 1
    first, second, third, last = records(result)
    assert "error" not in first and "error" not in last
    assert second["error"]["message"].startswith('board.json: row 2: The row\'s "dataset" is missing')
    assert second["error"]["text"] == '{"model":"x"}' and third["error"]["text"] == "7"
    assert result.stderr.count("\n") == 2 and result.stderr.count("rb-convert: error: board.json: row ") == 2


def test_strict_stops_at_the_first_bad_row() -> None:
    Path("board.json").write_text(json.dumps([ROW, {"model": "x"}, ROW]))
    result = run("prbench --errors stop board.json")
    assert result.exit_code == 1 and len(records(result)) == 1 and "because of --errors stop" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("prbench nowhere.json", "Cannot read nowhere.json: No such file or directory."),
        ("prbench .", ". is a folder. Expected a file: prbench is one file."),
        ("prbench a --write a", "a is both read and written. Write elsewhere."),
        ("prbench --scale half", "Invalid value for '--scale'"),
        ("", "No format is given. Choose one of: prbench"),
        ("csv --write nowhere/table.csv", "Cannot write nowhere/table.csv: nowhere does not exist."),
        ("robustbench folder", "The folder folder holds no .json files. Expected those of RobustBench's"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(words: str, message: str) -> None:
    Path("folder").mkdir()
    result = run(words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr and not Path("nowhere").exists()


def test_a_file_without_results_says_so() -> None:
    Path("empty.json").write_text("[]")
    result = run("prbench empty.json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "rb-convert: no results came in.\n"


def test_no_records_write_no_file() -> None:
    for target in ("out.json", "-"):
        result = run(f"prbench --write {target}")
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.startswith("rb-convert: error: no records came in.")
        result = run(f"prbench --write {target} --allow-empty")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "rb-convert: no records came in; nothing is written.\n"
    Path("failed.jsonl").write_text('{"arch":{},"error":{"tool":"rb-train","message":"no luck"}}\n')
    result = run("prbench --write out.json failed.jsonl")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "rb-convert: error: there is nothing to write: out.json was not written.",
        "rb-convert: 1 failed record left out.",
    ]
    assert not Path("out.json").exists()


def test_an_empty_file_is_no_json() -> None:
    Path("empty.json").write_text("\n")
    result = run("prbench empty.json")
    assert result.exit_code == 1
    assert result.stderr == (
        "rb-convert: error: empty.json is no complete JSON: Expecting value: line 2 column 1 (char 1)."
        " Expected what rb-convert prbench --help describes.\n"
    )


def test_failed_records_and_bad_lines_are_left_out_and_the_rest_is_written() -> None:
    failed = {"schema": 1, "arch": {"name": "x"}, "error": {"message": "no"}}
    text = runner.lines(failed) + "hello\n" + runner.lines(RECORD, {"arch": {}})
    result = run("prbench --write out.json", text)
    assert result.exit_code == 1
    assert json.loads(Path("out.json").read_text()) == [ROW]
    assert "line 2 is not JSON" in result.stderr and "1 failed record left out." in result.stderr
    assert "line 4 (unnamed): A row of PRBench has a data set" in result.stderr
