"""rb-store at the command line: listed records continue in a pipe, removed files can be computed again."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rbtools.store import Store, files
from tests import runner
from tests.runner import Record, one, records

CPU = "--device cpu --threads 1"
FGSM = f"fgsm --eps 8 --n 40 {CPU}"
TRAIN = f"--val 0 --epochs 2 --lr 0.2 {CPU}"  # as the fixture's "erm"

run = partial(runner.run, "store")


def trained_again(record: Record) -> Result:
    return runner.run("train", TRAIN, [{"schema": 1, "arch": record["arch"], "dataset": "digits"}])


@pytest.fixture
def attacked(trained: dict[str, Record]) -> dict[str, Record]:
    """The trained records with FGSM's accuracy, and a store that has all of it."""
    result = runner.run("attack", FGSM, [*trained.values()])
    assert result.exit_code == 0, result.stderr
    return dict(zip(trained, records(result), strict=True))


def store() -> Store:
    return Store("rb-store")


def test_what_ls_lists_goes_on_in_a_pipe_and_is_found(attacked: dict[str, Record]) -> None:
    listed = run("ls --kind training")
    result = runner.run("attack", FGSM, listed.stdout)
    assert "2 records: 0 computed, 2 found in the store." in result.stderr
    by_checkpoint = {record["checkpoint"]: record["metrics"] for record in attacked.values()}
    for record in records(result):
        assert record["metrics"] == by_checkpoint[record["checkpoint"]]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("--where 'acc > 2'", 0, "none of the 6 results matches."),
        ("--where 'acx > 2'", 0, "no result has all of acx, which --where needs."),
        ("zzzz", 2, "error: 'zzzz' is not a key. Expected at least 4 hexadecimal digits"),
        ("0000000", 2, "has no result with the key 0000000"),
    ],
)
def test_ls_says_why_there_is_nothing(
    words: str, status: int, said: str, attacked: dict[str, Record]
) -> None:
    result = run(f"ls {words}")
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.startswith("rb-store: ") and said in result.stderr and result.stderr.count("\n") == 1


def test_ls_names_what_is_damaged_and_lists_the_rest(attacked: dict[str, Record]) -> None:
    path = next(store().files("results"))
    path.write_bytes(path.read_bytes()[:-1])
    result = run("ls")
    assert result.exit_code == 1 and len(records(result)) == 5
    assert f"error: {path} is damaged. rb-store verify --delete removes damaged files.\n" in result.stderr


def test_verify_names_what_is_damaged_and_delete_lets_it_be_had_again(attacked: dict[str, Record]) -> None:
    erm = attacked["erm"]
    weights = store().object(erm["checkpoint"])
    weights.write_bytes(weights.read_bytes()[:-1])
    outcome = next(store().files("outcomes"))
    outcome.write_bytes(b"")
    result = run("verify")
    assert result.exit_code == 1
    found = {row["path"]: row for row in records(result)}
    assert set(found) == {str(weights), str(outcome)}
    assert found[str(weights)]["problem"] == "its content does not match its name"
    again = run("verify --delete")
    assert again.exit_code == 1 and [row["deleted"] for row in records(again)] == [True, True]
    assert not weights.exists() and run("verify").exit_code == 0
    result = trained_again(erm)
    assert one(result)["checkpoint"] == erm["checkpoint"] and "1 computed" in result.stderr


def test_a_dry_run_says_the_same_and_does_nothing(attacked: dict[str, Record]) -> None:
    size = sum(path.stat().st_size for path in store().files("objects"))
    dry = run("gc --keep-metrics --dry-run")
    expected = {"schema": 1, "kind": "objects", "files": 2, "bytes": size}
    assert records(dry)[0] == {**expected, "dry_run": True} and "would be freed" in dry.stderr
    assert len(list(store().files("objects"))) == 2
    wet = run("gc --keep-metrics")
    assert records(wet)[0] == expected and not list(store().files("objects"))


@pytest.mark.parametrize("words", ["--max-size 10Q", "--max-size G", "--older-than 90", "--older-than -1d"])
def test_a_limit_has_a_unit(words: str, attacked: dict[str, Record]) -> None:
    refused = run(f"gc {words}")
    assert refused.exit_code == 2 and words.replace(" ", " is '") + "'. Expected a" in refused.stderr
    assert run("gc --max-size 1T --older-than 8w").stderr == "rb-store: 0 bytes in 0 files freed.\n"


def test_metrics_stay_found_and_weights_are_trained_again_where_they_are_needed(
    attacked: dict[str, Record],
) -> None:
    erm = attacked["erm"]
    before = {key: value for key, value in erm.items() if key not in ("metrics", "evals", "checksums")}
    assert run("gc --keep-metrics").exit_code == 0
    found = runner.run("attack", FGSM, [before])
    assert one(found)["metrics"]["fgsm.8"] == erm["metrics"]["fgsm.8"]
    assert "0 computed, 1 found" in found.stderr
    other = f"fgsm --eps 16 --n 40 {CPU}"
    refused = runner.run("attack", other, [before])
    assert refused.exit_code == 1 and "train it again with rb-train" in refused.stderr
    assert one(trained_again(erm))["checkpoint"] == erm["checkpoint"]
    assert runner.run("attack", other, [before]).exit_code == 0


ALL = ("ls", "du", "verify", "gc")


def test_a_store_that_cannot_be_written_can_be_read(
    attacked: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree("rb-store/outcomes")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files, "open", refuse, raising=False)
    monkeypatch.setattr(Path, "unlink", refuse)
    for words in ("ls", "du", "verify", "gc --dry-run", "gc --keep-metrics --dry-run"):
        assert run(words).exit_code == 0
    result = run("gc --keep-metrics")
    assert result.exit_code == 2 and "Read-only file system" in result.stderr
    next(store().files("results")).write_bytes(b"")
    result = run("verify --delete")
    assert result.exit_code == 1 and [row["deleted"] for row in records(result)] == [False]
    assert "Cannot remove" in result.stderr
