"""Recipes on several machines: options of every stage, killed shards, the join of their files; dry runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rbtools.errors import RbError
from rbtools.papers import __main__ as papers
from rbtools.papers import cluster, planned
from rbtools.papers.recipes import RECIPES, Setting
from rbtools.trainer import presets
from tests import runner

# Two trainings of each of two networks; with $dies the process group ends after the first record.
PIPE = (
    "for width in 2 4; do rb-arch --space fcnn --depth 2 --sample 1 --width $width |"
    " rb-train --method erm,corruption --epochs 1; done |"
    " rb-measure bound --paper robbench --eps 16 --batch-size 4 --attack-steps 1 |"
    ' { if [ -z "$dies" ]; then cat; else head -n 1; kill -9 0; fi; }'
)
CODE = f"""
from rbtools.papers import __main__, recipes
recipes.RECIPES["theory"] = lambda setting: {PIPE!r}
__main__.main(prog_name="papers")
"""


def machine(folder: str, *words: str, dies: str = "") -> subprocess.Popen[str]:
    """A process that runs the recipe."""
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
            assert "The last shard joins all; not there yet" in done(process)
    assert not Path("four/theory-tiny.jsonl").exists()
    assert "theory-tiny.3-of-4." in done(machine("four", "--shard", "2/4"))
    joined = done(machine("four", "--shard", "3/4"))
    one = done(machine("one"))
    assert "fcnn: 4 networks" in one and joined == one
    files = cluster.files_of(Path("four/theory-tiny.jsonl"), "1/4", PIPE)
    records = Path("four/theory-tiny.jsonl").read_bytes().splitlines()
    assert len(records) == 4 and b"Another shard" not in b"".join(records)
    assert [len(file.read_bytes().splitlines()) for file in files] == [4] * 4
    assert sum(line in file.read_bytes().splitlines() for file in files for line in records) == 4


def told(pipe: str, jobs: str, part: str | None) -> list[str]:
    """What the tools of a pipe are called with: each is a program that says so."""
    Path("bin").mkdir(exist_ok=True)
    for tool in ("arch", "train", "pr"):
        file = Path(f"bin/rb-{tool}")
        file.write_text(f'#!/bin/sh\necho "rb-{tool} $*" >&2\n[ rb-{tool} = rb-arch ] && seq 6 || cat\n')
        file.chmod(0o755)
    text = cluster.shell_text(pipe, jobs, part)
    env = {**os.environ, "PATH": f"{Path('bin').absolute()}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", text], capture_output=True, text=True, env=env
    )
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stderr.splitlines()) + ran.stdout.splitlines()


def test_workers_are_of_every_stage_and_a_number_of_them_of_trainings() -> None:
    pipe = "rb-arch | rb-train --jobs 2 | rb-pr --gamma 1"
    assert told(pipe, "2", None)[:3] == ["rb-arch ", "rb-pr --gamma 1", "rb-train --jobs 2"]
    assert told(pipe, "ray", None)[:3] == [
        "rb-arch ",
        "rb-pr --gamma 1 --engine ray",
        "rb-train --jobs 2 --engine ray",
    ]
    dry = cluster.shell_text("{ rb-search darts; rb-arch; } | rb-train", "2", None, dry=Path("log"))
    assert 'rb-train "$@" --dry-run' in dry and "rb-search() { :; }" in dry and 'rb-arch "$@"' not in dry


def test_records_are_divided_once_where_they_are_trained_or_else_listed() -> None:
    loop = "for noise in a b c; do rb-arch | rb-train --noise $noise; done | rb-pr"
    shards = [told(loop, "1", f"{number}/3") for number in (1, 2, 3)]
    for noise in "abc":  # each shard is another one of the command's three
        of = [line.split()[-1] for shard in shards for line in shard if f"--noise {noise} " in line]
        assert sorted(of) == ["1/3:places", "2/3:places", "3/3:places"]
    listed = [told("rb-arch | rb-pr", "1", f"{number}/3")[2:] for number in (1, 2, 3)]
    rows = list(zip(*listed, strict=True))
    assert [min(row, key=len) for row in rows] == list("123456")
    assert all(sum("Another shard" in line for line in row) == 2 for row in rows)


def test_a_shard_of_another_recipe_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        monkeypatch.setitem(RECIPES, "theory", f"echo {number} {{0.data}}".format)
        words = ("reproduce-theory", "--scale", "tiny", "--reproduced", "both", "--shard", f"{number}/2")
        shown = CliRunner().invoke(papers.main, [*words, "--data", f"of-machine-{number}"])
        other = cluster.file_of(Path("both/theory-tiny.jsonl"), f"{3 - number}/2", f"echo {number} ")
        assert f"not there yet: {other.name}." in shown.output
    assert len([*Path("both").iterdir()]) == 2


def test_files_that_are_not_of_one_run_are_not_joined() -> None:
    other = '{"schema":1,"error":{"tool":"rb-train","message":"Another shard writes this record."}}\n'
    mine = runner.lines({"arch": {"name": "a"}})
    parts = [Path("a.1-of-2.jsonl"), Path("a.2-of-2.jsonl")]
    for first, second in ((mine, mine), (other, other), (mine + mine, other)):
        parts[0].write_text(first)
        parts[1].write_text(second)
        with pytest.raises(RbError, match="not of one run"):
            cluster.join(parts, Path("all.jsonl"))
    parts[0].write_text(mine + other)
    parts[1].write_text(other + mine)
    cluster.join(parts, Path("all.jsonl"))
    assert Path("all.jsonl").read_text() == mine * 2


def test_the_last_line_of_a_dry_run_is_the_sum_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RB_STORE", raising=False)

    def dry(eps: str) -> str:
        pipe = "rb-arch --index 13714 --cells 1 --channels 2 | rb-train --epochs 1 --val 0 --batch-size 512"
        monkeypatch.setitem(RECIPES, "wci", lambda setting: f"{pipe} | rb-attack pgd --eps {eps} --n 50")
        result = CliRunner().invoke(papers.main, ["reproduce-wci", "--dry-run"])
        return result.stdout.splitlines()[-1].removeprefix("reproduce-wci: in all: ")

    assert dry("8") == "0 results in the store, 2 to compute."
    papers.run("wci", Setting("tiny"), Path("reproduced"), subprocess.DEVNULL)
    assert dry("8") == "2 results in the store, 0 to compute."
    assert dry("16") == "1 results in the store, 1 to compute."


def test_a_sum_says_what_it_lacks() -> None:
    plan = {"found": 1, "missing": 3}
    events = [{"event": "plan", **plan}, {"event": "end", "status": 0}, {"event": "end", "status": 2}]
    Path("log").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert planned.in_words(Path("log")) == (
        "in all: 1 results in the store, 3 to compute. Stages that failed, whose work is not in it: 1."
    )
    assert planned.in_words(Path("none")) == "no stage ran."


def test_a_training_of_the_full_scale_leaves_one_file_of_weights() -> None:
    pipes = {name: pipe(Setting("full")) for name, pipe in RECIPES.items()}
    trainings = [
        one for pipe in pipes.values() for one in re.split(r"[|;]", pipe) if "rb-train" in one.split()
    ]
    named = [re.findall(r"--preset ([\w-]+)", one) for one in trainings]
    assert len(trainings) > 20 and all(len(names) == 1 for names in named)
    assert all(presets.named(names[0]).recipe["val"] == 0 for names in named)
    assert not any("--val" in one for one in trainings)
