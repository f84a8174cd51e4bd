"""What a store holds, as records: as the tools wrote them, in order."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.store import Store, listing
from rbtools.store.checksum import sealed

FIELDS = ("arch", "dataset", "train", "checkpoint", "metrics", "evals")


def listed(store: Store) -> list[dict[str, Any]]:
    found = list(listing.records(store))
    assert all(one.record is not None for one in found)
    return [one.record for one in found if one.record is not None]


def of_kind(store: Store, kind: str) -> list[dict[str, Any]]:
    return [record for record in listed(store) if record["stored"]["kind"] == kind]


def test_a_training_is_listed_as_rb_train_wrote_it(filled: Any) -> None:
    by_checkpoint = {record["checkpoint"]: record for record in filled.trained}
    found = of_kind(filled.store, "training")
    assert len(found) == 2
    for record in found:
        wrote = by_checkpoint[record["checkpoint"]]
        identity = ("space", "name", "index", "str", "channels", "cells")  # what is not derived from them
        assert record["arch"] == {key: wrote["arch"][key] for key in identity}
        assert {key: record[key] for key in FIELDS[1:]} == {key: wrote[key] for key in FIELDS[1:]}
        assert list(record["train"]) == list(wrote["train"])


def test_an_evaluation_has_the_entry_that_the_tool_wrote(filled: Any) -> None:
    found = of_kind(filled.store, "evaluation")
    assert sorted(next(iter(record["metrics"])) for record in found) == ["acc", "acc", "fgsm.8", "fgsm.8"]
    for record in found:
        (wrote,) = [one for one in filled.evaluated if one["checkpoint"] == record["checkpoint"]]
        (entry,) = record["evals"]
        (same,) = [one for one in wrote["evals"] if one["metric"] == entry["metric"]]
        assert {"tool": "rb-attack", **entry} == same
        assert record["metrics"] == {entry["metric"]: entry["value"]}
        assert record["dataset"] == "digits" and record["arch"]["name"] == wrote["arch"]["name"]
        assert record["train"] == {key: wrote["train"][key] for key in ("method", "seed", "epochs")}


def test_stored_says_what_and_where_it_is(filled: Any) -> None:
    filled.attack(filled.trained[0], split="train", n=100)
    names = {name for record in listed(filled.store) for name in record["metrics"]}
    assert names == {"acc", "fgsm.8", "train.acc", "train.fgsm.8", "seconds_per_epoch"}
    for path, record in zip(filled.files("results"), listed(filled.store), strict=True):
        stored = record["stored"]
        assert stored["key"] == path.name and stored["bytes"] == path.stat().st_size
        when = datetime.strptime(stored["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        assert when.timestamp() == int(path.stat().st_mtime)
        if stored["kind"] == "training":
            assert stored["checkpoint_bytes"] == filled.store.object(record["checkpoint"]).stat().st_size
        else:
            assert filled.store.path("outcomes", stored["outcomes"]).is_file()
    gone, kept = (record["checkpoint"] for record in filled.trained)
    filled.store.object(gone).unlink()
    trainings = of_kind(filled.store, "training")
    sizes = {one["checkpoint"]: one["stored"]["checkpoint_bytes"] for one in trainings}
    assert sizes[gone] == 0 < sizes[kept]


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
def test_a_whole_file_that_is_no_result_counts_as_damaged(body: bytes, filled: Any) -> None:
    path = filled.files("results")[0]
    path.write_bytes(sealed(body))
    assert next(listing.records(filled.store)).record is None


def test_the_beginning_of_a_key_finds_its_result(filled: Any) -> None:
    for path in filled.files("results"):
        (found,) = listing.records(filled.store, [path.name[:12].upper()])
        assert found.path == path
    keys = [path.name for path in filled.files("results")]
    assert len(list(listing.records(filled.store, [*keys, *keys]))) == len(keys)


def test_what_is_no_store_is_said_and_not_made() -> None:
    with pytest.raises(RbError, match=r"There is no store .*nowhere\. The tools create it .* --store"):
        list(listing.records(Store("nowhere")))
    assert not Path("nowhere").exists()
    Path("photos/cat").mkdir(parents=True)
    with pytest.raises(RbError, match=r"photos is not a store: it has no format\.json"):
        list(listing.records(Store("photos")))
    assert list(listing.records(Store("photos/cat"))) == []  # an empty folder may become one
