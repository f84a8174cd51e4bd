"""Data sets at the command line: subsets, downloads, streams, and bad data reported before any work."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import rbtools
from rbtools.datasets import digits, published_files, streaming
from rbtools.inputs.data import _loaded
from tests import runner
from tests.conftest import SMALL_ARCH
from tests.datasets import archives
from tests.datasets.test_fetch import Server


def run(tool, *arguments, records=()):
    return runner.run(tool, [str(argument) for argument in arguments], records)


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    """A record of an untrained network for 32x32 colour images of ten classes, and its store."""
    folder = tmp_path_factory.mktemp("colour")
    np.savez(folder / "ten.npz", x_train=archives.pixels(0, 10, 3, 32, 32), y_train=np.arange(10))
    record = {"schema": 1, "arch": SMALL_ARCH, "dataset": f"npz:{folder / 'ten.npz'}"}
    return rbtools.train(record, "erm", epochs=0, batch_size=10, store=folder / "store", device="cpu"), folder


def test_indices_choose_examples_and_nothing_else_changes(trained, tmp_path):
    """An example's result in a subset equals its result in the whole split, random starts included."""
    record = trained["erm"]
    options = ("pgd", "--eps", 16, "--steps", 2, "--device", "cpu")
    parts = {"odd": range(1, 355, 2), "even": range(0, 355, 2)}
    (tmp_path / "parts.json").write_text(json.dumps({name: list(part) for name, part in parts.items()}))
    right = {}
    for name, part in parts.items():
        result = runner.one(run("attack", *options, "--indices", f"parts.json:{name}", records=[record]))
        entries = {entry["metric"]: entry for entry in result["evals"]}
        entry = entries["pgd2.16"]
        assert entry["n"] == len(part) and entry["indices"].startswith("sha256:")
        assert entries["acc"]["indices"] == entry["indices"]
        right[name] = round(entry["value"] * entry["n"])
    whole = runner.one(run("attack", *options, records=[record]))
    (entry,) = [entry for entry in whole["evals"] if entry["metric"] == "pgd2.16"]
    assert entry["n"] == 355 and "indices" not in entry
    assert round(entry["value"] * 355) == sum(right.values()) and 0 < sum(right.values()) < 355


def test_streamed_images_give_the_same_numbers(colour, photos, tmp_path, monkeypatch):
    record, folder = colour
    record = {**record, "dataset": f"imagefolder:{photos}"}
    options = {"device": "cpu", "threads": 1}
    results, seen = [], []
    placed = streaming.placed
    monkeypatch.setattr(
        streaming, "placed", lambda found, device: seen.append(type(found)) or placed(found, device)
    )
    for name, memory in (("all", "1G"), ("streamed", "1")):
        monkeypatch.setenv("RB_IMAGE_MEMORY", memory)
        store = rbtools.store.Store(tmp_path / name)
        for kept in (folder / "store").rglob("objects/*/*"):
            target = tmp_path / name / kept.relative_to(folder / "store")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(kept.read_bytes())
        _loaded.cache_clear()
        attacked = rbtools.attack(record, "pgd", eps=4, steps=2, store=store, **options)
        learned = rbtools.train(record, "erm", epochs=1, batch_size=8, store=store, **options)
        results.append((attacked["metrics"], learned["checkpoint"]))
    assert results[0] == results[1]
    assert seen == [torch.Tensor, streaming.Streamed]


def test_a_folder_taken_for_the_test_split_is_said_once(colour, photos):
    record, folder = colour
    line = {**record, "dataset": f"imagefolder:{photos / 'val'}"}
    for more, count in (((), 1), (("--jobs", 2), 1), (("-q",), 0)):
        result = run("attack", "fgsm", "--n", 2, "--store", folder / "store", *more, records=[line, line])
        assert result.exit_code == 0
        assert result.stderr.count("its images are taken for the split test") == count


def test_download_brings_what_is_missing_and_only_when_asked(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = Server()
    archives.mnist(tmp_path / "made", count=12, packed=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "made/MNIST/raw").iterdir()}
    listed = [file for file in published_files.published() if file.dataset == "mnist"]
    offered = [server.offer(file.path, made[file.path]) for file in listed]
    files = [file._replace(md5=one.md5, url=one.url) for file, one in zip(listed, offered, strict=True)]
    monkeypatch.setattr(published_files, "published", lambda: files)
    monkeypatch.setattr(digits.Mnist, "sizes", {"train": 12, "test": 12})
    line = trained["erm"]
    asked = ("fgsm", "--dataset", "mnist", "--data-dir", tmp_path / "sets")
    try:
        result = run("attack", *asked, records=[line])
        assert result.exit_code == 2 and "The data set mnist was not found" in result.stderr
        assert server.asked == [] and not (tmp_path / "sets").exists()
        found = runner.one(run("attack", *asked, "--download", records=[line]))
        entry = found["evals"][-1]
        assert entry["dataset"] == "mnist" and entry["n"] == 12 and len(server.asked) == 2
        runner.one(run("attack", *asked, "--download", records=[line]))
        assert len(server.asked) == 2
    finally:
        server.http.shutdown()
        server.http.server_close()
