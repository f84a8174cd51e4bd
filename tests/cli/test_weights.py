"""--checkpoint DIR: the published files of NAS-Bench-201 and NATS-Bench, in their layouts, read by index."""

from __future__ import annotations

import bz2
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from rbtools import datasets, models
from rbtools.inputs import published_weights
from rbtools.models.normalize import Normalized
from rbtools.spaces import nasbench201
from tests.runner import Record, one, run

INDEX, SMALL = 4, {"channels": 2, "cells": 1}
CELL: Record = {"schema": 1, "arch": nasbench201.arch(INDEX, **SMALL)}


def attack(words: str, given: Record = CELL) -> Result:
    return run("attack", f"fgsm --eps 0 --device cpu {words}", [given])


def said(words: str, given: Record = CELL) -> str:
    result = attack(words, given)
    assert result.exit_code == 1
    message: str = json.loads(result.stdout)["error"]["message"]
    return message


def network(seed: int, classes: int = 10) -> Any:
    torch.manual_seed(seed)
    arch = {"space": "nasbench201", "index": INDEX, **SMALL}
    made = models.build(arch, classes=classes, shape=(3, 8, 8))
    made(torch.rand(16, 3, 8, 8))
    return made.eval()


def run_of(seed: int, classes: int, weights: bool, index: int) -> Record:
    """One training, with the fields that the published files have."""
    text = nasbench201.arch(index)["str"]
    return {
        "name": "infer.tiny",
        "net_state_dict": OrderedDict(network(seed, classes).state_dict()) if weights else None,
        "arch_config": {"channel": 2, "num_cells": 1, "arch_str": text, "class_num": classes},
        "latency": [np.float64(0.016)],
        "eval_acc1es": {"ori-test@199": 91.5},
    }


def content(budget: str, weights: bool = True, index: int = INDEX) -> Record:
    runs = {
        (name, seed): run_of(seed, classes, weights, index)
        for name, classes, seeds in (
            ("cifar10-valid", 10, (777,)),
            ("cifar10", 10, (888, 777)),
            ("cifar100", 100, (777,)),
        )
        for seed in seeds
    }
    whole = {
        "arch_index": index,
        "arch_str": nasbench201.arch(index)["str"],
        "all_results": runs,
    }
    return OrderedDict({"less" if budget == "full" else "12": dict(whole), budget: whole})


def write_nasbench(folder: str = "archive", **how: Any) -> str:
    """NAS-Bench-201-v1_1-archive: 000004-FULL.pth by torch.save, as torch 1.3 wrote it."""
    Path(folder).mkdir(parents=True)
    file = Path(folder, f"{INDEX:06d}-FULL.pth")
    torch.save(content("full", **how), file, _use_new_zipfile_serialization=False)
    return folder


def write_nats(folder: str = "NATS-tss-v1_0-3ffb9-full", **how: Any) -> str:
    """NATS-tss-v1_0-3ffb9-full: 000004.pickle.pbz2, a pickle of protocol 4 in bzip2."""
    Path(folder).mkdir(parents=True)
    with bz2.BZ2File(Path(folder, f"{INDEX:06d}.pickle.pbz2"), "w") as stream:
        pickle.dump(content("200", **how), stream, protocol=4)
    return folder


@pytest.fixture
def data() -> str:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    np.savez("data.npz", images=pixels, labels=np.arange(40) % 10)
    return "npz:data.npz"


def accuracy(seed: int, classes: int = 10) -> float:
    pair = datasets.NORMALIZATIONS["cifar10" if classes == 10 else "cifar100"]
    normalised = Normalized(network(seed, classes), *pair)
    arrays = np.load("data.npz")
    images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        right = normalised(images).argmax(1).eq(torch.from_numpy(arrays["labels"]))
    return int(right.sum()) / len(right)


@pytest.mark.parametrize("write", [write_nasbench, write_nats])
@pytest.mark.parametrize(("member", "seed"), [("cifar10", 777), ("cifar10/888", 888)])
def test_an_architectures_weights_are_found_by_its_index(
    write: Any, member: str, seed: int, data: str
) -> None:
    folder = write()
    record = one(attack(f"--weights {folder} --member {member} --dataset {data}"))
    assert record["metrics"]["acc"] == accuracy(seed)
    assert record["arch"]["member"] == member and record["arch"]["index"] == INDEX
    told = record["recognised"]
    assert (told["run"], told["normalize_from"]) == (f"cifar10/{seed}", "published training")
    pair = datasets.NORMALIZATIONS["cifar10"]
    assert record["arch"]["normalize"] == [list(pair.mean), list(pair.std)]
    assert Path(record["checkpoint_file"]).parent.name == folder
    # The next stage of a pipe finds the same weights without --checkpoint.
    assert one(attack(f"--dataset {data} --force", record))["metrics"] == record["metrics"]


def test_the_parent_of_the_archive_will_do_and_the_data_set_chooses_the_run(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nats("torch-home/NATS-tss-v1_0-3ffb9-full")
    monkeypatch.setitem(published_weights.RUNS, "npz", "cifar10")  # as the data set cifar10 does
    record = one(attack(f"--weights torch-home --dataset {data}"))
    assert record["recognised"]["run"] == "cifar10/777"


def test_runs_of_several_data_sets_are_asked_about(data: str) -> None:
    words = f"--weights {write_nasbench()} --dataset {data}"
    message = said(words)
    assert "has weights for 3 data sets: cifar10, cifar10-valid, cifar100" in message
    assert "has no weights for 'svhn'" in said(f"{words} --member svhn")


def test_what_has_no_weights_says_so(data: str) -> None:
    where = f"--dataset {data} --member cifar10 --weights"
    folder = write_nats("simple", weights=False)
    assert "has the results of 4 training runs, but no weights" in said(f"{where} {folder}")
    Path("other").mkdir()
    Path("other/000009-FULL.pth").touch()
    expected = f"for the architecture {INDEX}. Expected the file 000004-FULL.pth or 000004.pickle.pbz2"
    assert expected in said(f"{where} other")
    result = attack(f"{where} nowhere")
    assert result.exit_code == 2 and "nowhere, which is not a folder. Expected" in result.stderr


def test_a_file_of_another_architecture_is_refused(data: str) -> None:
    """Weights do not show none, skip_connect and pooling: the string in the file does."""
    folder = write_nasbench(index=1462)
    message = said(f"--weights {folder} --member cifar10 --dataset {data}")
    assert "contains the architecture |nor_conv_3x3~0|" in message


def test_a_record_with_a_checkpoint_keeps_it(trained: dict[str, Record]) -> None:
    Path("weights").mkdir()
    Path("weights", "000123-FULL.pth").touch()
    record = one(attack("--weights weights", trained["erm"]))
    assert record["checkpoint"] == trained["erm"]["checkpoint"]


class Hostile:
    def __reduce__(self) -> Any:

        return os.system, ("touch it-ran",)


def test_a_pickle_that_would_run_code_does_not(data: str) -> None:
    Path("bad").mkdir()
    with bz2.BZ2File("bad/000004.pickle.pbz2", "w") as stream:
        pickle.dump({"200": {"all_results": {("cifar10", 777): Hostile()}}}, stream)
    words = f"--weights bad --member cifar10 --dataset {data}"
    assert "has the results of" in said(words) and not Path("it-ran").exists()
    Path("bad/000004.pickle.pbz2").write_bytes(Path("bad/000004.pickle.pbz2").read_bytes()[:40])
    assert "is truncated, damaged or not a NATS-Bench file" in said(words)


def shards(folder: str, ending: str) -> None:
    """A linear network in two files, with an index."""
    Path(folder).mkdir()
    Path("lin.py").write_text(
        "from torch import nn\n"
        "def make(classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    parts = {"1.weight": torch.ones(10, 64), "1.bias": torch.arange(10.0)}
    index = {name: f"part-{number}.{ending}" for number, name in enumerate(parts)}
    for name, file in index.items():
        save = save_file if ending == "safetensors" else torch.save
        save({name: parts[name]}, f"{folder}/{file}")
    name = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[ending]
    Path(f"{folder}/{name}.index.json").write_text(json.dumps({"weight_map": index}))


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_checkpoint_in_several_files_is_one(ending: str) -> None:
    shards("hub", ending)
    words = "none --n 20 --checkpoint hub --arch python:lin:make --allow-code --dataset digits"
    first, again = (run("attack", words), run("attack", words))
    assert "1 computed" in first.stderr and "1 found" in again.stderr
    torch.save({"1.bias": torch.arange(10.0).flip(0)}, "hub/part-1." + ending)  # its content decides
    changed = run("attack", words)
    assert "1 computed" in changed.stderr and changed.stdout != first.stdout
    Path(f"hub/part-1.{ending}").unlink()
    assert f"part-1.{ending} cannot be read: No such file" in run("attack", words).stderr
