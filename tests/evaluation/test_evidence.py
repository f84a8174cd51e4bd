"""Saved adversarial images: what they hold, that they are judged, and that no tampered claim is believed."""

from __future__ import annotations

import copy
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
from rbtools.jobs import adv_file
from rbtools.jobs.evidence import judge_evidence
from rbtools.store import Store

Record = dict[str, Any]
FILE = "pgd.adv"


def judge(record: Record, path: str = FILE) -> Record:
    return judge_evidence(record, path, Run.of(tool="rb-verify", store=Store("rb-store"), device="cpu"))


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
    (block,) = adv_file.blocks(FILE, (1, 8, 8), 355)
    levels = block.differences * 255
    assert np.abs(levels - levels.round()).max() < 1e-4 and np.abs(levels).max() == pytest.approx(24)
    assert adv_file.header_of(FILE)["exact"] == 0


@pytest.mark.parametrize(("norm", "eps"), [("l2", 1.0), ("linf", 0.5)])
def test_other_balls(known: dict[str, Record], norm: str, eps: float) -> None:
    record = rbtools.attack(
        known["erm"], "pgd", norm=norm, eps=eps, steps=3, n=40, save_adv="other.adv", store="rb-store"
    )
    assert judge(record, "other.adv")["verdict"] == "match"


def test_signs_alone_keep_most_images_of_an_l2_ball_adversarial(known: dict[str, Record]) -> None:
    rbtools.attack(known["erm"], "pgd", norm="l2", eps=1.0, steps=3, n=40, save_adv="l2.adv")
    (block,) = adv_file.blocks("l2.adv", (1, 8, 8), 355)
    norms = np.linalg.norm(block.differences.reshape(40, -1), axis=1)
    assert norms.max() <= 1 + 1e-6
    counts = [int((block.forms == form).sum()) for form in adv_file.FORMS]
    assert counts[adv_file.COARSE] > counts[adv_file.LEVELS] and counts[adv_file.EXACT] <= 1


def test_every_form_comes_back() -> None:
    forms = np.array([0, 1, 2, 3], np.uint8)
    levels = np.array([[0, 0, 0], [8, -8, 0], [3, -7, 8], [0, 0, 0]], np.int8)
    exact = np.full((4, 3), 0.25, np.float32)
    header = {"n": 4, "eps": 8 / 255, "step": 1 / 255, "coarse": 8}
    Path("blocks").write_bytes(adv_file.packed(np.arange(4), forms, levels, exact, 8))
    with open("blocks", "rb") as blocks:
        adv_file.write(Path("forms.adv"), header, blocks)
    (block,) = adv_file.blocks("forms.adv", (3, 1, 1), 10)
    wanted = np.where(forms[:, None] == 3, exact, levels / 255.0)
    assert np.allclose(block.differences.reshape(4, 3), wanted) and (block.ids == np.arange(4)).all()


def rewritten(change: Any, path: str = "tampered.adv") -> str:
    """FILE with a changed header and changed arrays (ids, forms, levels)."""
    header = adv_file.header_of(FILE)
    (block,) = adv_file.blocks(FILE, (1, 8, 8), 355)
    levels = (block.differences.reshape(len(block.ids), -1) * 255).round().astype(np.int16)
    arrays = [block.ids.copy(), block.forms.copy(), levels]
    change(header, *arrays)
    ids, forms, levels = arrays
    forms[forms == adv_file.COARSE] = adv_file.LEVELS
    text = adv_file.packed(ids, forms, levels.astype(np.int8), np.zeros(levels.shape, np.float32), 24)
    # Not by adv_file.write, which waits for the disk: there are a thousand of them.
    Path(path).write_bytes(adv_file.MAGIC + json.dumps(header).encode() + b"\n" + text)
    return path


def broken(forms: Any, place: int) -> int:
    return int(np.flatnonzero(forms)[place % np.count_nonzero(forms)])


def unmoved(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    levels[broken(forms, at)] = 0  # counts as broken, and is the clean image


def outside(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    levels[broken(forms, at), at % 64] = 25
    levels[broken(forms, at), (at + 1) % 64] = -25


def another_image(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    ids[at % len(ids)] = ids[(at + 1) % len(ids)]


def claimed_broken(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    forms[forms == 0] = adv_file.LEVELS  # some of them are classified correctly


def withheld(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    forms[broken(forms, at)] = adv_file.CLEAN


def other_checkpoint(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header["checkpoint"] = "sha256:" + f"{at:064x}"


def larger_ball(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header["eps"] *= 1.01 + at % 5


def other_value(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header["value"] += (1 + at % 7) / 80


def other_data(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header["data"] = f"{at:064x}"


def more_images(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header["n"] += 1 + at


def other_norm(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header |= {"norm": ("l2", "l1")[at % 2], "eps": 8.0 + at}  # in which 24/255 in each channel is little


def other_split(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header |= {"split": "train", "at": at}


def renamed(header: Any, ids: Any, forms: Any, levels: Any, at: int) -> None:
    header["metric"] = f"pgd3.{at + 25}"  # of another distance


TAMPERS = [
    renamed,
    other_norm,
    other_split,
    unmoved,
    outside,
    another_image,
    claimed_broken,
    withheld,
    other_checkpoint,
    larger_ball,
    other_value,
    other_data,
    more_images,
]


PLACES = range(77)  # of thirteen tampers: 1,001 claims


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: tamper.__name__)
def test_a_tampered_file_is_refused(attacked: Record, tamper: Any) -> None:
    assert judge(attacked, rewritten(lambda *arrays: None))["verdict"] == "match"
    refused = 0
    for at in PLACES:
        verdict = judge(attacked, rewritten(lambda *arrays, at=at: tamper(*arrays, at)))
        refused += verdict["verdict"] == "differs" and bool(verdict["reason"])
    assert refused == len(PLACES)


def test_a_file_alone_is_judged_by_its_name_too(attacked: Record) -> None:
    bare = {key: value for key, value in attacked.items() if key not in ("metrics", "evals", "checksums")}
    assert judge(bare)["verdict"] == "match"
    verdict = judge(bare, rewritten(lambda *arrays: renamed(*arrays, 7)))
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
    from rbtools.jobs.evidence import verify_evidence

    run = Run.of(tool="rb-verify", store=Store("rb-store"), device="cpu", threads=1)
    edited = {**attacked, "metrics": {**attacked["metrics"], "pgd3.24": 0.0125}}
    assert verify_evidence(edited, FILE, run)["verify"]["inconsistent"]
    assert not verify_evidence(attacked, FILE, run)["verify"]["inconsistent"]


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
        harmless = adv_file.header_of("damaged.adv")["value"] == adv_file.header_of(FILE)["value"]
        assert verdict["verdict"] == "differs" or (
            harmless and verdict["measured"] == judge(attacked)["measured"]
        )


def test_what_a_file_costs_is_bounded(attacked: Record) -> None:
    import zlib

    header = adv_file.header_of(FILE)
    bomb = zlib.compress(b"\0" * 10_000_000, 9)
    parts = [zlib.compress(b"\0" * 320, 9), bomb, bomb, bomb, bomb]
    Path("blocks").write_bytes(adv_file._SIZES.pack(80, *map(len, parts)) + b"".join(parts))
    with open("blocks", "rb") as blocks:
        adv_file.write(Path("bomb.adv"), header, blocks)
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
    path = rewritten(lambda *arrays: withheld(*arrays, 0))
    bad = CliRunner().invoke(main, ["--adv", path, "--store", "rb-store"], input=json.dumps(attacked))
    assert bad.exit_code == 1 and "at most, not the" in bad.stderr
