"""Recipes on several machines: options of every stage, killed shards, the join of their files; dry runs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rbtools.errors import RbError
from rbtools.papers import __main__ as papers
from rbtools.papers import pipes, recipes
from rbtools.papers.recipes import Pipe, Setting
from rbtools.trainer import presets
from tests import runner

# Two trainings of each of two networks; with $dies the process group ends after the first record.
PIPE: Pipe = [
    tuple(
        [
            ["rb-arch", *f"--space fcnn --depth 2 --sample 1 --width {width}".split()],
            ["rb-train", "--method", "erm,corruption", "--epochs", "1"],
        ]
        for width in (2, 4)
    ),
    ["rb-measure", *"bound --paper robbench --eps 16 --batch-size 4 --attack-steps 1".split()],
    ["sh", "-c", 'if [ -z "$dies" ]; then cat; else head -n 1; kill -9 0; fi'],
]
CODE = f"""
from rbtools.papers import __main__, recipes
recipes.pipe = lambda name, setting: {PIPE!r}
__main__.main(prog_name="papers")
"""


def machine(folder: str, *words: str, dies: str = "") -> subprocess.Popen[str]:
    line = [sys.executable, "-c", CODE, "reproduce-theory", "--scale", "tiny", "--reproduced", folder, *words]
    return subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "dies": dies},
        start_new_session=True,
    )


def done(process: subprocess.Popen[str]) -> str:
    shown, said = process.communicate()
    assert process.returncode == 0, said
    return shown


@pytest.mark.slow
def test_four_machines_of_which_two_are_killed_end_with_the_tables_of_one_process() -> None:
    first = [
        machine("four", "--shard", f"{number}/4", dies="yes" * (number in (2, 3))) for number in (1, 2, 3, 4)
    ]
    for number, process in enumerate(first, 1):
        if number in (2, 3):
            process.communicate()
            assert process.returncode == -9
        else:
            assert "The last shard joins all files; still missing" in done(process)
    assert not Path("four/theory-tiny.jsonl").exists()
    assert "theory-tiny.3-of-4." in done(machine("four", "--shard", "2/4"))
    joined = done(machine("four", "--shard", "3/4"))
    one = done(machine("one"))
    assert "fcnn: 4 networks" in one and joined == one
    files = pipes.files_of(Path("four/theory-tiny.jsonl"), "1/4", PIPE)
    records = Path("four/theory-tiny.jsonl").read_bytes().splitlines()
    assert len(records) == 4 and b"Another shard" not in b"".join(records)
    assert [len(file.read_bytes().splitlines()) for file in files] == [4] * 4
    assert sum(line in file.read_bytes().splitlines() for file in files for line in records) == 4


def told(pipe: Pipe, workers: pipes.Workers) -> list[str]:
    """What the tools of a pipe are called with, and its lines: each is a program that says so."""
    Path("bin").mkdir(exist_ok=True)
    for tool in ("arch", "train", "pr"):
        file = Path(f"bin/rb-{tool}")
        file.write_text(f'#!/bin/sh\necho "rb-{tool} $*" >> said\n[ rb-{tool} = rb-arch ] && seq 6 || cat\n')
        file.chmod(0o755)
    Path("said").write_text("")
    env = {**os.environ, "PATH": f"{Path('bin').absolute()}{os.pathsep}{os.environ['PATH']}"}
    with open("lines", "wb") as lines:
        assert pipes.run(workers.stages(pipe), subprocess.DEVNULL, lines.fileno(), env) is None
    return sorted(Path("said").read_text().splitlines()) + Path("lines").read_text().splitlines()


def test_workers_are_of_every_stage_and_a_number_of_them_of_trainings() -> None:
    pipe: Pipe = [["rb-arch"], ["rb-train", "--jobs", "2"], ["rb-pr", "--gamma", "1"]]
    assert told(pipe, pipes.Workers("2"))[:3] == ["rb-arch ", "rb-pr --gamma 1", "rb-train --jobs 2"]
    assert told(pipe, pipes.Workers("ray"))[:3] == [
        "rb-arch ",
        "rb-pr --gamma 1 --engine ray",
        "rb-train --jobs 2 --engine ray",
    ]
    group: Pipe = [([["rb-search", "darts"]], [["rb-arch"]]), ["rb-train"]]
    say = ["--dry-run", "--allow-empty", "--log", "log"]
    assert pipes.Workers("2", dry=Path("log")).stages(group) == [([()], [["rb-arch"]]), ["rb-train", *say]]


def test_a_group_ends_with_its_first_failure_which_is_named() -> None:
    pipe: pipes.Stages = [([["echo", "a"]], [["false"]], [["echo", "b"]]), ["cat"]]
    with open("lines", "wb") as lines:
        failed = pipes.run(pipe, subprocess.DEVNULL, lines.fileno(), os.environ)
    assert failed == "false ended with status 1" and Path("lines").read_text() == "a\n"
    assert pipes.run([["rb-none"]], 0, 1, os.environ) == "rb-none is not installed"
    killed: pipes.Stages = [["seq", "100000"], ["sh", "-c", "kill -9 $$"], ["cat"]]
    assert pipes.run(killed, subprocess.DEVNULL, subprocess.DEVNULL, os.environ) == "sh ended with status -9"


def test_words_of_the_user_are_taken_as_they_are() -> None:
    setting = Setting("mini", dataset="imagefolder:{dataset} x", jobs="ray:h:1")
    first, *_ = pipes.commands(recipes.pipe("wci", setting))
    assert first[-1] == "imagefolder:{dataset} x"
    train, *_ = (one for one in pipes.commands(recipes.pipe("theory", setting)) if one[0] == "rb-train")
    assert train[-2:] == ["--jobs", "auto"]
    with pytest.raises(RbError, match="Expected DATASET/NETWORK"):
        recipes.pipe("prbench", Setting("mini", pairs="digits"))


def test_records_are_divided_once_where_they_are_trained_or_else_listed() -> None:
    loop: Pipe = [tuple([["rb-arch"], ["rb-train", "--noise", noise]] for noise in "abc"), ["rb-pr"]]
    shards = [told(loop, pipes.Workers(part=f"{number}/3")) for number in (1, 2, 3)]
    for noise in "abc":  # each shard is another one of the command's three
        of = [line.split()[-2] for shard in shards for line in shard if f"--noise {noise} " in line]
        assert sorted(of) == ["1/3", "2/3", "3/3"]
    listed = [told([["rb-arch"], ["rb-pr"]], pipes.Workers(part=f"{number}/3"))[2:] for number in (1, 2, 3)]
    rows = list(zip(*listed, strict=True))
    assert [min(row, key=len) for row in rows] == list("123456")
    assert all(sum("Another shard" in line for line in row) == 2 for row in rows)


def test_a_shard_of_another_recipe_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        monkeypatch.setattr(recipes, "pipe", lambda name, s, number=number: [["echo", str(number), s.data]])
        words = ("reproduce-theory", "--scale", "tiny", "--reproduced", "both", "--shard", f"{number}/2")
        shown = CliRunner().invoke(papers.main, [*words, "--data", f"of-machine-{number}"])
        other = pipes.file_of(Path("both/theory-tiny.jsonl"), f"{3 - number}/2", [["echo", str(number), ""]])
        assert f"still missing: {other.name}." in shown.output
    assert len([*Path("both").iterdir()]) == 2


def test_files_that_are_not_of_one_run_are_not_joined() -> None:
    other = '{"schema":1,"error":{"tool":"rb-train","message":"Another shard writes this record."}}\n'
    mine = runner.lines({"arch": {"name": "a"}})
    parts = [Path("a.1-of-2.jsonl"), Path("a.2-of-2.jsonl")]
    for first, second in ((mine, mine), (other, other), (mine + mine, other)):
        parts[0].write_text(first)
        parts[1].write_text(second)
        with pytest.raises(RbError, match="not from the same run"):
            pipes.join(parts, io.BytesIO())
    parts[0].write_text(mine + other)
    parts[1].write_text(other + mine)
    pipes.join(parts, joined := io.BytesIO())
    assert joined.getvalue().decode() == mine * 2


@pytest.mark.slow
def test_the_last_line_of_a_dry_run_is_the_sum_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RB_STORE", raising=False)

    def dry(eps: str) -> str:
        pipe = [
            ["rb-arch", *"--index 13714 --cells 1 --channels 2".split()],
            ["rb-train", *"--epochs 1 --val 0 --batch-size 512".split()],
            ["rb-attack", "pgd", "--eps", eps, "--n", "50"],
        ]
        monkeypatch.setattr(recipes, "pipe", lambda name, setting: pipe)
        result = CliRunner().invoke(papers.main, ["reproduce-wci", "--dry-run"])
        return result.stdout.splitlines()[-1].removeprefix("reproduce-wci: in all: ")

    assert dry("8") == "0 results in the store, 2 to compute."
    papers.run("wci", Setting("tiny"), Path("reproduced"), None)
    assert dry("8") == "2 results in the store, 0 to compute."
    assert dry("16") == "1 results in the store, 1 to compute."


def test_a_training_of_the_full_scale_leaves_one_file_of_weights() -> None:
    every = [one for name in recipes.NAMES for one in pipes.commands(recipes.pipe(name, Setting("full")))]
    trainings = [one for one in every if one[0] == "rb-train"]
    named = [one[one.index("--preset") + 1] for one in trainings]
    assert len(trainings) > 20 and all(presets.named(name).recipe["val"] == 0 for name in named)
    assert not any("--val" in one for one in trainings)
