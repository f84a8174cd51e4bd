"""The command line that makes a record again: it does, and a hostile record cannot make it another."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from rbtools.cli import tools
from rbtools.commands.train import main as train_command
from rbtools.pages import reproduce_command, shell_words
from rbtools.pages.reproduce_command import reproduce_command as make_again

Record = dict[str, Any]
IMPORTED: Record = {
    "arch": {"space": "zoo", "name": "resnet18"},
    "dataset": "cifar10",
    "train": {"method": "trades", "seed": 3},
    "metrics": {},
}


def test_the_options_of_a_training_are_those_of_rb_train() -> None:
    assert set(reproduce_command.RECIPE) <= {param.name for param in train_command.params}


def test_a_configuration_of_rb_train_has_nothing_that_goes_unsaid() -> None:
    from rbtools.trainer.recipe import Recipe

    every = Recipe(
        regularize=("cutout", "mixup", "awp"),
        schedule="step",
        milestones=(1,),
        filter="chen-lee",
        ema=0.9,
        patience=2,
        micro_batch=8,
        label_smoothing=0.1,
        clean_pass=True,
        deterministic=True,
        init="timm",
        resample="prbench",
    )
    assert set(every.config()) | set(Recipe(regularize=("l2",)).config()) <= {
        *reproduce_command.RECIPE,
        "init",
        "resample",
    }


def test_a_training_from_timms_weights_names_them_and_one_from_a_file_says_so() -> None:
    arch = {"space": "timm", "name": "deit_tiny_patch16_224", "side": 32, "patch": 4}
    config = {"epochs": 1, "init": "timm", "resample": "prbench"}
    train = {"method": "pgd", "seed": 0, "config": config, "init": {"timm": "deit_tiny_patch16_224"}}
    record = {"arch": arch, "dataset": "cifar10", "train": train, "metrics": {}}
    made = make_again(record)
    assert "--arch timm:deit_tiny_patch16_224:side=32:patch=4" in made.steps[0]
    assert "--init timm --resample prbench" in made.steps[1] and not made.lacking
    train["init"] = {**train["init"], "file": "sha256:00"}
    made = make_again(record)
    assert "--init" not in made.steps[1]
    assert any("went on from other weights" in one for one in made.lacking)


def ran(steps: list[str]) -> Record:
    """The one record that comes out of a pipe. In this process: torch is imported once."""
    text = ""
    for step in steps:
        tool, *arguments = shlex.split(step)
        main = tools.tool(tool.removeprefix("rb-")).command
        result = CliRunner().invoke(main, arguments, input=text)
        assert result.exit_code == 0, f"{step}\n{result.stderr}"
        text = result.stdout
    (line,) = text.splitlines()
    return json.loads(line)


def test_the_command_line_makes_the_record_again() -> None:
    typed = """
        rb-arch --index 13714 --cells 1 --channels 4
        rb-train --method trades --epochs 1 --eps 16 --attack-steps 1 --lr 0.05 --val 0.1 --seed 4
        rb-attack pgd --eps 8,16 --steps 3 --step-size 4 --n 40 --seed 2
        rb-pr --gamma 8/255,0.2 --rho 0.05 --samples 100 --noise gaussian --n 40 --passes above
        rb-corrupt brightness --severity 2 --n 40
        rb-ge acc --n 40 --n-train 60
        rb-ge attack fgsm --eps 16 --n 40 --n-train 60
        rb-ge loss attack fgsm --eps 8 --n 40 --n-train 60
    """
    made = ran(typed.strip().splitlines())
    told = make_again(made)
    assert told.lacking == []
    found = ran(told.steps)
    assert {**found["metrics"], "seconds_per_epoch": 0} == {**made["metrics"], "seconds_per_epoch": 0}
    assert found["checkpoint"] == made["checkpoint"]


def test_a_checkpoint_of_ones_own_is_named_with_its_file() -> None:
    record = {
        "arch": {"space": "zoo", "name": "resnet18"},
        "dataset": "imagefolder:my photos",
        "checkpoint": "sha256:00",
        "checkpoint_file": "models/model 1.pt",
        "metrics": {"fgsm.2": 0.1},
        "evals": [
            {"metric": "acc", "n": 10, "value": 0.6},
            {
                "tool": "rb-attack",
                "metric": "fgsm.2",
                "attack": "fgsm",
                "eps": 2 / 255,
                "norm": "linf",
                "n": 10,
            },
        ],
    }
    assert make_again(record).steps == [
        "rb-arch --from-checkpoint 'models/model 1.pt' --arch resnet18",
        "rb-attack fgsm --eps 2 --n 10 --dataset 'imagefolder:my photos'",
    ]


PROGRAM = """
from torch import nn


class OwnNet(nn.Sequential):
    def __init__(self, num_classes, in_channels):
        super().__init__(nn.Conv2d(in_channels, 4, 8), nn.Flatten(), nn.Linear(4, num_classes))
"""


def test_a_network_of_ones_own_is_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("ownnet.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    torch.save(importlib.import_module("ownnet").OwnNet(10, 1).state_dict(), "own.pt")
    model = "--arch python:ownnet:OwnNet --normalize 0.5 0.25"
    made = ran([f"rb-corrupt brightness --severity 2 --n 10 --checkpoint own.pt {model} --allow-code"])
    told = make_again(made)
    assert told.steps == [
        f"rb-arch --from-checkpoint {Path('own.pt').resolve()} {model} --dataset digits --allow-code",
        "rb-corrupt brightness --severity 2 --n 10 --dataset digits --allow-code",
    ]
    assert "if you trust them" in "\n".join(told.lacking)
    assert ran(told.steps)["metrics"] == made["metrics"]


@pytest.mark.parametrize(
    ("normalize", "source", "words"),
    [
        ("none", "--normalize", " --normalize none"),
        ("per-image", "--normalize", " --normalize per-image"),
        ([[0.5], [0.25]], "checkpoint", ""),
        ("$(touch owned)", "--normalize", ""),
    ],
)
def test_a_normalisation_is_named_where_it_was_typed(normalize: object, source: str, words: str) -> None:
    arch = {"space": "timm", "name": "vit_tiny_patch16_224", "side": 32, "normalize": normalize}
    record = {"arch": arch, "checkpoint_file": "a.pt", "metrics": {}}
    facts = {"arch_from": "given", "normalize_from": source}
    (step,) = make_again({**record, "recognised": facts}).steps
    assert step == f"rb-arch --from-checkpoint a.pt --arch timm:vit_tiny_patch16_224:side=32{words}"
    (step,) = make_again({**record, "recognised": {**facts, "arch_from": "weights"}}).steps
    assert step == f"rb-arch --from-checkpoint a.pt{words}"


def test_a_resnet_with_windows_is_made_with_its_stem_and_pool() -> None:
    arch = {**IMPORTED["arch"], "stem": "cifar", "pool": "4x4"}
    assert make_again({**IMPORTED, "arch": arch}).steps[0] == "rb-arch --arch resnet18:stem=cifar:pool=4x4"


def test_published_numbers_are_told_by_their_names_and_what_is_missing_is_said() -> None:
    metrics = dict.fromkeys(
        (
            "acc pgd10.8 pgd20.8 aa.8 pr.uniform.0.0313725 pr.uniform.0.08 probacc.uniform.0.0313725.0.05"
            " ge.pgd20.8 ge.pr.uniform.0.08 ge.pr-all.uniform.0.08 pr-all.uniform.0.1"
            " seconds_per_epoch corrupt.fog.3 corrupt.fog.4 mystery"
        ).split(),
        0.5,
    )
    told = make_again({**IMPORTED, "metrics": metrics})
    assert told.steps == [
        "rb-arch --arch resnet18",
        "rb-train --method trades --seed 3 --dataset cifar10",
        "rb-attack pgd --eps 8 --steps 10",
        "rb-attack pgd --eps 8 --steps 20",
        "rb-attack aa --eps 8",
        "rb-pr --gamma 8/255,0.08 --rho 0.05 --noise uniform",
        "rb-ge attack pgd --eps 8 --steps 20",
        "rb-ge pr --gamma 0.08 --noise uniform",
        "rb-pr --gamma 0.1 --noise uniform --denominator all",
        "rb-corrupt fog --severity 3,4",
    ]
    said = "\n".join(told.lacking)
    assert "training's configuration is not in the record" in said
    assert "says only in part how these were measured (pgd10.8, " in said
    assert "does not say how these were measured: mystery." in said


@pytest.mark.parametrize(
    ("over", "words"),
    [(("correct", "all"), ""), (("correct",), " --denominator correct"), (("all",), " --denominator all")],
)
def test_gaps_of_pr_name_the_images_that_they_are_over(over: tuple[str, ...], words: str) -> None:
    about = {"noise": "uniform", "norm": "linf", "clip": True, "samples": 5, "gamma": 0.3}
    names = {"correct": "ge.pr.uniform.0.3", "all": "ge.pr-all.uniform.0.3"}
    clean = [{"metric": metric, "n": 40, "value": 0.5} for metric in ("acc", "train.acc")]
    counts = {"correct": [20, 20], "all": [40, 40]}
    evals = [{**about, "metric": names[one], "denominator": one, "n": counts[one]} for one in over]
    steps = make_again({**IMPORTED, "metrics": {}, "evals": [*clean, *evals]}).steps
    assert [step for step in steps if step.startswith("rb-ge")] == [
        f"rb-ge pr --gamma 0.3 --noise uniform --norm linf --clip --samples 5 --n-train 40 --n 40{words}"
    ]


@pytest.mark.parametrize("names", ["{}_gap.fgsm.8", "test_minus_train.{}.fgsm.8"])
def test_gaps_of_old_and_new_names_are_one_command(names: str) -> None:
    entry = {"tool": "rb-ge", "attack": "fgsm", "eps": 8 / 255, "norm": "linf", "n": [40, 60]}
    evals = [{**entry, "metric": names.format(what)} for what in ("loss", "error")]
    steps = make_again({**IMPORTED, "metrics": {}, "evals": evals}).steps
    assert [step for step in steps if step.startswith("rb-ge")] == [
        "rb-ge loss attack fgsm --eps 8 --n 40 --n-train 60"
    ]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"arch": {"space": "nasbench201", "index": 7}, "metrics": {}}, "how its weights came to be"),
        ({"arch": {"space": "elsewhere", "name": "x"}, "train": {"method": "erm"}}, "which architecture"),
        ({**IMPORTED, "train": {"method": "magic"}}, "does not name a training method that rb-train has"),
        ({"arch": {"space": "python", "name": "m:f"}}, "--allow-code"),
        ({}, "which architecture"),
    ],
)
def test_what_the_record_does_not_say_is_said(record: Record, said: str) -> None:
    assert said in "\n".join(make_again(record).lacking)


WORDS = ["$(touch owned)", "'; touch owned; '", "a b", "*", "~", "-x", "--allow-code", "`id`", "|", "&&", "é"]


def hostile(word: str) -> Record:
    """A record with this word wherever a command line takes something from it."""
    attack = {"metric": "pgd20.8", "attack": "pgd", "eps": 0.1, "norm": word, "start": word, "n": word}
    config = {"epochs": word, "lr": word, "eps": word, "milestones": [word], word: word}
    return {
        "arch": {"space": "zoo", "name": word},
        "dataset": word,
        "train": {"method": "pgd", "seed": word, "config": config},
        "checkpoint_file": word,
        "metrics": {word: 0.5},
        "evals": [
            {**attack, "seed": word, word: 1},
            {"metric": "p", "noise": word, "gamma": 0.1, "samples": word, "split": word},
            {"metric": "c", "corruption": word, "severity": word, "constants": word},
            {"metric": "d", "corruption": "fog", "severity": 3, "constants": word},
            {"metric": "x", "attack": word, "eps": 0.1},
        ],
    }


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("trained", [True, False])
def test_a_hostile_value_stays_the_value_of_its_option(word: str, trained: bool) -> None:
    record = hostile(word)
    if not trained:
        del record["train"]
    tools = ["rb-arch", *(["rb-train"] if trained else []), "rb-attack", "rb-pr", "rb-corrupt"]
    steps = make_again(record).steps
    assert [step.split()[0] for step in steps] == tools
    for step in steps:
        echoed = f"printf '%s\\n' {step}"
        shell = subprocess.run(["bash", "-c", echoed], capture_output=True, text=True, check=True).stdout
        assert shell.splitlines() == shlex.split(step)
        for before, each in itertools.pairwise(shell.splitlines()):
            if each == word:  # the value of an option, and not to be taken for another option
                assert before.startswith("--") and "=" not in before and not word.startswith("-")
            else:
                assert re.fullmatch(r"--[a-z0-9-]+(=.*)?|[a-z0-9.,/-]+", each)
                assert "=" not in each or each.partition("=")[2] == word
    assert not list(Path().iterdir())


PLACES: list[tuple[Any, ...]] = [
    ("arch", "name"),
    ("dataset",),
    ("train", "seed"),
    ("train", "config", "lr"),
    ("train", "config", "milestones", 0),
    ("evals", 0, "norm"),
    ("evals", 1, "noise"),
    ("evals", 1, "split"),
    ("evals", 3, "constants"),
]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("word", ["a\nrm -rf ~", "\x1b[2J", "a\u202eb", "a\u2028b", "\x00"])
def test_control_characters_give_no_command_at_all(word: str, place: tuple[Any, ...]) -> None:
    record: Any = hostile("plain")
    assert make_again(record).steps
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = word
    told = make_again(record)
    assert told.steps == [] and "control characters" in told.lacking[0]


@pytest.mark.parametrize(
    ("value", "text"), [(8 / 255, "8"), (0.031, "7.905"), (1 / 3, None), (0.5 / 255, "0.5"), (0.0, "0")]
)
def test_distances_read_back_as_they_were(value: float, text: str | None) -> None:
    found = shell_words.distance(value)
    assert abs(float(found) / 255 - value) < 1e-15 and (text is None or found == text)
    assert float(shell_words.number(value)) == value


def test_a_radius_is_a_fraction_of_255_only_where_it_was_one() -> None:
    assert [shell_words.radius(value) for value in (8 / 255, 0.2, 0.08)] == ["8/255", "0.2", "0.08"]


def of_measure(metric: str, **protocol: Any) -> dict[str, Any]:
    images = {"split": "test", "batches": 2, "batch_size": 20, "n": 40}
    return {"tool": "rb-measure", "metric": metric, **images, **protocol, "value": 0.5}


def commands_of(*entries: dict[str, Any]) -> list[str]:
    told = make_again({**IMPORTED, "metrics": {}, "evals": [*entries]})
    return [step for step in told.steps if step.startswith(("rb-measure", "rb-attack transfer"))]


def test_a_measure_is_made_with_its_weights_images_and_settings() -> None:
    pgd = {"attack": "pgd", "eps": 8 / 255, "norm": "linf", "steps": 10, "step_size": None, "iterate": "last"}
    about = {"measure": "margin", "on": "trained", "seed": 4}
    margin = [of_measure("margin.clean", **about), of_measure("margin.robust.pgd.8", **about, **pgd)]
    margin.append(of_measure("margin.robust.pgd.4", **about, **{**pgd, "eps": 4 / 255}))
    assert commands_of(*margin) == [
        "rb-measure margin --on trained --split test --batches 2 --batch-size 20 --seed 4 --attack pgd"
        " --attack-steps 10 --eps 8,4"
    ]
    small = of_measure("naswot", measure="naswot", on="init", init_seed=3, batchnorm="batch")
    assert commands_of({**small, "n": 33}) == [
        "rb-measure naswot --on init --split test --batches 2 --batch-size 20 --init-seed 3 --batchnorm batch"
        " --n 33"
    ]
    assert commands_of({"metric": "params", "measure": "params", "value": 5}) == ["rb-measure params"]


def test_the_numbers_of_a_measure_say_which_options_give_them() -> None:
    about = {"measure": "hessian", "on": "trained"}
    hessian = [
        of_measure("hessian.weight.trace", **about, probes=5),
        of_measure("hessian.weight.top3", **about, iterations=50, tolerance=0.001),
        of_measure("hessian.input.labs", **about, iterations=50, tolerance=0.001),
    ]
    (line,) = commands_of(*hessian)
    assert "--probes 5 --iterations 50 --tolerance 0.001 --wrt both --solver both --top 3" in line
    ntk = {"measure": "ntk", "on": "init", "logits": "each"}
    assert commands_of(of_measure("ntk.clean.fro", **ntk))[0].endswith("--logits each --kernel clean")
    joint = of_measure("ntk.all_robust.lmin.pgd.8", **ntk, beta=0.25, attack="fgsm", eps=8 / 255)
    assert commands_of(joint)[0].endswith("--attack fgsm --eps 8 --beta 0.25 --logits each --kernel joint")


def test_a_bound_and_an_unknown_measure_are_not_described() -> None:
    told = make_again({**IMPORTED, "evals": [of_measure("bound.wci1", measure="bound")], "metrics": {}})
    assert "does not say how these were measured: bound.wci1." in "\n".join(told.lacking)
    assert commands_of(of_measure("mine", measure="python:mine:Own")) == []


def test_a_transfer_names_the_attacked_model_by_its_checkpoint() -> None:
    about = {"attack": "fgsm", "eps": 8 / 255, "norm": "linf", "loss": "ce", "source": "sha256:0f"}
    entry = {"metric": "transfer.fgsm.8", **about, "n": 10, "precision": "fp32", "value": 0.5}
    (line,) = commands_of(entry)
    assert line.startswith("rb-attack transfer --eps 8 --attack fgsm --from sha256:0f")
    assert "--precision" not in line
    assert "put its file there" in "\n".join(make_again({**IMPORTED, "evals": [entry]}).lacking)
