"""Options whose value has parts, and old words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbtools.cli import tools
from rbtools.cli.option_parts import UNTIL, Part
from tests.cli.test_help import SOME
from tests.runner import parsed as in_force
from tests.runner import run

TRAIN = {
    "--schedule step:milestones=75/90,decay=0.2": {"schedule": "step", "milestones": "75,90", "decay": 0.2},
    "--schedule :decay=0.2": {"schedule": "onecycle", "decay": 0.2},
    "--optimizer sgd:momentum=0.8,nesterov": {"optimizer": "sgd", "momentum": 0.8, "nesterov": True},
    "--optimizer sgd:nesterov=off": {"nesterov": False},
    "--lr theorem1:0.3": {"lr": 0.3, "lr_rule": "theorem1"},
    "--lr 0.3": {"lr": 0.3, "lr_rule": "fixed"},
    "--batch-size 128:micro=32": {"batch_size": 128, "micro_batch": 32},
    "--regularize cutout:length=7,awp:gamma=0.1,warmup=5,l2:0.01,label-smoothing:0.2,mixup": {
        "regularize": "cutout,awp,l2,mixup",
        "cutout_length": 7,
        "awp_gamma": 0.1,
        "awp_warmup": 5,
        "l2": 0.01,
        "label_smoothing": 0.2,
        "mixup_alpha": 1.4,
    },
    "--regularize wci:0.02 --track wci --stop-on wci:patience=2": {
        "regularize": "wci",
        "wci_weight": 0.02,
        "stop_on": "wci",
        "stop_patience": 2,
    },
    "--filter chen-lee:rule=example,steps=2": {
        "filter": "chen-lee",
        "filter_rule": "example",
        "warm_steps": 2,
    },
    "--track robust,wci:every=3,n=50": {"track": "robust,wci", "every": 3, "track_n": 50},
    "--init timm:file=a/b.pth,resample=prbench": {
        "init": "timm",
        "init_file": "a/b.pth",
        "resample": "prbench",
    },
    "--select random": {"select": "last", "output": "random"},
    "--select best --val 0.1:patience=3": {"select": "best", "output": "last", "val": 0.1, "patience": 3},
    "--log a.log,tensorboard:curves": {"log": "a.log", "tensorboard": "curves"},
    "--jobs auto:per-gpu=2,unordered": {"jobs": "auto", "jobs_per_gpu": 2, "unordered": True},
    "--jobs ray": {"jobs": None, "engine": "ray", "address": None},
    "--jobs ray:host:6379": {"jobs": None, "engine": "ray", "address": "host:6379"},
    "--jobs 3:engine=ray,address=host:1": {"jobs": "3", "engine": "ray", "address": "host:1"},
    "--dataset imagefolder:a,b:class-map=m.json": {"dataset": "imagefolder:a,b", "class_map": "m.json"},
}


@pytest.mark.parametrize("words", TRAIN)
def test_a_value_reaches_the_options_parts(words: str) -> None:
    values = in_force("train", *words.split())
    assert {name: values[name] for name in TRAIN[words]} == TRAIN[words]


ATTACK = {
    "--n 20": {"n": 20, "indices": None},
    "--n 0-9,12": {"n": None, "indices": "0-9,12"},
    "--n list.json:few:first=5": {"n": 5, "indices": "list.json:few"},
    "--two-phase 40:steps=5": {"two_phase": "40", "precision_goal": None, "screen_steps": 5},
    "--two-phase .05": {"two_phase": None, "precision_goal": 0.05, "screen_steps": None},
    "--step-size 0.25*eps": {"step_size": None, "relative_step": 0.25},
    "--step-size 2/255": {"step_size": "2/255", "relative_step": None},
    "--checkpoint model.pt#ema": {"checkpoint": "model.pt", "member": "ema", "weights": None},
    "--checkpoint folder#cifar10": {"checkpoint": None, "member": "cifar10", "weights": "folder"},
    "--arch preactresnet18:shortcut=input": {"arch": "preactresnet18:shortcut=input"},
}


@pytest.mark.parametrize("words", ATTACK)
def test_an_option_tells_a_number_from_a_list_and_a_file_from_a_folder(words: str) -> None:
    Path("folder").mkdir()
    values = in_force("attack", "pgd", *words.split())
    assert {name: values.get(name) for name in ATTACK[words]} == ATTACK[words]


SLIPS = {
    "--schedule step:decays=2": "--schedule has no 'decays'. Did you mean 'decay'? It has: milestones,",
    "--schedule step:milestones=75,90": "--schedule: '90' is no KEY=V. Lists have slashes: KEY=75/90.",
    "--schedule step:decay=x": "Invalid value for '--schedule' (decay): 'x' is no number.",
    "--schedule step:milestones=1 --decay 2 --milestones 3": "Both --schedule step:milestones=1 and",
    "--jobs 2:ingine=ray": "--jobs has no 'ingine'. Did you mean 'engine'?",
    "--errors stop --strict": "Both --errors stop and --strict are given. Leave out one of the two.",
    "--errors halt": "--errors is 'halt'. Expected pass, retry or stop.",
    "--val 0.1:patience=0": "patience of --val is 0. It must be 1 or more.",
}


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_in_a_value_is_named(words: str) -> None:
    result = run("train", words)
    assert result.exit_code == 2 and SLIPS[words] in result.stderr, result.stderr


OLD = {
    "train --milestones 3,4": ("milestones", "3,4", "--milestones is now --schedule VALUE:milestones=LIST"),
    "train --no-nesterov": ("nesterov", False, "--no-nesterov is now --optimizer VALUE:nesterov"),
    "train --cutout-length 3": (
        "cutout_length",
        3,
        "--cutout-length is now --regularize cutout:length=N",
    ),
    "train --tensorboard d": ("tensorboard", "d", "--tensorboard is now --log tensorboard:DIR"),
    "train --no-store": ("store", "none", "--no-store is now --store none"),
    "train --strict --retry-errors": ("errors", "stop,retry", "--retry-errors is now --errors retry"),
    "train --no-prepare": ("prepare", "none", "--no-prepare is now --prepare none"),
    "attack pgd --indices 1-3": ("indices", "1-3", "--indices is now --n LIST"),
    "attack pgd --relative-step 0.5": ("relative_step", 0.5, "--relative-step is now --step-size 'X*eps'"),
    "attack pgd --replace": ("replace", True, "--replace is now --force"),
    "attack pgd --member ema": ("member", "ema", "--member is now --checkpoint FILE#MEMBER"),
    "attack aa --precision-goal 0.1": ("precision_goal", 0.1, "--precision-goal is now --two-phase GOAL"),
    "pr --rare --runs 2": ("runs", 2, "--rare is now --sampling rare"),
    "pr --adaptive": ("sampling", "adaptive", "--adaptive is now --sampling adaptive"),
    "rank --group seed": ("group", "seed", "--group is now --aggregate LIST|by:LIST"),
    "rank --assert-point x>1": ("assert_points", ("x>1",), "--assert-point is now --assert 'point:"),
    "rank --by acc --lower": ("lower", True, "--lower is now --by METRIC:lower or METRIC:higher"),
}


@pytest.mark.parametrize("line", OLD)
def test_an_old_word_means_what_it_meant_and_gives_one_notice(line: str) -> None:
    name, value, notice = OLD[line]
    tool, *words = line.split()
    values = in_force(tool, *words)
    assert values[name] == value
    printed = [text for text in run(tool, [*words, "--allow-empty"]).stderr.splitlines() if notice in text]
    assert len(printed) == 1 and printed[0].startswith(f"rb-{tool}: warning: ")
    assert f"it is accepted until {UNTIL}." in printed[0]


@pytest.mark.parametrize("page", SOME.values(), ids=lambda page: page.words)
def test_the_whole_of_every_part_is_an_option_too(page: tools.Page) -> None:
    params = page.command.get_params(page.context)
    flags = {flag for param in params for flag in param.opts}
    assert {f"--{part.whole}" for part in params if isinstance(part, Part)} <= flags
