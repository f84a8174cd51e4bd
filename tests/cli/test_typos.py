"""Common mistakes at the shell, of all tools: each is answered by one line with its cause and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rbtools.models import build
from tests.runner import lines as json_lines
from tests.runner import run

# The arguments, and a part of the message, mostly the correction.
MISTAKES = {
    "rb-attack": "Choose one of: fgsm, pgd",
    "rb-attack pdg results.jsonl": "Did you mean 'pgd'?",
    "rb-attack PGD results.jsonl": "Did you mean 'pgd'",
    "rb-attack pgd20 results.jsonl": "Did you mean 'pgd'",
    "rb-attack autoattack results.jsonl": "Did you mean 'aa'?",
    "rb-attack clean results.jsonl": "Did you mean 'none'?",
    "rb-attack --eps 8 pgd results.jsonl": "Options follow it: rb-attack pgd --eps 8 results.jsonl",
    "rb-attack pgd --epsilon 8 results.jsonl": "Did you mean '--eps'?",
    "rb-attack pgd --eps eight results.jsonl": "Expected a number such as 8 or 8/255",
    "rb-attack pgd --eps -8 results.jsonl": "write for example --eps 8",
    "rb-attack pgd --eps 0.031 results.jsonl": "write --eps 8 for 0.031 on the [0, 1] scale, or --eps 0.031",
    "rb-attack pgd --norm l2 --eps 8 results.jsonl": "is an L2 distance on [0, 1]",
    "rb-attack pgd --step 20 results.jsonl": "'--steps'",
    "rb-attack pgd --iters 20 results.jsonl": "Did you mean '--steps'?",
    "rb-attack pgd --alpha 2 results.jsonl": "Did you mean '--step-size'?",
    "rb-attack pgd --steps 0 results.jsonl": "It must be above 0",
    "rb-attack pgd --steps ten results.jsonl": "'ten' is no whole number",
    "rb-attack pgd --norm inf results.jsonl": "Did you mean 'linf'?",
    "rb-attack pgd --norm Linf results.jsonl": "Did you mean 'linf'?",
    "rb-attack pgd --batch-size 64 results.jsonl": "Did you mean '--batch'?",
    "rb-attack pgd --gpu 0 results.jsonl": "Did you mean '--device'?",
    "rb-attack pgd --device gpu results.jsonl": "Expected auto, cpu, cuda",
    "rb-attack pgd --eps 300 results.jsonl": "more than the whole pixel range",
    "rb-attack pgd --arch resnet18 results.jsonl": "--arch describes a --checkpoint",
    "rb-attack pgd --eps 1,3.1e-2 results.jsonl": "has two readings",
    "rb-attack pgd --step-size 0.01 results.jsonl": "has two readings",
    "rb-attack curve --eps 0:0.031:3 results.jsonl": "has two readings",
    "rb-attack check --eps 0.031 results.jsonl": "has two readings",
    "rb-attack transfr results.jsonl": "Unknown attack 'transfr'. Did you mean 'transfer'? Known: fgsm,",
    "rb-attack --eps 8": "stands before the attack. Options follow it: rb-attack fgsm --eps ... Try",
    "rb-attack pgd --workers 4 results.jsonl": "Did you mean '--jobs'?",
    "rb-attack pgd --jobs all results.jsonl": "or auto",
    "rb-attack pgd --samples 100 results.jsonl": "Did you mean '--n'?",
    "rb-attack pgd --n 0 results.jsonl": "0 is less than 1",
    "rb-attack pgd --split tset results.jsonl": "Did you mean 'test'?",
    "rb-attack pgd --output x.jsonl results.jsonl": "write > FILE",
    "rb-attack pgd result.jsonl": "Expected a file of records",
    "rb-attack pgd model.pt": "Give a network's weights with --checkpoint FILE",
    "rb-attack pgd --checkpoint modl.pt": "modl.pt does not exist",
    "rb-attack pgd --checkpoint model.pt --arch resnet-18": "Did you mean 'resnet18'",
    "rb-attack pgd --checkpoint model.pt --arch ResNet18": "Did you mean 'resnet18'",
    "rb-attack pgd --checkpoint model.pt --arch mynet.py": "write --arch python:mynet:FUNCTION --allow-code",
    "rb-attack pgd --checkpoint model.pt --arch mynet:build": "write --arch python:mynet:build --allow-code",
    "rb-attack pgd --checkpoint model.pt --dataset cifar-10": "Did you mean 'cifar10'",
    "rb-attack pgd --checkpoint model.pt --dataset CIFAR10": "Did you mean 'cifar10'",
    "rb-attack pgd --checkpoint model.pt --dataset mnst": "Did you mean 'mnist'",
    "rb-attack pgd --checkpoint model.pt --dataset photos": "write imagefolder:photos",
    "rb-train trades models.jsonl": "Write --method trades",
    "rb-train --method madry models.jsonl": "Did you mean 'pgd'?",
    "rb-train --method TRADES models.jsonl": "Did you mean 'trades'?",
    "rb-train --method normal models.jsonl": "Did you mean 'erm'?",
    "rb-train --method trades --beta 6 models.jsonl": "here that is --lambda",
    "rb-train --method erm --lambda 6 models.jsonl": "belongs to --method trades",
    "rb-train --method pgd --steps 10 models.jsonl": "Did you mean '--attack-steps'?",
    "rb-train --method pgd --epoch 5 models.jsonl": "Did you mean '--epochs'",
    "rb-train --learning-rate 0.1 models.jsonl": "Did you mean '--lr'?",
    "rb-train --preset pr-bench models.jsonl": "Did you mean 'prbench'",
    "rb-train --schedule linear models.jsonl": "is not one of 'onecycle'",
    "rb-train --seed 1.5 models.jsonl": "--seed has 1.5. Expected whole numbers",
    "rb-train --method pgd --eps 0.031 models.jsonl": "has two readings",
    "rb-train --method corruption --noise normal models.jsonl": "Did you mean 'gaussian'? Try",
    "rb-train --lambda 3 models.jsonl": "Option '--lambda' belongs to --method trades",
    "rb-train --method=erm --eps 3 models.jsonl": "Option '--eps' belongs to --method pgd and ",
    "rb-train --method": "Option '--method' requires an argument.",
    "rb-rank --by pgd results.jsonl": "Did you mean 'pgd20.",
    "rb-rank --by accuracy results.jsonl": "Did you mean 'acc'?",
    "rb-rank --sort acc results.jsonl": "Did you mean '--by'?",
    "rb-rank --by acc --agregate seed results.jsonl": "Did you mean '--aggregate' or",
    "rb-rank --by acc --where 'acc > ' results.jsonl": "found the end",
    "rb-rank --by acc --where 'acc = 0.5' results.jsonl": "found '='",
    "rb-rank --by acc --where 'train.method == trades' results.jsonl": "Texts need quotes: 'trades'",
    "rb-rank --by acc --format markdown results.jsonl": "Did you mean 'md'?",
    "rb-rank --by acc --output t.md results.jsonl": "write > FILE",
    "rb-plot scatter --x acc --y pgd20.8 results.jsonl": "Missing option '--output' / '-o'",
    "rb-plot scater -o a.png results.jsonl": "Did you mean 'scatter'",
    "rb-plot corruption -o a.png results.jsonl": "Unknown plot 'corruption'. Did you mean 'corruptions'",
    "rb-plot scatter --x acc --y pgd20.8 -o a.jpgg results.jsonl": "ends in .png, .svg, .pdf",
    "rb-plot scatter --x acc --y pgd20.8 --color dataset -o a.png results.jsonl": "Did you mean '--colour'?",
    "rb-pr --gamma 8 results.jsonl": "Did you mean 8/255?",
    "rb-pr --eps 0.1 results.jsonl": "Did you mean '--gamma'?",
    "rb-pr --rho 1 results.jsonl": "--rho 1 is not in [0, 1)",
    "rb-pr --noise normal results.jsonl": "Did you mean 'gaussian'?",
    "rb-corrupt fogg results.jsonl": "Did you mean 'fog'?",
    "rb-corrupt gaussian results.jsonl": "'gaussian_noise'",
    "rb-corrupt fog --severity 6 results.jsonl": "write 3 or 1-5",
    "rb-corrupt --n 8 fog,frost 'a b'": "Options follow it: rb-corrupt fog,frost --n 8 'a b'.",
    "rb-arch --index 15625": "Indices go from 0 to 15624",
    "rb-arch --arch wideresnet": "Did you mean 'wrn-28-10'?",
    "rb-arch --unique --where 'params < 1M'": "found 'M'",
    "rb-arch --samples 2": "Did you mean '--sample'?",
    "rb-measure wcii results.jsonl": "Did you mean 'wci'?",
    "rb-measure ntk --eps 0.031 results.jsonl": "has two readings",
    "rb-score --preset PRBench results.jsonl": "Did you mean 'prbench'",
    "rb-corr --rows acc --columns pgd20.8 results.jsonl": "Did you mean '--cols'?",
    "rb-convert robust-bench x.json": "Did you mean 'robustbench'",
    "rb-search locl --objective acc --table results.jsonl": "Did you mean 'local'?",
    "rb-store list": "Did you mean 'ls'?",
    "rb-store --store S ls": "stands before the command. Options follow it: rb-store ls --store S.",
    "rb-ge accuracy results.jsonl": "Did you mean 'acc'?",
    "rb-ge": "No command is named. Choose one of: acc, attack, corrupt, loss, pr. Try 'rb-ge --help'.",
    "rb-ge attack": "No attack is named. Choose one of: fgsm, pgd",
    "rb-ge attack pdg results.jsonl": "Unknown attack 'pdg'. Did you mean 'pgd'?",
    "rb-ge attack fgsm --eps 0.031 results.jsonl": "has two readings",
    "rb-ge pr --gamma 8 results.jsonl": "Did you mean 8/255?",
    "rb-ge pgd x.jsonl": "'pgd' is the name of an attack. Write: rb-ge attack pgd. Try",
    "rb-ge fog,frost": "'fog,frost' is the name of a corruption. Write: rb-ge corrupt fog,frost. Try",
    "rb-ge uniform": "'uniform' is the name of a noise. Write: rb-ge pr --noise uniform. Try",
}


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


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_common_mistake_is_answered_with_the_remedy_in_one_line(typed: str) -> None:
    tool, _, words = typed.partition(" ")
    done = run(tool.removeprefix("rb-"), words)
    lines = [line for line in done.stderr.splitlines() if MISTAKES[typed] in line]
    assert lines, done.stderr
    assert lines[0].startswith(f"{tool}: ") and done.exit_code in (1, 2)
    assert done.exit_code == 1 or (len(done.stderr.splitlines()), done.stdout) == (1, "")
