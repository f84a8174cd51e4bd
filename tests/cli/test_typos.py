"""Mistakes at the shell, of all tools: each is answered by one line with its cause and the remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
import torch

import rbtools
from rbtools.cli import tools
from rbtools.errors import near
from rbtools.models import build
from rbtools.papers.__main__ import main as papers
from rbtools.training import METHODS
from tests.runner import lines as json_lines
from tests.runner import run

# For each tool the arguments, and a part of the message, mostly the correction.
MISTAKES = {
    "attack": {
        "": "Choose one of: fgsm, pgd",
        "pdg results.jsonl": "Did you mean 'pgd'?",
        "autoattack results.jsonl": "Did you mean 'aa'?",
        "--eps 8 pgd results.jsonl": "Write options after it: rb-attack pgd --eps 8 results.jsonl",
        "pgd --eps eight results.jsonl": "Expected a number such as 8 or 8/255",
        "pgd --eps -8 results.jsonl": "write for example --eps 8",
        "pgd --eps 0.031 results.jsonl": "write --eps 8 for 0.031 on the [0, 1] scale, or --eps 0.031",
        "pgd --norm l2 --eps 8 results.jsonl": "is an L2 distance on [0, 1]",
        "pgd --device gpu results.jsonl": "Expected auto, cpu, cuda",
        "pgd --eps 300 results.jsonl": "more than the whole pixel range",
        "pgd --arch resnet18 results.jsonl": "--arch describes a --checkpoint",
        "pgd --step-size 0.01 results.jsonl": "has two readings",
        "pgd --split tset results.jsonl": "Did you mean 'test'?",
        "pgd --output x.jsonl results.jsonl": "write > FILE",
        "pgd model.pt": "Give a network's weights with --checkpoint FILE",
        "pgd --checkpoint https://x.example/m.pt": "is an address. Download the file of weights",
        "pgd --device cuda:99 results.jsonl": "The device 'cuda:99' cannot be used",
        "pgd --checkpoint model.pt --arch mynet:build": "write --arch python:mynet:build --allow-code",
        "pgd --checkpoint model.pt --dataset photos": "write imagefolder:photos",
        "pgd --steps 99999999999999999999": "99999999999999999999 is too large. Expected 9223372036854775807",
        "pgd --step-size nan": "--step-size is 'nan'. Expected a finite number.",
        "pgd --precision fp23": "is not one of 'auto', 'fp32', 'bf16'. Did you mean 'fp32'? Try",
        "pgd --threads 99999999": "--threads is 99999999. Expected 1024 at most.",
        "pgd --jobs 99999999": "--jobs is '99999999'. Expected a whole number from 1 to 1024, or auto.",
        "pgd --shard ²/3": "--shard is '²/3'. Expected I/N",
        "pgd --eps ,": "--eps is empty. Expected distances such as 8 or 1,2,8.",
        "pgd --eps 1-9999999999": "which is 9,999,999,999 numbers. Expected 100,000 at most.",
        "pgd --checkpoint model.safetensors in.jsonl": "Both --checkpoint and FILE are given.",
        "pgd --eps 8 --ladder": "--ladder needs several distances",
        "check --eps 8,16": "Expected one distance above 0",
        "pgd --two-phase 3": "--two-phase is 3. Expected a number of images, 10 or more, or all.",
        "pgd --two-phase 20 --precision-goal .01": "Give one of them.",
        "pgd --two-phase 20 --detail": "leave out --ladder, --detail, --save-adv",
        "pgd --screen-steps 1": "--screen-steps belongs to --two-phase.",
        "curve --attacks pgd": "--attacks: Unknown search in linf 'pgd'.",
        "fgsm --defend jpeg:0": "quality of defence 'jpeg' is 0. It must be from 1 to 100.",
        "fgsm --defend python:own_stage:Grey": "is a program, which would run. If you trust it, add",
        "curve --attacks ,": "--attacks is empty.",
        "fgsm --backward own": "--backward is for stages.",
        "fgsm --checkpoint model.pt --normalize cifar1": "Unknown normalization 'cifar1'. Did you mean",
        "fgsm --checkpoint model.pt --normalize 0.5": "Expected a mean and a standard deviation",
        "fgsm --checkpoint model.pt --normalize 0.5,0.5 0.5": "2 means and 1 standard deviations",
        "fgsm --checkpoint model.pt --normalize 0.5 0": "cannot normalise images",
        "fgsm --checkpoint model.pt --normalize 125.3,123,113.9 63,62.1,66.7": "Did you mean"
        " 0.4914,0.4824,0.4467 0.2471,0.2435,0.2616?",
        "fgsm --log no/such/folder/log.jsonl": "Cannot write the log no/such/folder/log.jsonl: No such file",
        "fgsm --in-place": "--in-place needs exactly one FILE",
        "none --checkpoint photos": "--checkpoint photos is a folder without",
        "fgsm --member first": "--member is for a file of weights.",
    },
    "train": {
        "trades models.jsonl": "There is no file 'trades'. The training method is --method trades.",
        "--method madry models.jsonl": "Did you mean 'pgd'?",
        "--method trades --beta 6 models.jsonl": "here that is --lambda",
        "--method erm --lambda 6 models.jsonl": "belongs to --method trades",
        "--learning-rate 0.1 models.jsonl": "Did you mean '--lr'?",
        "--preset pr-bench models.jsonl": "Did you mean 'prbench'",
        "--method ,": "--method is empty. Known methods: erm,",
        "--schedule step --milestones 7.5": "--milestones has 7.5. Expected whole numbers",
        "--schedule step": "no milestones. Give the epochs, such as --milestones 75,90.",
        "--store none": "--store is none, but the checkpoints of a training are kept in the store.",
        "--optimizer sgd --momentum 0.8": "--momentum has no effect with --schedule onecycle",
        "--schedule cosine --decay 0.5": "--decay has no effect with --schedule cosine, which has no"
        " milestones. Leave out one, or change the other.",
        "--augment crop,crop-reflect": "--augment has both crop and crop-reflect",
        "--preset jung2023": "The preset jung2023 trains nothing",
        "--regularize l2 --weight-decay 1e-4": "--weight-decay has no effect with --regularize l2",
        "--regularize awp --batch-size 20 --micro-batch 10": "and --micro-batch 10 cuts it into pieces.",
        "--track robust --stop-on wci": "--track has no wci. Add it: --track robust,wci.",
        "--val 0 --patience 3": "--patience 3 waits for a better validation, but --val 0",
        "--val 0 --select best": "--select best needs a validation, but --val 0",
        "--output random --ema 0.9": "--output random keeps the weights before a random step, and --ema"
        " chooses",
        "--val 1": "--val is 1. It must be a share from 0 to below 1.",
        "--filter chen-lee": "--filter chen-lee is for attacks by steps, and --method erm has none.",
        "--method pgd --filter chen-lee --filter-rule example --inner-mode train": "BatchNorm would use only"
        " these parts. Use --inner-mode eval, or --filter-rule batch.",
        "--method pgd --filter chen-lee --warm-steps 11": "--warm-steps is 11, more than the 10 of",
        "--method cvar --tail exact --rounds 2": "--rounds has no effect with --tail exact",
        "--method corruption --scale unit": "--scale has no effect with --noise uniform",
        "--method at-pr --plain-step 3": "--plain-step has no effect with --first drawn and",
        "--method cvar --beta 1.5": "beta of training method 'cvar' is 1.5.",
        "--init checkpoint --normalize none": "--normalize has no effect with --init checkpoint",
        "--config nowhere.yaml": "Cannot read nowhere.yaml: No such file",
        "--dataset cifar10 --data-dir nowhere models.jsonl": "The data set cifar10 was not found",
        "--preset nasrobbench201 --lambda 1": "belongs to --method trades and mart and alp and clp and"
        " fgsm-pgi, but --method is pgd.",
    },
    "rank": {
        "--by arch.name results.jsonl": "Cannot rank by 'nb201-13714', which is not a number.",
        "--metric fgsm.* --format md results.jsonl": "--metric: No metric matches 'fgsm.*'.",
        "--by acc --against robustbenhc results.jsonl": "Did you mean",
        "--by acc --against prbench results.jsonl": "needs the published file",
        "--by acc --against prbench --against-file missing.json results.jsonl": "No such file",
        "--by acc --against prbench:a.json results.jsonl": "Write --against prbench --against-file 'a.json'.",
        "--by acc --against-file missing.json results.jsonl": "Add --against SOURCE.",
        "--by acc:lower results.jsonl": "Write 'acc', and --lower 'acc'.",
        "--by acc --lower params results.jsonl": "--lower names 'params', which is not in --by or --pareto.",
        "--by acc --assert 'point:acc > 0' results.jsonl": "Write --assert-point 'acc > 0'.",
        "--by acc --assert-point 'acc > 0' --baseline store:a results.jsonl": "Write --baseline store"
        " --baseline-label 'a'.",
        "--by acc --assert-point 'acc > 0' --baseline x --baseline-label a results.jsonl": "is for"
        " records in the store.",
        "--by acc --against robustbench --aggregate-by dataset results.jsonl": "--against compares models",
        "--by acc --errors retry results.jsonl": "--errors retry is for tools that pass every record on",
        "--metric , --format md results.jsonl": "--metric: The list of metrics is empty.",
        "--aggregate-by method results.jsonl": "--aggregate-by: no record has 'method'. Did you mean"
        " 'train.method'?",
        '--where "train.method in [pgd]" results.jsonl': "field 'pgd'. Texts need quotes: 'pgd'. Metrics: ",
        "--pivot train.method --aggregate-by dataset results.jsonl": "--pivot and --aggregate-by both define"
        " the rows. Give one of them.",
        "--pivot train.method --top 1 results.jsonl": "--top needs a ranking, but --pivot keeps the order.",
    },
    "score": {
        "--add acc results.jsonl": "--add is 'acc'. Expected NAME=EXPRESSION",
        "--add 'x=acc -' results.jsonl": "--add x: Expression 'acc -' does not parse",
        "--weight acc=0 results.jsonl": "The weight of 'acc' is 0.",
        "--weight acc results.jsonl": "--weight is 'acc'. Expected NAME=NUMBER",
        "--metric acc:2 results.jsonl": "Write --weight 'acc=2'.",
        "--metric acc:lower results.jsonl": "Write 'acc', and --lower 'acc'.",
    },
    "plot": {
        "scatter --x acc --y pgd20.8 -o a.jpgg results.jsonl": "ends in .png, .svg, .pdf",
    },
    "pr": {
        "--eps 0.1 results.jsonl": "Did you mean '--gamma'?",
        "--as mine --gamma 8": "Did you mean 8/255?",
        "--truncate --no-clip": "in place of clipping",
        "--confidence 95": "Expected a number in [0.5, 1), such as 0.95. Did you mean 0.95?",
        "--confidence 0.3": "Expected a number in [0.5, 1)",
        "--rho 0.1,0 --passes above": "no PR is above 1",
        "--sampling rare --require-decided": "does not support --require-decided.",
        "--sampling rare --floor 0": "--floor is 0. Expected a probability in (0, 1)",
        "--sampling rare --gamma 0:0.1:3": "--sampling rare needs a --gamma above 0",
    },
    "corrupt": {
        "gaussian results.jsonl": "'gaussian_noise'",
        "contrast --severity 0": "--severity is 0. Severities are 1, 2, 3, 4 and 5; write 3 or 1-5.",
        "contrast --from nowhere": "--from: nowhere does not exist. Expected the folder of an archive",
        "contrast --write x --severity 3": "--write makes an archive, which always has all five",
        "contrast --write x --from y": "evaluate nothing, but --from is given.",
        "contrast --reference x": "give --reference with all.",
        "all --reference x": "x does not exist. Expected a file.",
    },
    "arch": {
        "--arch wideresnet": "Did you mean 'wrn-28-10'?",
        "--index 15625": "no architecture with the index 15625. Indices go from 0 to 15624.",
        "--index 1.5": "--index has 1.5. Expected whole numbers, such as 13714 or 0-9,50.",
        "--unique --where 'params < 1M'": "found 'M'",
        "--index 7-5": "--index has the range '7-5', which is in reverse order. Write '5-7'.",
        "--str |nor_conv_3x3~0|+|nor_con~0": "does not parse at character 19: found 'nor_con'",
        "--where kernel_params": "--where: Expression 'kernel_params' is a number, not a condition.",
        "--neighbours 1 --index 1": "More than one of --arch, --index, --str",
        "--space zoo --neighbours 0": "has no neighbours: the space zoo is a plain list.",
        "--space zoo --cells 1": "have no cells, which those of nasbench201 have: leave it out",
        "--arch resnet18 --width 9": "have no width, which those of fcnn and rescnn have",
        "--dataset imagefolder:nowhere": "The image folder nowhere does not exist.",
        "results.jsonl": "so results.jsonl has no use. Did you mean --from-checkpoint?",
        "--from-checkpoint model.pt --space zoo": "--space chooses architectures of a space",
        "--normalize none": "--normalize describes a file of weights. Add --from-checkpoint",
        "--arch torchvision:resnet5": "Unknown torchvision model 'resnet5'. Did you mean",
        "--arch torchvisio:resnet50": "Unknown space 'torchvisio'. Did you mean 'torchvision'?",
        "--arch timm:": "'timm:' names no network",
        "--arch python:gone:make": "There is no Python module gone",
        "--arch python:make": "Expected python:MODULE:FUNCTION",
    },
    "measure": {
        "ntk --attack square": "--attack is 'square'. Images are perturbed by one of: fgsm, pgd.",
        "ntk --on init --init-seed -1": "--init-seed",
    },
    "ge": {
        "": "No command is given. Choose one of: acc, attack, corrupt, loss, pr. Try 'rb-ge --help'.",
        "uniform": "'uniform' is the name of a noise. Write: rb-ge pr --noise uniform. Try",
        "accuracy results.jsonl": "Did you mean 'acc'?",
        "loss attack apgd-ce": "stops at examples that are broken",
        "loss attack pgd --iterate any": "stops at examples that are broken",
    },
    "card": {
        "--time 10x": "--time is '10x'. Expected a length of time, such as 90s, 10m, 2h, or none.",
        "nowhere.jsonl": "Cannot read nowhere.jsonl: No such file or directory",
        "--for cleen": "--for is 'cleen'. Did you mean 'clean'? Expected all, l-inf, corruptions, pr, or",
        "--eps 4,8": "Expected one distance above 0",
        "-o card.pdf": "Expected a file with an extension of html",
    },
    "certify": {
        "smooth --alpha 0.5": "alpha is 0.5. It must be between 0 and 0.5",
    },
    "convert": {
        "prbench nowhere.json": "Cannot read nowhere.json: No such file or directory.",
        "prbench .": ". is a folder. Expected a file: prbench is one file.",
        "prbench a --write a": "a is both read and written. Write elsewhere.",
        "per-image --write table.txt": "table.txt ends in neither .csv nor .parquet",
        "robustbench photos": "The folder photos holds no .json files. Expected those of RobustBench's",
    },
}


# These are found when a record is read: status 1.
OF_RECORDS = ("pgd --norm l2 --eps 8 results.jsonl", "pgd --split tset results.jsonl", "pgd model.pt")


@pytest.fixture(autouse=True)
def _files_of_a_user() -> None:
    arch = {"space": "nasbench201", "name": "nb201-13714", "index": 13714, "channels": 2, "cells": 1}
    metrics = {"acc": 0.9, "pgd20.8": 0.5, "pgd20.16": 0.2}
    model = {"schema": 1, "arch": arch, "dataset": "digits"}
    evals = [{"metric": name, "value": value} for name, value in metrics.items()]
    result = {**model, "train": {"method": "erm"}, "checkpoint": "sha256:" + "0" * 64}
    Path("models.jsonl").write_text(json_lines(model))
    Path("results.jsonl").write_text(json_lines({**result, "metrics": metrics, "evals": evals}))
    network = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8))
    torch.save(network.state_dict(), "model.pt")
    Path("mynet.py").touch()
    Path("photos", "test").mkdir(parents=True)


@pytest.mark.parametrize(
    ("tool", "words"), [(tool, words) for tool, rows in MISTAKES.items() for words in rows]
)
def test_a_common_mistake_is_answered_with_the_remedy_in_one_line(tool: str, words: str) -> None:
    done = run(tool, words)
    lines = [line for line in done.stderr.splitlines() if MISTAKES[tool][words] in line]
    assert lines, done.stderr
    assert lines[0].startswith(f"rb-{tool}: ") and done.exit_code == (1 if words in OF_RECORDS else 2)
    assert words in OF_RECORDS or (len(done.stderr.splitlines()), done.stdout) == (1, "")


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w-])")
# The settings of a data set were once written inside the value of --dataset.
OLD = re.compile(r"[\w-]+=[\w.]* of --[\w-]+")
# Options of ray, Slurm and pip, beginnings of options, and one that is refused by its name.
OTHERS = {"--address", "--head", "--array", "--no-deps", "--no", "--out"}


def options(command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    for one in command.get_params(context):
        yield from (*one.opts, *one.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, context)


@pytest.mark.smoke
def test_every_option_that_a_message_or_a_help_names_exists() -> None:
    known = {flag for tool in tools.TOOLS for flag in options(tools.tool(tool).command)} | {*options(papers)}
    for _, method in METHODS.loaded():
        names = (one.metadata.get("name") or one.name for one in fields(method))
        known |= {f"--{name.replace('_', '-')}" for name in names}
    wrong = []
    for path in Path(rbtools.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        if not (OLD.search(text) or {*OPTION.findall(text)} - known - OTHERS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = [*OLD.findall(node.value), *({*OPTION.findall(node.value)} - known - OTHERS)]
                wrong += [f"{path.name}:{node.lineno}: {one}" for one in found]
    assert wrong == []


def test_what_was_typed_is_no_suggestion() -> None:
    assert near("fog", ["fog", "pgd"]) == "" and "'fog1'" in near("fog", ["fog", "fog1"])
