"""Plans for a device from the rates that were measured on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.execution.device_rates import DeviceRates, measured
from rbtools.store import Store, digest

PGD = {"kind": "attack", "attack": "pgd", "config": {"eps": 0.1, "steps": 20, "restarts": 1}}
AA = {"kind": "attack", "attack": "aa", "config": {"eps": 0.1, "backend": "rbtools"}}


def file_of(*lines: Any) -> str:
    Path("rates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "rates.jsonl"


def evaluation(column: dict[str, Any], macs: int, seconds: float) -> dict[str, Any]:
    return {"rate": {"kind": "evaluation", "column": column, "macs": macs, "images": 100, "seconds": seconds}}


def training(name: str, macs: int, seconds: float) -> dict[str, Any]:
    method = {"name": name, "config": {}}
    numbers = {"macs": macs, "images": 1000, "seconds": seconds, "passes": 20}
    return {"rate": {"kind": "training", "method": method, **numbers}}


def rates(*lines: Any) -> DeviceRates:
    return DeviceRates(file_of({"machine": "card"}, {"figure": "of people", "ours": 1}, *lines))


def test_an_evaluation_scales_with_images_multiply_adds_and_steps() -> None:
    found = rates(evaluation(PGD, 1000, 2.0), evaluation(AA, 1000, 50.0))
    assert found.machine == "card"
    assert found.evaluation(PGD, 1000, 200) == pytest.approx(4.0)
    assert found.evaluation(PGD, 500, 100) == pytest.approx(1.0)
    other = {**PGD, "config": {"eps": 0.2, "steps": 10, "restarts": 4}}
    assert found.evaluation(other, 1000, 100) == pytest.approx(4.0)
    assert found.evaluation({**AA, "config": {**AA["config"], "eps": 0.9}}, 1000, 100) == pytest.approx(50)
    # What leaves its images at other times has no rate by another's.
    assert found.evaluation({**AA, "config": {"backend": "pyautoattack"}}, 1000, 100) is None
    assert found.evaluation({"kind": "attack", "attack": "fab", "config": {"steps": 5}}, 1000, 100) is None
    assert found.evaluation(PGD, None, 100) is None


def test_the_network_of_the_nearest_size_counts_and_the_fastest_of_several() -> None:
    found = rates(
        *(evaluation(PGD, macs, seconds) for macs, seconds in ((10, 1.0), (1000, 2.0), (1000, 3.0)))
    )
    assert found.evaluation(PGD, 20, 100) == pytest.approx(2.0)
    assert found.evaluation(PGD, 500, 100) == pytest.approx(1.0)


def test_a_training_scales_with_its_passes_and_prefers_its_own_method() -> None:
    found = rates(training("pgd", 1000, 4.0), training("at-pr", 1000, 30.0))
    assert found.training({"name": "pgd"}, 20, 1000, 1000) == pytest.approx(4.0)
    assert found.training({"name": "pgd"}, 5, 2000, 500) == pytest.approx(1.0)
    assert found.training({"name": "trades"}, 40, 1000, 1000) == pytest.approx(8.0)
    assert rates(evaluation(PGD, 10, 1.0)).training({"name": "pgd"}, 20, 1000, 1000) is None


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[1]",
        '{"rate": 5}',
        '{"rate": {"kind": "evaluation", "column": {}, "macs": 1, "images": 1, "seconds": 1}}',
        json.dumps(training("pgd", 0, 1.0)),
        json.dumps(training("pgd", 10, 1.0)).replace("20", "true"),
        json.dumps(training("pgd", 10, 1.0)).replace("1000", '"x"'),
        json.dumps(training("pgd", 10, 1.0)).replace('"training"', '"cooking"'),
    ],
)
def test_a_line_that_is_no_rate_is_named(line: str) -> None:
    Path("rates.jsonl").write_text(f'{{"machine": "card"}}\n{line}\n')
    with pytest.raises(
        RbError, match=r"rates\.jsonl:2 is no line of rates\. Expected what python bench/gpu\.py"
    ):
        DeviceRates("rates.jsonl")


def test_a_file_without_rates_is_refused() -> None:
    with pytest.raises(RbError, match=r"has no rate\. Expected"):
        rates()
    with pytest.raises(RbError, match="cannot be read: No such file"):
        DeviceRates("nowhere")


def test_the_rates_of_a_store_are_those_of_its_evaluations() -> None:
    store = Store("measured")
    about = {"kind": "evaluation", "of": {"column": PGD}, "arch": {"macs": 7}}
    clean = {**about, "of": {"column": {"kind": "clean"}}}
    for what, value, words in (
        ({"n": 50}, [{"seconds": 3.0}], about),
        ({"n": 50, "column": "clean"}, [{"seconds": 3.0}], clean),
        ({"kind": "training"}, {"seconds_per_epoch": 1.0}, {}),
    ):
        store.keep_result(digest(what), what, value, words)
    assert [*measured(store)] == [{**evaluation(PGD, 7, 3.0)["rate"], "images": 50}]
