"""Saved adversarial images: their contents, their verification, and the rejection of tampered claims."""

from __future__ import annotations

import copy
import functools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rbtools
from rbtools.commands.verify import main
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.jobs import evidence
from rbtools.store import Store

Record = dict[str, Any]
FILE = "pgd.adv"


def judge(record: Record, path: str = FILE) -> Record:
    (verdict,) = verified(record, path)["entries"].values()
    assert isinstance(verdict, dict)
    return verdict


def verified(record: Record, path: str = FILE) -> Record:
    run = Run.of(tool="rb-verify", store=Store("rb-store"), device="cpu", threads=1)
    summary: Record = evidence.verify_evidence(record, path, run)["verify"]
    return summary


@pytest.fixture
def attacked(known: dict[str, Record]) -> Record:
    """A record with a claim, and FILE with its images."""
    return rbtools.attack(known["erm"], "pgd", eps=24, steps=3, n=80, save_adv=FILE, store="rb-store")


def test_a_true_claim_is_believed(attacked: Record) -> None:
    verdict = judge(attacked)
    value = attacked["metrics"]["pgd3.24"]
    assert (verdict["verdict"], verdict["measured"], verdict["n"]) == ("match", pytest.approx(value), 80)
    assert 0 < value < attacked["metrics"]["acc"]
    assert judge({**attacked, "metrics": {}, "evals": []})["claimed"] == pytest.approx(value)


def test_the_differences_are_whole_levels_inside_the_ball(attacked: Record) -> None:
    (block,) = evidence.blocks(FILE, (1, 8, 8), 355)
    levels = block.differences * 255
    assert np.abs(levels - levels.round()).max() < 1e-4 and np.abs(levels).max() == pytest.approx(24)
    assert evidence.header_of(FILE)["exact"] == 0


@pytest.mark.parametrize(("norm", "eps"), [("l2", 1.0), ("linf", 0.5)])
def test_other_balls(known: dict[str, Record], norm: str, eps: float) -> None:
    record = rbtools.attack(
        known["erm"], "pgd", norm=norm, eps=eps, steps=3, n=40, save_adv="other.adv", store="rb-store"
    )
    assert judge(record, "other.adv")["verdict"] == "match"


def test_signs_alone_keep_most_images_of_an_l2_ball_adversarial(known: dict[str, Record]) -> None:
    rbtools.attack(known["erm"], "pgd", norm="l2", eps=1.0, steps=3, n=40, save_adv="l2.adv")
    (block,) = evidence.blocks("l2.adv", (1, 8, 8), 355)
    norms = np.linalg.norm(block.differences.reshape(40, -1), axis=1)
    assert norms.max() <= 1 + 1e-6
    counts = [int((block.forms == form).sum()) for form in evidence.FORMS]
    assert counts[evidence.COARSE] > counts[evidence.LEVELS] and counts[evidence.EXACT] <= 1


def test_every_form_comes_back() -> None:
    forms = np.array([0, 1, 2, 3], np.uint8)
    levels = np.array([[0, 0, 0], [8, -8, 0], [3, -7, 8], [0, 0, 0]], np.int8)
    exact = np.full((4, 3), 0.25, np.float32)
    header = {"n": 4, "eps": 8 / 255, "step": 1 / 255, "coarse": 8}
    Path("blocks").write_bytes(evidence.packed(np.arange(4), forms, levels, exact, 8))
    with open("blocks", "rb") as blocks:
        evidence.write(Path("forms.adv"), header, blocks)
    (block,) = evidence.blocks("forms.adv", (3, 1, 1), 10)
    wanted = np.where(forms[:, None] == 3, exact, levels / 255.0)
    assert np.allclose(block.differences.reshape(4, 3), wanted) and (block.ids == np.arange(4)).all()


def rewritten(change: Any, path: str = "tampered.adv") -> str:
    """FILE with a changed header and changed arrays (ids, forms, levels)."""
    header = evidence.header_of(FILE)
    (block,) = evidence.blocks(FILE, (1, 8, 8), 355)
    levels = (block.differences.reshape(len(block.ids), -1) * 255).round().astype(np.int16)
    arrays = [block.ids.copy(), block.forms.copy(), levels]
    change(header, *arrays)
    ids, forms, levels = arrays
    forms[forms == evidence.COARSE] = evidence.LEVELS
    text = evidence.packed(ids, forms, levels.astype(np.int8), np.zeros(levels.shape, np.float32), 24)
    # Not by evidence.write, which waits for the disk.
    Path(path).write_bytes(evidence.MAGIC + json.dumps(header).encode() + b"\n" + text)
    return path


def broken(forms: Any, place: int) -> int:
    return int(np.flatnonzero(forms)[place % np.count_nonzero(forms)])


def tamper(kind: str, at: int, header: Any, ids: Any, forms: Any, levels: Any) -> None:
    place = broken(forms, at)
    if kind == "unmoved":
        levels[place] = 0  # counts as broken, and is the clean image
    elif kind == "outside":
        levels[place, at % 64], levels[place, (at + 1) % 64] = 25, -25
    elif kind == "another-image":
        ids[at % len(ids)] = ids[(at + 1) % len(ids)]
    elif kind == "claimed-broken":
        forms[forms == 0] = evidence.LEVELS  # some of them are classified correctly
    elif kind == "withheld":
        forms[place] = evidence.CLEAN
    elif kind == "norm":
        header |= {"norm": ("l2", "l1")[at % 2], "eps": 8.0 + at}  # in which 24/255 in each channel is little
    elif kind == "larger-ball":
        header["eps"] *= 1.01 + at % 5
    else:
        other = {"value": header["value"] + (1 + at) / 80, "n": header["n"] + 1 + at, "split": "train"}
        other |= {"metric": f"pgd3.{at + 25}", "checkpoint": f"sha256:{at:064x}", "data": f"{at:064x}"}
        header[kind] = other[kind]


@pytest.mark.parametrize(
    "kind",
    "unmoved outside another-image claimed-broken withheld norm larger-ball"
    " value n split metric checkpoint data".split(),
)
def test_a_tampered_file_is_refused(attacked: Record, kind: str) -> None:
    assert judge(attacked, rewritten(lambda *arrays: None))["verdict"] == "match"
    for at in range(3):
        verdict = judge(attacked, rewritten(functools.partial(tamper, kind, at)))
        assert verdict["verdict"] == "differs" and verdict["reason"]


def test_a_file_alone_is_judged_by_its_name_too(attacked: Record) -> None:
    bare = {key: value for key, value in attacked.items() if key not in ("metrics", "evals", "checksums")}
    assert judge(bare)["verdict"] == "match"
    verdict = judge(bare, rewritten(functools.partial(tamper, "metric", 7)))
    assert verdict["verdict"] == "differs" and "names the distance 32" in verdict["reason"]
    verdict = judge(
        bare, rewritten(lambda header, *_: header.update(metric="pgd40.24", steps=3, attack="pgd"))
    )
    assert verdict["verdict"] == "differs"


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "l2", "eps": 8.0},
        {"eps": 0.5, "tool": "rb-convert"},
        {"eps": 0.5, "published": 1},
        {"eps": 0.5, "metric": "mine"},
        {"metric": "pr.uniform.0.08"},
        {"metric": None},
        {"metric": "train.pgd3.24"},
        {"split": "train"},
        {"value": "x"},
        {"value": None},
    ],
)
def test_a_file_alone_says_no_more_than_its_name(attacked: Record, changes: dict[str, Any]) -> None:
    bare = {key: value for key, value in attacked.items() if key not in ("metrics", "evals", "checksums")}
    path = rewritten(lambda header, *_: header.update(changes))
    assert judge(bare, path)["verdict"] == "differs"
    result = CliRunner().invoke(main, ["--adv", path, "--store", "rb-store"], input=json.dumps(bare))
    assert result.exit_code == 1 and "Traceback" not in result.stderr and "differs" in result.stderr


def test_the_record_of_a_file_is_compared_with_itself(attacked: Record) -> None:
    edited = {**attacked, "metrics": {**attacked["metrics"], "pgd3.24": 0.0125}}
    assert verified(edited)["inconsistent"]
    assert not verified(attacked)["inconsistent"]


@pytest.mark.parametrize("field", ["value", "n", "eps", "norm"])
def test_a_tampered_record_is_refused(attacked: Record, field: str) -> None:
    record = copy.deepcopy(attacked)
    (entry,) = [one for one in record["evals"] if one["metric"] == "pgd3.24"]
    entry[field] = {"value": entry["value"] - 1 / 80, "n": 79, "eps": 0.1, "norm": "l2"}[field]
    assert judge(record)["verdict"] == "differs"


def test_a_damaged_file_is_an_error_or_refused(attacked: Record) -> None:
    whole = Path(FILE).read_bytes()
    chance = random.Random(0)
    for _ in range(60):
        place = chance.randrange(len(whole))
        text = bytearray(whole)
        text[place] ^= 1 << chance.randrange(8)
        Path("damaged.adv").write_bytes(bytes(text[: chance.choice([len(text), place])]))
        try:
            verdict = judge(attacked, "damaged.adv")
        except RbError as error:
            assert "damaged" in str(error) or "Expected" in str(error)
            continue
        harmless = evidence.header_of("damaged.adv")["value"] == evidence.header_of(FILE)["value"]
        assert verdict["verdict"] == "differs" or (
            harmless and verdict["measured"] == judge(attacked)["measured"]
        )


def test_what_a_file_costs_is_bounded(attacked: Record) -> None:
    import zlib

    header = evidence.header_of(FILE)
    bomb = zlib.compress(b"\0" * 10_000_000, 9)
    parts = [zlib.compress(b"\0" * 320, 9), bomb, bomb, bomb, bomb]
    Path("blocks").write_bytes(evidence._SIZES.pack(80, *map(len, parts)) + b"".join(parts))
    with open("blocks", "rb") as blocks:
        evidence.write(Path("bomb.adv"), header, blocks)
    with pytest.raises(RbError, match="another size than it should"):
        judge(attacked, "bomb.adv")


def test_a_file_is_not_written_over_nor_computed_twice(attacked: Record, known: dict[str, Record]) -> None:
    before = Path(FILE).stat().st_mtime_ns
    rbtools.attack(known["erm"], "pgd", eps=24, steps=3, n=80, save_adv=FILE, store="rb-store")
    assert Path(FILE).stat().st_mtime_ns == before
    with pytest.raises(RbError, match="has other images already"):
        rbtools.attack(known["erm"], "pgd", eps=16, steps=3, n=80, save_adv=FILE, store="rb-store")
    with pytest.raises(RbError, match="one distance"):
        rbtools.attack(known["erm"], "pgd", eps=[8, 16], n=20, save_adv="two.adv", store="rb-store")


def test_the_command_says_match_or_ends_with_status_1(attacked: Record) -> None:
    good = CliRunner().invoke(main, ["--adv", FILE, "--store", "rb-store"], input=json.dumps(attacked))
    assert good.exit_code == 0, good.stderr
    assert json.loads(good.stdout)["verify"]["entries"]["pgd3.24"]["verdict"] == "match"
    path = rewritten(functools.partial(tamper, "withheld", 0))
    bad = CliRunner().invoke(main, ["--adv", path, "--store", "rb-store"], input=json.dumps(attacked))
    assert bad.exit_code == 1 and "at most, not the" in bad.stderr
