"""The pipe of a record, as the leaderboard and the report print it: run again, it gives the same metrics."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rbtools.pages import leaderboard, model_report
from rbtools.pages.whole_pipe import steps_of

Record = dict[str, Any]


def shell(line: str, store: str) -> list[Record]:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"export RB_STORE={store}\n{line}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def printed(record: Record) -> str:
    """The command lines of the page, which are also those of the report."""
    content = re.findall(r'id="content">(.*?)</script>', leaderboard.page([record]), re.S)[0]
    of_board = json.loads(content)
    (row,) = of_board["rows"]
    pipe = " |\n  ".join(of_board["steps"][step] for step in row["steps"])
    assert f"<pre>{html.escape(pipe, quote=False)}</pre>" in model_report.page(record, "").replace(
        "&#39;", "'"
    )
    return pipe


@pytest.mark.slow
def test_the_printed_pipes_make_the_records_again() -> None:
    shell("rb-arch --index 5071 --channels 2 --cells 1 --dataset digits > archs.jsonl", "first")
    shell(
        "rb-train --method erm,trades --eps 32 --epochs 1 --batch-size 721 archs.jsonl > trained.jsonl",
        "first",
    )
    trained, _ = shell("rb-attack fgsm --eps 8 --n 20 trained.jsonl", "first")
    pipe = printed(trained)
    assert pipe.startswith("rb-arch --index 5071 --channels 2 --cells 1 --dataset digits |\n  rb-train ")
    (again,) = shell(pipe, "second")
    timed = {"seconds_per_epoch"}
    assert {name: again["metrics"][name] for name in again["metrics"].keys() - timed} == {
        name: trained["metrics"][name] for name in trained["metrics"].keys() - timed
    }
    assert again["checkpoint"] == trained["checkpoint"]

    digest = trained["checkpoint"].removeprefix("sha256:")
    (stored,) = Path("first").rglob(digest)
    Path("my nets").mkdir()
    shutil.copy(stored, "my nets/a net.pt")
    one = "rb-attack fgsm --eps 8 --n 20 --checkpoint 'my nets/a net.pt' --dataset digits"
    other = "rb-corrupt contrast --severity 1 --n 20 --checkpoint 'my nets/a net.pt' --dataset digits"
    shell(f"({one}; {other}) > two.jsonl", "third")
    (merged,) = shell("rb-rank --by acc --format jsonl two.jsonl", "third")
    pipe = printed(merged)
    assert pipe.startswith(f"# The SHA-256 of a net.pt begins with {digest[:8]}.\nrb-attack fgsm ")
    (again,) = shell(f"cd 'my nets'\n{pipe}", "../fourth")
    assert again["metrics"] == merged["metrics"] and len(merged["metrics"]) == 3


@pytest.mark.parametrize(
    ("arch", "more", "words"),
    [
        (
            {"space": "fcnn", "name": "fcnn3-11", "index": 11, "width": 32, "depth": 3},
            {},
            "--space fcnn --index 11 --width 32 --depth 3",
        ),
        (
            {"space": "torchvision", "name": "resnet18"},
            {"dataset": "imagefolder:/a/photos"},
            "--arch torchvision:resnet18 --dataset imagefolder:photos",
        ),
        (
            {"space": "zoo", "name": "vgg16", "shortcut": "input"},
            {},
            "--arch vgg16:shortcut=input",
        ),
        ({"space": "nasbench201", "str": "|none~0|", "cells": 1}, {}, "--str '|none~0|' --cells 1"),
        (
            {"space": "zoo", "name": "resnet18", "normalize": [[0.3], [0.37]]},
            {
                "checkpoint_file": "/a/m.pt",
                "recognised": {"arch_from": "given", "normalize_from": "--normalize"},
            },
            "--from-checkpoint m.pt --arch resnet18 --normalize '0.3 0.37'",
        ),
    ],
)
def test_the_pipe_begins_with_the_network(arch: Record, more: Record, words: str) -> None:
    record = {"arch": arch, "evals": [{"command": "rb-measure ntk --n 4 r.jsonl"}], **more}
    assert steps_of(record) == [f"rb-arch {words}", "rb-measure ntk --n 4"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("erm", "rb-train --method erm --epochs 2 --seed 1"),
        ("trades", "rb-train --method trades --eps 32 --epochs 2 --seed 1"),
        ("my-own", "rb-train --method=erm,python:nets:MyOwn,trades --eps 32 --epochs 2 --seed 1"),
    ],
)
def test_the_pipe_trains_only_the_network_of_the_record(method: str, words: str) -> None:
    line = "rb-train --method=erm,python:nets:MyOwn,trades --eps 32 --epochs 2 --seed 0-2"
    arch = {"space": "nasbench201", "index": 3}
    record = {"arch": arch, "train": {"method": method, "seed": 1, "command": line}}
    assert steps_of(record)[1:] == [words]


def test_a_stage_reads_the_records_before_it() -> None:
    lines = [
        "rb-ge attack pgd --eps 8/255 --checkpoint=m.pt@01234567 --normalize 0.3 0.4 -q",
        "rb-attack pgd --eps 8 --shard 1/2 -q r.jsonl@89abcdef --n 10",
        "rb-measure --preset ste r.jsonl",
        "rb-pr --checkpoint m.pt@01234567 --noise gaussian",
    ]
    assert steps_of({"arch": {"space": "zoo"}, "evals": [{"command": line} for line in lines]}) == [
        "# The SHA-256 of m.pt begins with 01234567.\n"
        "rb-ge attack pgd --eps 8/255 -q --checkpoint=m.pt --normalize '0.3 0.4'",
        "rb-attack pgd --eps 8 -q --n 10",
        "rb-measure --preset ste",
        "rb-pr --noise gaussian",
    ]
    answered = {"arch": {"space": "answers", "name": "m"}, "evals": [{"command": "rb-attack fgsm --eps 8"}]}
    assert steps_of(answered) == ["rb-attack fgsm --eps 8"]
    assert steps_of({"arch": {"space": "zoo", "name": "vgg16"}, "evals": [{"metric": "acc"}]}) == []
