"""The outcomes of single images are found again for records that are ranked."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rbtools
from rbtools.commands.rank import main
from rbtools.errors import RbError
from rbtools.jobs.earlier_outcomes import ImageOutcomes
from rbtools.records import answers
from rbtools.store import Store

ARCH = {"space": "nasbench201", "index": 13714, "channels": 2, "cells": 1}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Two small networks, attacked, one with --detail; and their store."""
    store = str(tmp_path_factory.mktemp("store") / "s")
    found = []
    for seed in (0, 1):
        record = rbtools.train({"arch": ARCH}, epochs=2, batch_size=256, seed=seed, store=store)
        record = rbtools.attack(record, "fgsm", eps=[4], n=60, detail=seed == 1, store=store)
        found.append(rbtools.pr(record, gamma=0.1, rho=[0.1], samples=3, n=60, store=store))
    return store, found


def test_outcomes_give_the_value_of_the_entry(records: Any) -> None:
    store, some = records
    per_image = ImageOutcomes(Store(store), [one["checkpoint"] for one in some])
    seen = set()
    for record in some:
        for entry in record["evals"]:
            found = per_image.shares(record, entry)
            if entry["metric"] == "seconds_per_epoch":
                assert found is None
                continue
            assert found is not None and found.gives.dtype == found.counts.dtype == np.float32
            assert found.gives.shape == found.counts.shape == (60,)
            assert found.gives.sum() / found.counts.sum() == pytest.approx(entry["value"])
            seen.add(entry["metric"])
    assert seen == {"acc", "fgsm.4", "pr.uniform.0.1", "probacc.uniform.0.1.0.1"}


def test_what_the_store_does_not_have_is_none(records: Any) -> None:
    store, (record, other) = records
    (entry,) = [one for one in record["evals"] if one["metric"] == "fgsm.4"]
    names = [one["checkpoint"] for one in (record, other)]
    assert ImageOutcomes(Store(store), []).shares(record, entry) is None
    assert ImageOutcomes(Store("nowhere"), names).shares(record, entry) is None
    per_image = ImageOutcomes(Store(store), names)
    assert per_image.shares({**record, "checkpoint": "sha256:0"}, entry) is None
    assert per_image.shares(record, {**entry, "n": 59}) is None
    assert per_image.shares(record, {**entry, "value": 0.123}) is None
    assert per_image.shares(record, {"metric": "fgsm.4"}) is None


def test_bits_of_an_entry_need_no_store(records: Any) -> None:
    store, some = records
    names = [one["checkpoint"] for one in some]
    stored, nowhere = ImageOutcomes(Store(store), names), ImageOutcomes(Store("nowhere"), names)
    for record in some:
        filled = {**record, "evals": [stored.with_answers(record, entry) for entry in record["evals"]]}
        for entry in filled["evals"]:
            shares = nowhere.shares(filled, entry)
            if answers.FIELD not in entry:
                assert shares is None and entry["metric"] in ("seconds_per_epoch", "pr.uniform.0.1")
                continue
            expected = stored.shares(record, entry)
            assert shares is not None and expected is not None
            assert np.array_equal(shares.gives, expected.gives)
            assert np.array_equal(shares.counts, expected.counts)
        (noisy,) = [one for one in filled["evals"] if one["metric"].startswith("probacc")]
        # which images count is known only by the clean accuracy
        alone = nowhere.shares({**filled, "evals": [noisy]}, noisy)
        assert alone is None if noisy["n"] < 60 else alone is not None
        with pytest.raises(RbError, match="damaged"):
            nowhere.shares(filled, {**noisy, "value": 0.5 * noisy["value"]})


def test_rank_intervals_say_where_they_come_from(records: Any) -> None:
    store, some = records
    elsewhere = {"arch": {"name": "x"}, "dataset": "digits", "metrics": {"fgsm.4": 0.25}}
    elsewhere["evals"] = [{"metric": "fgsm.4", "value": 0.25, "n": 60}]
    text = "".join(json.dumps(one) + "\n" for one in [*some, elsewhere])
    arguments = ["--by", "fgsm.4", "--ci", "--bootstrap", "100", "--store", store]
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exit_code == 0
    assert result.stderr == (
        "rb-rank: rank intervals from 100 draws: test images resampled for 2 records; drawn from value and n"
        " for 1 record.\n"
    )
    for line in map(json.loads, result.stdout.splitlines()):
        assert line["rank_ci95"][0] <= line["rank"] <= line["rank_ci95"][1] and line["band"] >= 1
        assert line["ranking"]["bootstrap"] == 100
