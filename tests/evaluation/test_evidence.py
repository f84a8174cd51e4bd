"""Saved adversarial images: what the files hold, their verdicts, and the rejection of tampered ones."""

from __future__ import annotations

import copy
import functools
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rbtools
from rbtools import datasets
from rbtools.errors import RbError
from rbtools.jobs import evidence
from tests.runner import Record, run, run_in

N = 80
ORDER = {"linf": np.inf, "l2": 2, "l1": 1}


def attack(record: Record, eps: float = 24, norm: str = "linf", name: str = "pgd", **more: Any) -> Record:
    arguments = {"norm": norm, "eps": eps, "steps": 3, "n": N, "save_adv": "adv", "store": "rb-store"}
    return rbtools.attack(record, name, **{**arguments, **more})


def file() -> Path:
    """The only file of a result in the folder."""
    (only,) = Path("adv").glob("*.npz")
    return only


def judge(record: Record, path: str | Path | None = None) -> Record:
    (verdict,) = verified(record, path)["entries"].values()
    return verdict


def verified(record: Record, path: str | Path | None = None) -> Record:
    return evidence.EvidenceJob(str(path or file()))(record, run_in())["verify"]


def alone(record: Record) -> Record:
    """The record without results: the file's own claim is judged."""
    return {key: value for key, value in record.items() if key not in ("metrics", "evals", "checksums")}


@pytest.fixture
def attacked(known: dict[str, Record]) -> Record:
    """A record with a claim, whose images are in the folder."""
    return attack(known["erm"])


@pytest.mark.parametrize(
    ("norm", "eps", "name", "grid"),
    [
        ("linf", 0.5, "pgd", "none"),
        ("l2", 1.0, "pgd", "none"),
        ("linf", 17.5, "pgd", "8bit"),
        ("l2", 1.2, "pgd", "8bit"),
        ("l1", 3.0, "apgd-ce", "8bit"),
    ],
)
def test_the_images_are_in_the_ball_and_are_believed(
    known: dict[str, Record], norm: str, eps: float, name: str, grid: str
) -> None:
    record = attack(known["erm"], eps, norm, name, grid=grid)
    (entry,) = [entry for entry in record["evals"] if "eps" in entry]
    data, saved = datasets.load("digits", "test"), np.load(file())
    assert saved["images"].shape == (N, 1, 8, 8)
    assert saved["images"].dtype == (np.uint8 if grid == "8bit" else np.float32)
    clean, scale = data.images[saved["ids"]].numpy(), 255 if grid == "8bit" else 1
    change = (saved["images"].astype(float) / scale - clean / 255).reshape(N, -1)
    assert np.linalg.norm(change, ORDER[norm], axis=1).max() <= entry["eps"] * (1 + 1e-6) + 1e-7
    assert np.array_equal(saved["labels"], data.labels[saved["ids"]])
    claim = json.loads(str(saved["claim"]))
    told = {name: claim[name] for name in ("metric", "eps", "norm", "n", "value")}
    assert told == {name: entry[name] for name in told} and claim["checkpoint"] == record["checkpoint"]
    assert judge(record)["verdict"] == judge(alone(record))["verdict"] == "match"


def test_images_on_the_sphere_may_leave_the_box_and_nothing_else(known: dict[str, Record]) -> None:
    record = attack(known["erm"], 0.1, "sphere")
    saved = np.load(file())
    clean = datasets.load("digits", "test").images[saved["ids"]].numpy().astype(np.float64) / 255
    sizes, moved = (np.linalg.norm(one.reshape(N, -1), axis=1) for one in (clean, saved["images"] - clean))
    assert np.allclose(np.linalg.norm(saved["images"].reshape(N, -1), axis=1), sizes, rtol=1e-5)
    assert (moved <= 0.1 * sizes * (1 + 1e-5)).all() and saved["images"].min() < 0
    assert judge(record)["verdict"] == judge(alone(record))["verdict"] == "match"
    for change in (lambda claim, _: claim.update(eps=0.05), lambda _, arrays: scale(arrays["images"], 1.01)):
        assert judge(record, rewritten(change))["verdict"] == "differs"


def scale(images: np.ndarray, factor: float) -> None:
    images *= factor


def rewritten(change: Any) -> str:
    """The file with another claim and other arrays."""
    arrays = dict(np.load(file()))
    claim = json.loads(str(arrays.pop("claim")))
    change(claim, arrays)
    np.savez("tampered.npz", claim=np.array(json.dumps(claim)), **arrays)
    return "tampered.npz"


def tamper(kind: str, at: int, claim: Record, arrays: dict[str, Any]) -> None:
    images, ids, labels = arrays["images"], arrays["ids"], arrays["labels"]
    clean = datasets.load("digits", "test").images[ids].numpy().astype(np.float32) / 255
    moved = np.flatnonzero((images != clean).any((1, 2, 3)))
    if kind == "unmoved":
        images[moved[at::3]] = clean[moved[at::3]]
    elif kind == "outside":
        images[moved[at], 0, at] = np.abs(clean[moved[at], 0, at] - 25 / 255)
    elif kind == "box":
        images[at, 0, 0, 0] = (-0.01, 1.01, np.nan)[at]
    elif kind == "another-image":
        ids[at] = ids[at + 1]
    elif kind == "label":
        labels[at] = (labels[at] + 1) % 10
    elif kind == "norm":
        claim |= {"norm": ("l2", "l1")[at % 2], "eps": 8.0 + at}  # in which 24/255 in each channel is little
    elif kind == "larger-ball":
        claim["eps"] *= 1.01 + at % 5
    else:
        other = {"value": claim["value"] + (1 + at) / N, "n": 10**12, "split": "train", "grid": "8bit"}
        other |= {"metric": f"pgd3.{at + 25}", "checkpoint": f"sha256:{at:064x}", "data": f"{at:064x}"}
        claim[kind] = other[kind]
        if kind == "grid":
            arrays["images"] = (images * 255).round().astype(np.uint8)


@pytest.mark.parametrize(
    "kind",
    "unmoved outside box another-image label norm larger-ball"
    " value n split grid metric checkpoint data".split(),
)
def test_a_tampered_file_is_refused(attacked: Record, kind: str) -> None:
    assert judge(attacked, rewritten(lambda *_: None))["verdict"] == "match"
    for at in range(3):
        verdict = judge(attacked, rewritten(functools.partial(tamper, kind, at)))
        assert verdict["verdict"] == "differs" and verdict["reason"]


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "l2", "eps": 8.0},
        {"norm": ["linf"]},
        {"eps": 0.5, "tool": "rb-convert"},
        {"eps": 0.5, "metric": "mine"},
        {"metric": "pr.uniform.0.08"},
        {"metric": "pgd40.24"},
        {"split": "train"},
        {"value": "x"},
    ],
)
def test_a_file_alone_says_no_more_than_its_name(attacked: Record, changes: Record) -> None:
    path = rewritten(lambda claim, _: claim.update(changes))
    result = run("verify", f"--adv {path} --store rb-store", [alone(attacked)])
    assert result.exit_code == 1 and "Traceback" not in result.stderr and "differs" in result.stderr


@pytest.mark.parametrize("field", ["value", "n", "eps", "norm", "grid"])
def test_a_tampered_record_is_refused(attacked: Record, field: str) -> None:
    record = copy.deepcopy(attacked)
    (entry,) = [one for one in record["evals"] if one["metric"] == "pgd3.24"]
    entry[field] = {"value": entry["value"] - 1 / N, "n": 79, "eps": 0.1, "norm": "l2", "grid": "8bit"}[field]
    assert judge(record)["verdict"] == "differs"


def test_a_damaged_file_is_an_error_or_refused(attacked: Record) -> None:
    whole, true = file().read_bytes(), judge(attacked)
    chance = random.Random(0)
    for _ in range(60):
        place = chance.randrange(len(whole))
        text = bytearray(whole)
        text[place] ^= 1 << chance.randrange(8)
        Path("damaged.npz").write_bytes(bytes(text[: chance.choice([len(text), place])]))
        try:
            verdict = judge(attacked, "damaged.npz")
        except RbError as error:
            assert "damaged" in str(error)
            continue
        assert verdict == true or verdict["verdict"] == "differs"


def test_what_a_file_costs_is_bounded(attacked: Record) -> None:
    whole = zipfile.ZipFile(file())
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("claim", "labels", "ids"):
            archive.writestr(f"{name}.npy", whole.read(f"{name}.npy"))
        archive.writestr("images.npy", whole.read("images.npy") + bytes(10_000_000))
    with pytest.raises(RbError, match="more data than its header declares"):
        judge(attacked, "bomb.npz")


def test_a_folder_is_judged_for_each_model(known: dict[str, Record]) -> None:
    both = attack(known["erm"], eps=[8, 24])
    attack(known["pgd"])
    attack(known["erm"], n=20)
    good = run("verify", "--adv adv --store rb-store", [both])
    assert good.exit_code == 0 and "2 match" in good.stderr, good.stderr
    with pytest.raises(RbError, match="has no images of this model"):
        verified(both, "rb-store")
    (path,) = [path for path in Path("adv").glob("*pgd3.8-*")]
    path.write_bytes(b"no archive")
    bad = run("verify", "--adv adv --store rb-store", [both])
    assert bad.exit_code == 1 and "holds no adversarial images" in bad.stderr
    assert "nowhere does not exist. Expected the folder" in run("verify", "--adv nowhere", [both]).stderr


def test_pngs_are_the_images_of_the_file(known: dict[str, Record]) -> None:
    record = attack(known["erm"], grid="8bit", save_png=True)
    saved = np.load(file())
    pngs = file().with_suffix("")
    assert len(list(pngs.iterdir())) == N
    for number, image in zip(saved["ids"], saved["images"], strict=True):
        assert np.array_equal(np.asarray(Image.open(pngs / f"{number}.png")), image[0])
    assert judge(record, "adv")["verdict"] == "match"
    before = file().stat().st_mtime_ns
    attack(known["erm"], grid="8bit")
    assert file().stat().st_mtime_ns == before


def test_the_grid_says_what_it_gives_back_and_may_have_a_name(known: dict[str, Record]) -> None:
    words = f"pgd --steps 5 --eps 24 --n {N} --store rb-store"
    real = run("attack", words, [known["erm"]])
    both = run("attack", f"{words} --grid 8bit --as files --save-adv adv", real.stdout)
    values = json.loads(both.stdout)["metrics"]
    more = values["files"] - values["pgd5.24"]
    assert f"pgd5.24 on 8-bit images: {values['files']:.4f}, {abs(more):.4f}" in both.stderr
    verdicts = json.loads(run("verify", "--adv adv --store rb-store", both.stdout).stdout)["verify"]
    assert {name: one["verdict"] for name, one in verdicts["entries"].items()} == {"files": "match"}
    again = run("attack", f"{words} --grid 8bit", real.stdout)
    assert again.exit_code == 1 and "grid absent there and '8bit' here" in again.stderr
    for wrong in ("--two-phase 20", "--eps 0.5/255"):  # attacks of real values, and a ball of one image
        assert run("attack", f"pgd --grid 8bit {wrong}").exit_code == 2
