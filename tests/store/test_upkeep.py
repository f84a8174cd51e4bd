"""What a store holds, as records; verifying and clearing up: damage is found, what is needed stays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from rbtools.evaluation import accuracy
from rbtools.store import Store, digest, lease, listing, upkeep
from rbtools.store.checksum import sealed
from rbtools.store.upkeep import verify
from tests.runner import Record, run_in, run_task

KEY = digest({"unit": "of work"})
CHECKED = ("results", "outcomes", "objects", "state", "cache")


class Filled:
    """The store under test, and what it holds: `trained` records, and what evaluating them gave."""

    def __init__(self, trained: list[Record]) -> None:
        self.store, self.trained = Store(Path("rb-store").absolute()), trained
        self.evaluated = [self.attack(record) for record in trained]

    def attack(self, record: Record, split: str = "test", n: int | None = None) -> Record:
        """Keep clean accuracy and that under FGSM, and give the record with both."""
        question = accuracy.attacked(ATTACKS.build("fgsm", eps=8 / 255), (8 / 255,))
        return run_task(record, question, run_in(tool="rb-attack", split=split, n=n))

    def files(self, kind: str) -> list[Path]:
        """The files of one kind."""
        return list(self.store.files(kind))


@pytest.fixture
def filled(trained: dict[str, Record]) -> Filled:
    """Two trainings and four evaluations of them: clean accuracy, and FGSM's."""
    return Filled([*trained.values()])


def damaged(store: Store) -> dict[str, str]:
    """Path -> problem of all that is damaged."""
    return {str(one.path): one.problem for one in verify(store) if one.problem is not None}


def flip(path: Path, place: int = -1) -> None:
    """Change one bit, and neither size nor time: as a disk does."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture
def busy(filled: Filled, settled: None) -> Filled:
    """The filled store with an unfinished training, and cached hashes of two files of the user's."""
    filled.store.keep_state(KEY, b"state of a training")
    for name in ("one.pt", "two.pt"):
        Path(name).write_bytes(name.encode())
        filled.store.file_hash(name)
    return filled


@pytest.mark.parametrize("kind", CHECKED)
@pytest.mark.parametrize("place", [0, 20, -1])
def test_one_bit_is_found_though_size_and_time_say_nothing(kind: str, place: int, busy: Filled) -> None:
    for record in busy.trained:
        busy.store.object(record["checkpoint"])  # its hash is known now, and must not be believed
    path = busy.files(kind)[0]
    flip(path, place % path.stat().st_size if place > 0 else place)
    found = damaged(busy.store)
    assert list(found) == [str(path)]
    assert "does not match its" in found[str(path)]


@pytest.mark.parametrize("kind", ["results", "outcomes", "cache"])
def test_a_whole_file_under_another_name_is_damaged(kind: str, busy: Filled) -> None:
    first, second = busy.files(kind)[:2]
    first.write_bytes(second.read_bytes())
    wrong = "its description does not match its name"
    if kind == "outcomes":
        wrong = "its content does not match its checksum"
    assert damaged(busy.store) == {str(first): wrong}


def test_a_result_must_be_that_of_its_outcomes(filled: Filled) -> None:
    for path in filled.files("results"):
        kept = orjson.loads(path.read_bytes()[:-66])
        if "of" in kept["about"]:
            kept["about"]["of"]["split"] = "train"  # what was measured is not what the key says
            path.write_bytes(sealed(orjson.dumps(kept)))
    assert len(damaged(filled.store)) == 4


def test_a_foreign_file_is_named(filled: Filled) -> None:
    folder = filled.files("results")[0].parent
    (folder / "notes.txt").write_text("mine")
    (folder / ".hidden").write_text("mine")
    link = filled.store.path("objects", "ab" * 32)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(filled.files("objects")[0])
    assert set(damaged(filled.store).values()) == {"it does not belong to a store"}
    assert len(damaged(filled.store)) == 2


def test_links_to_folders_of_the_user_lead_nowhere(filled: Filled) -> None:
    base = filled.store.folder
    Path("mine").mkdir()
    Path("mine", "notes.txt").write_text("mine")
    os.utime(Path("mine", "notes.txt"), (0, 0))
    for kind in ("objects", "results", "state", "leases", "cache"):
        (base / kind).mkdir(exist_ok=True)
        free = next(f"{n:02x}" for n in range(256) if not (base / kind / f"{n:02x}").exists())
        for name in (free, "notes"):
            (base / kind / name).symlink_to(Path("mine").absolute())
    found = damaged(filled.store)
    assert len(found) == 2 * len(CHECKED) - 2 and set(found.values()) == {"it does not belong to a store"}
    for kind in ("objects", "state", "leases", "cache"):  # no name of a store
        place = base / kind / "ab" / "notes.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text("mine")
        os.utime(place, (0, 0))
    cleared(filled.store, keep_metrics=True)
    assert Path("mine", "notes.txt").read_text() == "mine" and len(list(base.glob("*/ab/notes.txt"))) == 4


@pytest.mark.parametrize("kind", ["results", "objects", "state", "leases", "cache"])
def test_what_is_no_plain_file_is_not_waited_for(kind: str, filled: Filled) -> None:
    folder = filled.store.folder / kind / "aa"
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / ("aa" * 32))  # to open a pipe without a writer takes for ever
    (folder / ("ab" * 32)).mkdir()
    (folder / ("ac" * 32)).symlink_to("/dev/zero")
    if kind in CHECKED:
        assert len(damaged(filled.store)) == 3
    upkeep.clear(filled.store, keep_metrics=True)
    read = [one for one in listing.records(filled.store) if one.record is None]
    assert len(read) == (3 if kind == "results" else 0)


def cleared(store: Store, **options: Any) -> dict[str, list[str]]:
    """Clear up; kind -> names of what went."""
    found: dict[str, list[str]] = {}
    for one in upkeep.clear(store, **options).garbage:
        assert not one.path.exists()
        found.setdefault(one.kind, []).append(one.path.name)
    return found


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_keeping_metrics_leaves_results_and_outcomes_alone(busy: Filled) -> None:
    held = [busy.files(kind) for kind in ("results", "outcomes")]
    busy.store.put("imagefolder:abc", "a fingerprint")
    Path("two.pt").write_bytes(b"changed since")
    gone = cleared(busy.store, keep_metrics=True)
    assert {kind: len(names) for kind, names in gone.items() if kind != "cache"} == {"objects": 2, "state": 1}
    assert len(gone["cache"]) >= 2 and busy.store.get("imagefolder:abc") == "a fingerprint"
    assert [busy.files(kind) for kind in ("results", "outcomes")] == held
    assert not busy.files("objects") and not busy.files("state")
    for record in list(busy.evaluated):
        assert busy.attack(record)["metrics"] == record["metrics"]


@pytest.mark.parametrize("keep_metrics", [False, True])
def test_work_in_progress_is_not_touched(keep_metrics: bool, busy: Filled) -> None:
    with busy.store.claimed(KEY, lambda: False, lambda: None):
        found = upkeep.clear(busy.store, keep_metrics=keep_metrics)
    assert [path.name for path in found.live] == [KEY]
    assert not [one for one in found.garbage if one.kind in ("state", "leases", "objects")]
    assert busy.store.state(KEY) and len(busy.files("objects")) == 2
    with busy.store.claimed(digest({"other": "training"}), lambda: False, lambda: None):
        upkeep.clear(busy.store, keep_metrics=keep_metrics)
    assert busy.store.state(KEY)  # nobody holds it, but somebody works


def test_leases_that_nobody_holds_go(filled: Filled) -> None:
    held, left = (filled.store.path("leases", digest({"unit": number})) for number in range(2))
    mine = lease.claim(held)
    assert mine is not None
    left.parent.mkdir(exist_ok=True)
    left.touch()  # its holder was killed
    assert cleared(filled.store)["leases"] == [left.name]
    assert [path.name for path in filled.files("leases")] == [held.name]
    mine.release()


def test_half_written_files_go_when_nobody_writes_them_any_more(filled: Filled) -> None:
    folder = filled.files("results")[0].parent
    for name, seconds in ((".aside-new", 3000), (".aside-old", 4000), (".notes", 4000)):
        (folder / name).write_bytes(b"half")
        aged(folder / name, seconds)
    assert cleared(filled.store)["aside"] == [".aside-old"]


def finished(filled: Filled) -> str:
    results = ((path.name, path.read_bytes()) for path in filled.files("results"))
    return next(name for name, data in results if b'"kind":"training"' in data)


def kept(filled: Filled, name: str = KEY) -> Path:
    filled.store.keep_state(name, b"state")
    return filled.store.path("state", name)


@pytest.mark.parametrize(
    ("make", "goes"),
    [
        (lambda filled: kept(filled, finished(filled)), True),
        (lambda filled: kept(filled), False),
        (lambda filled: aged(kept(filled), 29 * 86400), False),
        (lambda filled: aged(kept(filled), 31 * 86400), True),
        (lambda filled: kept(filled).write_bytes(b"damaged"), True),
    ],
    ids=["finished", "unfinished", "of this month", "old", "damaged"],
)
def test_states_of_finished_trainings_and_old_or_damaged_ones_are_removed(
    make: Callable[[Any], Any], goes: bool, filled: Filled
) -> None:
    make(filled)
    assert ("state" in cleared(filled.store)) is goes
    kept(filled, finished(filled))
    for path in filled.files("objects"):
        path.unlink()  # so that it is trained again
    assert "state" not in cleared(filled.store)


def listed(store: Store) -> list[dict[str, Any]]:
    found = list(listing.records(store))
    assert all(one.record is not None for one in found)
    return [one.record for one in found if one.record is not None]


def of_kind(store: Store, kind: str) -> list[dict[str, Any]]:
    return [record for record in listed(store) if record["stored"]["kind"] == kind]


def test_an_evaluation_has_the_entry_that_the_tool_wrote(filled: Filled) -> None:
    found = of_kind(filled.store, "evaluation")
    assert sorted(next(iter(record["metrics"])) for record in found) == ["acc", "acc", "fgsm.8", "fgsm.8"]
    for record in found:
        (wrote,) = [one for one in filled.evaluated if one["checkpoint"] == record["checkpoint"]]
        (entry,) = record["evals"]
        (same,) = [one for one in wrote["evals"] if one["metric"] == entry["metric"]]
        assert {"tool": "rb-attack", "image_list": same["image_list"], **entry} == same
        assert record["metrics"] == {entry["metric"]: entry["value"]}
        assert record["dataset"] == "digits" and record["arch"]["name"] == wrote["arch"]["name"]
        assert record["train"] == {key: wrote["train"][key] for key in ("method", "seed", "epochs")}


@pytest.mark.parametrize(
    "body",
    [
        *(b"[]", b"{}", b"x"),
        b'{"what":{},"value":1,"about":{"kind":"training"}}',
        b'{"what":1.5,"value":1}',
        b'{"what":{"outcomes":[1]},"value":1}',
        b'{"what":{"outcomes":"../../x"},"value":1}',
    ],
)
def test_a_whole_file_that_is_no_result_counts_as_damaged(body: bytes, filled: Filled) -> None:
    path = filled.files("results")[0]
    path.write_bytes(sealed(body))
    assert next(listing.records(filled.store)).record is None


def test_the_beginning_of_a_key_finds_its_result(filled: Filled) -> None:
    for path in filled.files("results"):
        (found,) = listing.records(filled.store, [path.name[:12].upper()])
        assert found.path == path


def test_what_is_no_store_is_said_and_not_made() -> None:
    with pytest.raises(RbError, match=r"The store .*nowhere does not exist\. It is created .* --store"):
        list(listing.records(Store("nowhere")))
    assert not Path("nowhere").exists()
    Path("photos/cat").mkdir(parents=True)
    with pytest.raises(RbError, match=r"photos is not a store: it has no format\.json"):
        list(listing.records(Store("photos")))


def test_the_files_that_were_not_used_for_longest_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    now, ages = time.time(), {}
    for age, kind in enumerate(["baseline", *["evaluation"] * 4]):
        key = {"kind": kind, "age": age}
        store.keep_result(digest(key), key, "x" * 1000, {})
        ages[digest(key)] = age
        read = now if age == 1 else now - 100 + age
        os.utime(store.path("results", digest(key)), (read, now - 100 + age))

    def kept() -> list[int]:
        return sorted(ages[path.name] for path in store.files("results"))

    each = sum(path.stat().st_size for path in store.files("results")) / 5
    sizes = upkeep.Limits(bytes=sum(row["bytes"] for row in listing.usage(store)[-1:]) - 1.5 * each)
    assert len(upkeep.clear(store, limits=sizes, dry_run=True).garbage) == 2 and kept() == [0, 1, 2, 3, 4]
    assert [one.kind for one in upkeep.clear(store, limits=sizes).garbage] == ["results"] * 2
    assert kept() == [0, 1, 4]
    working = lease.claim(store.path("leases", KEY))
    assert not upkeep.clear(store, limits=upkeep.Limits(seconds=50)).garbage
    working.release()
    upkeep.clear(store, limits=upkeep.Limits(seconds=50))
    assert kept() == [0, 1]
    upkeep.clear(store, limits=upkeep.Limits(bytes=0))
    assert kept() == [0]
