"""Folders of PNGs of an attack on 8-bit images: what they hold, their verdicts, and edited ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rbtools
from rbtools import datasets
from rbtools.datasets.base import Dataset
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.jobs import evidence, png_images, save_images
from rbtools.store import Store
from tests.runner import run

Record = dict[str, Any]
N = 60
ORDER = {"linf": np.inf, "l2": 2, "l1": 1}
ATTACKED = [("pgd", "linf", 24.0), ("pgd", "linf", 17.5), ("pgd", "l2", 1.2), ("apgd-ce", "l1", 3.0)]


def attack(record: Record, name: str, norm: str, eps: float, **more: Any) -> Record:
    arguments = {"norm": norm, "eps": eps, "steps": 5, "n": N, "grid": "8bit", "store": "rb-store"}
    return rbtools.attack(record, name, **arguments, **more)


def folder(parent: str = "adv") -> Path:
    """The only folder of a result in DIR."""
    (only,) = Path(parent).iterdir()
    return only


def judge(record: Record, path: str | Path) -> Record:
    settings = Run.of(tool="rb-verify", store=Store("rb-store"), device="cpu", threads=1)
    verified = evidence.verify_evidence(record, str(path), settings)
    (verdict,) = verified["verify"]["entries"].values()
    assert isinstance(verdict, dict)
    return verdict


@pytest.mark.parametrize(("name", "norm", "eps"), ATTACKED)
def test_every_png_reads_back_into_the_ball_and_is_believed(
    known: dict[str, Record], name: str, norm: str, eps: float
) -> None:
    record = attack(known["erm"], name, norm, eps, save_adv="adv", save_adv_format="png")
    (entry,) = [entry for entry in record["evals"] if "eps" in entry]
    assert entry["grid"] == "8bit" and 0 < entry["value"] < record["metrics"]["acc"]
    data = datasets.load("digits", "test")
    pngs = list(folder().glob("*.png"))
    assert len(pngs) == N
    for png in pngs:
        levels = np.asarray(Image.open(png)).astype(int)
        change = (levels - data.images[int(png.stem), 0].numpy().astype(int)).ravel()
        assert np.linalg.norm(change, ORDER[norm]) <= entry["eps"] * 255 * (1 + 1e-9)
    verdict = judge(record, folder())
    assert (verdict["verdict"], verdict["measured"]) == ("match", pytest.approx(entry["value"]))
    assert judge({**record, "metrics": {}, "evals": []}, folder())["claimed"] == entry["value"]


def test_edited_pngs_and_claims_differ(known: dict[str, Record]) -> None:
    record = attack(known["erm"], "pgd", "linf", 24, save_adv="adv", save_adv_format="png")
    data = datasets.load("digits", "test")
    clean = {int(png.stem): data.images[int(png.stem), 0].numpy() for png in folder().glob("*.png")}
    kept = {number: np.asarray(Image.open(folder() / f"{number}.png")) for number in clean}
    moved = [number for number in clean if (kept[number] != clean[number]).any()]

    def copied(number: int | None = None, levels: Any = None, **claim: Any) -> Path:
        shutil.rmtree("edited", ignore_errors=True)
        shutil.copytree(folder(), "edited")
        if number is not None:
            Image.fromarray(levels).save(f"edited/{number}.png")
        header = json.loads(Path("edited/claim.json").read_text("utf-8"))
        Path("edited/claim.json").write_text(json.dumps(header | claim), "utf-8")
        return Path("edited")

    assert judge(record, copied())["verdict"] == "match"
    outside = clean[moved[0]].copy()
    outside[0, 0] = 25 if outside[0, 0] == 0 else outside[0, 0] - 25
    assert "outside the ball" in judge(record, copied(moved[0], outside))["reason"]
    verdicts = [judge(record, copied(number, clean[number])) for number in moved[:12]]
    assert any("at most, not the one" in verdict.get("reason", "") for verdict in verdicts)
    assert judge(record, copied(value=0.1))["verdict"] == "differs"
    assert "its grid is None" in judge(record, copied(grid=None))["reason"]
    with pytest.raises(RbError, match="Expected"):
        judge(record, copied(moved[0], np.zeros((8, 8, 3), np.uint8)))
    with pytest.raises(RbError, match="is damaged"):
        path = copied()
        (path / f"{moved[0]}.png").write_bytes(b"no PNG")
        judge(record, path)
    (copied() / f"{moved[0]}.png").unlink()
    with pytest.raises(RbError, match="is damaged"):
        judge(record, "edited")
    with pytest.raises(RbError, match=r"has no claim\.json"):
        judge(record, "rb-store")


def test_the_commands_agree_and_say_what_the_grid_gives_back(known: dict[str, Record]) -> None:
    real = run("attack", f"pgd --steps 5 --eps 24 --n {N} --store rb-store --as real", [known["erm"]])
    done = run(
        "attack",
        f"pgd --steps 5 --eps 24 --n {N} --store rb-store --grid 8bit --save-adv adv --save-adv-format png",
        real.stdout,
    )
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)["metrics"]
    more = values["pgd5.24"] - values["real"]
    assert f"pgd5.24 on 8-bit images: {values['pgd5.24']:.4f}, {abs(more):.4f}" in done.stderr
    files = "--save-adv adv --save-adv-format png"
    run("attack", f"pgd --steps 5 --eps 8 --n {N} --grid 8bit {files}", [known["erm"]])
    other = Path("adv/other")
    shutil.copytree(next(Path("adv").iterdir()), other)
    header = json.loads((other / "claim.json").read_text("utf-8"))
    (other / "claim.json").write_text(json.dumps(header | {"checkpoint": "sha256:0"}), "utf-8")
    good = run("verify", "--adv adv --store rb-store", done.stdout)
    assert good.exit_code == 0 and "2 match" in good.stderr, good.stderr
    again = run("attack", f"pgd --steps 5 --eps 24 --n {N} --store rb-store", done.stdout)
    assert again.exit_code == 1 and "grid '8bit' there and absent here" in again.stderr


def test_a_record_keeps_both_under_two_names(known: dict[str, Record]) -> None:
    words = f"pgd --steps 5 --eps 24 --n {N} --store rb-store"
    real = run("attack", words, [known["erm"]])
    both = run("attack", f"{words} --grid 8bit --as files --save-adv adv --save-adv-format png", real.stdout)
    assert {"pgd5.24", "files"} <= json.loads(both.stdout)["metrics"].keys()
    verdicts = json.loads(run("verify", "--adv adv --store rb-store", both.stdout).stdout)["verify"][
        "entries"
    ]
    assert {name: verdict["verdict"] for name, verdict in verdicts.items()} == {"files": "match"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pgd --save-adv adv --save-adv-format png", "Add --grid 8bit"),
        ("pgd --grid 8bit --save-adv x.adv --save-adv-format png", "format is of the files in a folder"),
        ("pgd --grid 8bit --norm l2 --eps 1 --save-adv x.adv", "write --save-adv DIR --save-adv-format png"),
        ("pgd --grid 8bit --two-phase 20", "--two-phase has no --grid"),
        ("pgd --grid 8bit --eps 0.5/255", "the clean image is the only one"),
    ],
)
def test_what_cannot_be_is_a_usage_error(words: str, message: str) -> None:
    done = run("attack", words)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())


def test_images_of_three_channels_come_back_and_those_of_two_are_refused(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (5, 3, 4, 6), generator=torch.Generator().manual_seed(0)).div(255)
    png_images.write(tmp_path, torch.arange(5), images)
    assert torch.equal(png_images.read(str(tmp_path), torch.arange(5), (3, 4, 6)), images)
    two = Dataset(
        name="two",
        split="test",
        classes=1,
        class_names=["a"],
        images=torch.zeros(2, 2, 4, 4, dtype=torch.uint8),
        labels=torch.zeros(2, dtype=torch.long),
    )
    files = save_images.ImageFiles("two", {"output": "name"}, png=True)
    with pytest.raises(RbError, match="these have 2"), save_images.saving(files, two, _unused, {}):
        pass


def _unused(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError
