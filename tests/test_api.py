"""The functions for notebooks give the records of the tools."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import rbtools
from rbtools import api, models
from rbtools.cli import python_calls
from rbtools.cli.declare import TOOLS
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs import checkpoints
from tests.runner import lines, one, records, run, timeless

ARCH = {"space": "nasbench201", "index": 13714, "channels": 2, "cells": 1}
EVERY_EDGE = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_1x1~1|nor_conv_1x1~2|"
OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 256, "attack_steps": 1, "eps": "16"}


def typed(line: str, record: dict[str, Any]) -> dict[str, Any]:
    """What a tool writes for this record."""
    tool, words = line.split(" ", 1)
    return one(run(tool, f"{words} --force", [record]))


def same(made: dict[str, Any], line: str, record: dict[str, Any]) -> None:
    assert timeless(typed(f"{line} --store one", record)) == timeless(made)


@pytest.mark.slow
def test_each_function_gives_the_record_of_its_tool() -> None:
    record, how = {"arch": ARCH}, {"n": 20, "store": "one"}
    trained = rbtools.train(record, "pgd", **OPTIONS, track="robust", track_n=9, store="one")
    line = "train --method pgd --epochs 1 --batch-size 256 --attack-steps 1 --eps 16"
    same(trained, f"{line} --track robust --track-n 9", record)
    attacked = rbtools.attack(trained, "pgd", eps=[8, "32/255"], steps=2, **how)
    same(attacked, "attack pgd --eps 8,32/255 --steps 2 --n 20", trained)
    assert {"pgd2.8", "pgd2.32"} <= attacked["metrics"].keys()
    measured = rbtools.measure(trained, ["ntk", "nu"], eps=[8], attack="fgsm", batch_size=6, store="one")
    same(measured, "measure ntk,nu --eps 8 --attack fgsm --batch-size 6", trained)
    noisy = rbtools.pr(trained, gamma=0.1, rho=[0.1], samples=3, **how)
    same(noisy, "pr --gamma 0.1 --rho 0.1 --samples 3 --n 20", trained)
    gap = rbtools.ge(trained, "loss", "pgd", eps=16, steps=2, n_train=30, **how)
    same(gap, "ge loss attack pgd --eps 16 --steps 2 --n 20 --n-train 30", trained)
    rare = rbtools.pr(trained, 0.3, sampling="rare", runs=2, particles=20, floor=0.01, **how | {"n": 2})
    same(rare, "pr --sampling rare --runs 2 --particles 20 --floor 0.01 --gamma 0.3 --n 2", trained)
    corrupted = rbtools.corrupt(trained, ["contrast"], severity=3, **how)
    same(corrupted, "corrupt contrast --severity 3 --n 20", trained)
    checked = rbtools.check(trained, eps=4, steps=1, queries=2, samples=2, n=10, store="one")
    same(checked, "attack check --eps 4 --steps 1 --queries 2 --samples 2 --n 10", trained)
    Path("origin.jsonl").write_text(lines(trained), "utf-8")
    for origin in (trained, "origin.jsonl"):
        moved = rbtools.transfer(trained, origin, "fgsm", eps=4, n=10, store="one", force=True)
        line = "attack transfer --from origin.jsonl --attack fgsm --eps 4 --n 10 --store one"
        assert typed(line, trained)["metrics"] == moved["metrics"]


def test_a_record_of_a_file_is_loaded_without_its_data_set() -> None:
    arch = {"space": "nasbench201", "str": EVERY_EDGE, "channels": 2, "cells": 1}
    network = models.build(arch, classes=7, shape=(3, 16, 16))

    def loaded(normalize: str | None) -> torch.Tensor:
        """The logits of the model of the file's record."""
        torch.save(network.state_dict(), "m.pt")
        hints = checkpoints.CheckpointHints(None, normalize)
        record = checkpoints.record_of(os.path.abspath("m.pt"), hints, Run.of("rb-arch"), with_data=False)
        return rbtools.load(record)(torch.ones(2, 3, 16, 16))

    for _ in range(2):
        with pytest.warns(UserWarning, match="does not specify its normalisation. Name a data set"):
            assert loaded(None).shape == (2, 7)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert loaded("none").shape == (2, 7)
        network(torch.rand(8, 3, 16, 16))  # statistics that have to be compared with images


@pytest.mark.parametrize(
    ("function", "arguments", "options", "line"),
    [
        ("attack", ["pdg"], {}, "attack pdg"),
        ("transfer", ["nowhere.jsonl"], {}, "attack transfer --from nowhere.jsonl"),
        ("train", ["pdg"], {}, "train --method pdg"),
        ("load", [], {"device": "gpu"}, "attack fgsm --device gpu"),
    ],
)
def test_what_a_command_refuses_its_function_refuses_with_the_same_sentence(
    function: str, arguments: list[str], options: dict[str, Any], line: str
) -> None:
    with pytest.raises(RbError) as refused:
        getattr(rbtools, function)({"arch": ARCH}, *arguments, **options)
    tool, words = line.split(" ", 1)
    result = run(tool, words, [{"arch": ARCH}])
    assert result.exit_code == 2
    sentence = re.sub(r" Try '[^']* --help'\.$", "", result.stderr.strip().split(": error: ", 1)[1])
    assert " ".join(str(refused.value).split()) == python_calls.as_keywords(sentence)


def test_arguments_are_called_by_their_python_names() -> None:
    refusals = {
        "restart": "No such argument `restart`. Did you mean `restarts`",
        "steps": "Invalid value for `steps`: 'x'",
    }
    for name, words in refusals.items():
        with pytest.raises(RbError, match=re.escape(words)):
            rbtools.attack({"arch": ARCH}, "pgd", **{name: "x"})


# Options that a call from Python does not have: streams, messages and several processes.
NOT_IN_PYTHON = {
    "errors",
    "allow_empty",
    "shard",
    "placeholders",
    "in_place",
    "form",
    "shown",
    "help",
    "version",
}
NOT_IN_PYTHON |= {"quiet", "verbose", "log", "config", "dry_run", "plan"}
NOT_IN_PYTHON |= {"jobs", "jobs_per_gpu", "engine", "address", "unordered"}
# The first arguments of a function, otherwise "record": words or a stream on the command line.
GIVEN = {
    "score": {"records"},
    "rank": {"records"},
    "corr": {"records"},
    "attack": {"record", "attack", "preset"},
    "transfer": {"record", "origin"},
    "certify": {"record", "method"},
    "arch": {"which"},
    "convert": {"format", "path", "records"},
    "corrupt": {"record", "corruptions"},
    "ge": {"record", "evaluation", "chosen"},
    "measure": {"record", "names", "measures"},
    "plot": {"records", "kind"},
    "search": {"records", "algorithm"},
}
OF_ATTACK = ("check", "curve", "transfer")


@pytest.mark.parametrize("function", [*(name for name in TOOLS if name != "store"), *OF_ATTACK])
def test_the_options_of_a_tool_and_the_arguments_of_its_function_agree(function: str) -> None:
    arguments = dict(inspect.signature(getattr(api, function)).parameters)
    tool, words = ("attack", [function]) if function in OF_ATTACK else (function, [])
    declared = TOOLS.load(tool).commands[function] if words else TOOLS.load(tool)
    options = {option.name: option for option in declared.every_option if option.flags}
    # Options of the file of --checkpoint.
    of_file = {"arch", "normalize"} if "checkpoint" in options else set()
    left_out = (NOT_IN_PYTHON - {"jobs"} if tool == "search" else NOT_IN_PYTHON) | of_file
    shown = {name: param.name for name, (param, _) in python_calls.parameters(tool, words).items()}
    assert shown.keys() == options.keys() - left_out
    named = {name if name in arguments else word for name, word in shown.items()}
    first = GIVEN.get(function, {"record"})
    assert arguments.keys() - first == named - first | {"options"}
    for name in options.keys() & arguments.keys():
        default = options[name].default
        given = default if isinstance(default, (str, int, float)) else None
        if arguments[name].default is not inspect.Parameter.empty:
            assert (arguments[name].default or None) == (given or None), name


@pytest.mark.parametrize("function", [*(name for name in TOOLS if name != "store"), *OF_ATTACK])
def test_docstrings_name_arguments_and_no_options(function: str) -> None:
    text = getattr(api, function).__doc__
    assert "--" not in re.sub(r"rb-[a-z]+( check| curve| transfer)? --[a-z-]+", "", text)


def test_a_file_in_the_folder_sets_no_defaults_of_a_function() -> None:
    Path("rbtools.yaml").write_text("rb-arch: {cells: 7}\n", "utf-8")
    assert rbtools.arch(13714)[0]["arch"]["cells"] == 5


def results() -> list[dict[str, Any]]:
    rows = [("a", 0, 0.5, 0.25), ("a", 1, 0.75, 0.5), ("b", 0, 0.25, 0.125), ("b", 1, 0.375, 0.0)]
    some = []
    for number, (name, seed, acc, pgd) in enumerate(rows):
        record = {"schema": 1, "arch": {"name": name, "index": number}, "dataset": "d"}
        train, metrics = {"method": name, "seed": seed}, {"acc": acc, "pgd20.8": pgd}
        some.append({**record, "train": train, "metrics": metrics})
    return some


def written(tool: str, words: str, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result = run(tool, words, given)
    assert result.exit_code == 0, result.stderr
    return records(result)


def test_score_rank_and_corr_give_what_their_tools_write() -> None:
    some, key = results(), "mean(acc,pgd20.8)"
    scored = rbtools.score(some, ["acc"], weight={"pgd20.8": 2}, within="dataset")
    assert scored == written("score", "--metric acc --weight pgd20.8=2 --within dataset", some)
    weights = {"acc": 1, "pgd20.8": 2}
    assert rbtools.score(some, weights=weights, higher="pgd20.8", within=["dataset"]) == scored
    assert rbtools.rank(scored, top=3) == written("rank", "--top 3", scored)
    ranked = rbtools.rank(some, key, lower=key, aggregate_by="train.method", where="acc > 0.3")
    assert ranked == written(
        "rank", f"--by {key} --lower {key} --aggregate-by train.method --where 'acc > 0.3'", some
    )
    found = rbtools.corr(some, kind="kendall", rows="acc", bootstrap=20, seed=3)
    assert found == written("corr", "--kind kendall --rows acc --bootstrap 20 --seed 3", some)
    sets = {"ours": some, "theirs": some}
    (pair,) = rbtools.corr(sets, rows="ours:acc", cols="theirs:pgd*", on="arch.index")
    assert (pair["row"], pair["col"], pair["n"]) == ("ours:acc", "theirs:pgd20.8", 4)
    assert rbtools.score([]) == rbtools.rank([]) == []
    cells = [{**cell, "metrics": {"acc": n}} for n, cell in enumerate(rbtools.arch(unique=True, sample=9))]
    searched = written("search", "random --objective acc --budget 5", cells)
    assert api.search(cells, "random", "acc", budget=5) == searched
    with pytest.raises(RbError, match="To join result sets, name the fields"):
        rbtools.corr(sets)


@pytest.mark.parametrize("name", ["pr", "train", "load"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.nn.Linear(2, 2), "Found a Linear, which is a torch module, without data. Add data="),
        ([{"arch": ARCH}], "Found a list with several items: call the function once for each record"),
        (None, "Found a NoneType."),
        ({"train": {}}, 'The record is not a record: it has no "arch"'),
    ],
)
def test_what_is_no_record_is_told_what_one_is(name: str, given: Any, words: str) -> None:
    with pytest.raises(RbError, match=re.escape(words)):
        getattr(rbtools, name)(given)


def test_progress_is_shown_as_text_by_a_function_or_by_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    record = rbtools.train({"arch": ARCH}, "erm", epochs=1, batch_size=256, store="one", progress=said.append)
    assert any("epoch 1/1" in line for line in said)
    said.clear()
    rbtools.attack(record, "aa", eps=1, n=40, attacks="fgsm,pgd", store="one", progress=said.append)
    line = r"ensemble-fgsm-pgd seed 0 · image 0/40 · (?:at most [^·]+ left · )?"
    line += r"pgd, 2 of 2 · \d+ of \d+ unbroken · [\d,]+ pass"
    assert re.search(line, "\n".join(said)), said
    rbtools.evaluate(torch.nn.Flatten(), "digits", "acc", n=20, progress=True)
    assert "image 0/20" in capsys.readouterr().err
