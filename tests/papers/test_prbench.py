"""PRBench's leaderboard: rows as records and back, and rows that are none."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.evaluation.probabilistic import noisy
from rbtools.formats import FORMATS, ConversionReport
from rbtools.papers import reproduce_prbench
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from tests.formats import reading

# The first row of the published file.
ERM: dict[str, Any] = {
    "dataset": "CIFAR-10",
    "model": "ResNet-18",
    "method": "ERM",
    "acc": 94.85,
    "ar": {"PGD10": 0.01, "PGD20": 0.05, "CW20": 0.00, "AA": 0.00},
    "pr": {"0.03": 97.64, "0.08": 76.19, "0.10": 61.65, "0.12": 47.07},
    "probacc": {"0.10": 95.04, "0.05": 93.48, "0.01": 89.82},
    "ge_ar": {"PGD20": 0.00},
    "ge_pr": {"0.03": 6.24, "0.08": 3.98, "0.10": 2.94, "0.12": 2.54},
    "time_s_per_ep": 3,
}
PRBENCH = FORMATS.build("prbench")


def record_of(row: dict[str, Any], told: ConversionReport | None = None) -> dict[str, Any]:
    found: dict[str, Any] = PRBENCH.record(row, told or ConversionReport(), "row 1")
    return found


def units(text: str, told: ConversionReport | None = None) -> list[Any]:
    return reading.units("prbench", reading.put("board.json", text), told)


def text_of(records: list[dict[str, Any]], told: ConversionReport | None = None) -> str:
    text: str = reading.texts("prbench", records, told)[""]
    return text


def written(records: list[dict[str, Any]], told: ConversionReport | None = None) -> Any:
    return json.loads(text_of(records, told))


def test_a_row_is_a_record_with_the_names_of_the_tools() -> None:
    record = record_of(ERM)
    assert record["arch"]["space"] == "zoo" and record["arch"]["name"] == "resnet18"
    assert record["arch"]["params"] == 11_173_962
    assert (record["dataset"], record["train"]) == ("cifar10", {"method": "erm"})
    values = {"acc": 0.9485, "pgd20.8": 0.0005, "cw20.8": 0.0, "aa.8": 0.0, "seconds_per_epoch": 3}
    values |= {"pr.uniform.0.03": 0.9764, "probacc.uniform.0.03.0.05": 0.9348, "ge.pgd20.8": 0.0}
    values |= {"pr.uniform.0.1": 0.6165, "ge.pr-all.uniform.0.03": 0.0624}
    assert len(record["metrics"]) == 18 and record["metrics"].items() >= values.items()
    pgd = next(entry for entry in record["evals"] if entry["metric"] == "pgd20.8")
    told = {"eps": 8 / 255, "source": "prbench", "published": "0.05", "unit": "percent", "rounding": 0.0001}
    assert pgd.items() >= told.items()


@pytest.mark.parametrize("noise", ["uniform", "gaussian", "laplace"])
def test_what_an_entry_says_of_noise_denominator_and_criterion_is_what_rb_pr_says(noise: str) -> None:
    key = "pr" if noise == "uniform" else f"pr_{noise}"
    gaps = {} if noise == "uniform" else {"ge": {noise[:3]: 6.24}}
    record = record_of({**ERM, key: {"0.08": 76.19}, **gaps})
    entries = {entry["metric"]: entry for entry in record["evals"]}
    made = NOISES.build(noise, **({"truncate": True} if noise == "uniform" else {}))
    estimator = Estimator(rho=(0.05,), denominator="both", passes="above")
    task = noisy(made, (0.03, 0.08), estimator, samples=100)
    of_rb_pr = {spec.name(): {"metric": spec.name(), **spec.settings()} for spec in task.specs}

    def told(metric: str) -> dict[str, Any]:
        published = {"tool", "source", "published", "unit", "rounding", "value"}
        return {name: value for name, value in entries[metric].items() if name not in published}

    def expected(of: str, **more: str) -> dict[str, Any]:
        # The text that defines the noise appears only in entries of rb-pr.
        return {name: value for name, value in of_rb_pr[of].items() if name != "definition"} | more

    pr, gap = f"pr.{noise}.0.08", f"pr-all.{noise}.0.03"
    assert told(pr) == expected(pr, split="test")
    assert told(f"ge.{gap}") == expected(gap, split="train-test", metric=f"ge.{gap}")
    if noise == "uniform":
        probacc = "probacc.uniform.0.03.0.05"
        assert told(probacc) == expected(probacc, split="test")


def test_the_site_has_every_column_of_the_paper_s_tables() -> None:
    shown = reproduce_prbench.tables([record_of(ERM)], "full")["table 4"].ours["ERM"]
    assert {*reproduce_prbench.COLUMNS} <= {*shown}


def test_a_resnet_of_larger_images_has_the_linear_layer_of_the_code() -> None:
    row = {**ERM, "dataset": "Tiny-ImageNet"}
    arch = record_of(row)["arch"]
    assert (arch["stem"], arch["pool"], arch["params"]) == ("cifar", "4x4", 11_578_632)
    assert written([record_of(row)]) == [row]
    assert "pool" not in record_of(ERM)["arch"]


def test_the_radii_of_mnist_are_renamed() -> None:
    record = record_of({**ERM, "dataset": "MNIST", "model": "SimpleCNN"})
    assert [name for name in record["metrics"] if name.startswith("pr.")] == [
        *("pr.uniform.0.3", "pr.uniform.0.35", "pr.uniform.0.4", "pr.uniform.0.45"),
    ]
    assert "probacc.uniform.0.3.0.05" in record["metrics"] and "ge.pr-all.uniform.0.35" in record["metrics"]
    assert record["metrics"]["pgd20.76.5"] == 0.0005
    assert written([record]) == [{**ERM, "dataset": "MNIST", "model": "SimpleCNN"}]
    honest = record_of({**ERM, "dataset": "MNIST", "pr": {"0.35": 90.0}})
    assert honest["metrics"]["pr.uniform.0.35"] == 0.9


@pytest.mark.parametrize(
    ("published", "train"),
    [
        ("KL-PGD", {"method": "kl-pgd"}),
        ("Corr_Uniform", {"method": "corruption", "config": {"noise": "uniform"}}),
        ("Mine", {"method": "Mine"}),
        ("trades", {"method": "trades"}),
    ],
)
def test_methods_have_the_names_of_rb_train(published: str, train: dict[str, Any]) -> None:
    record = record_of({**ERM, "method": published})
    assert record["train"] == train
    assert written([record])[0]["method"] == published


percents = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)
keyed = st.dictionaries(st.sampled_from(["0.03", "0.08", "0.10", "0.12", "0.5", "odd"]), percents, max_size=4)
rows = st.fixed_dictionaries(
    {
        "dataset": st.sampled_from(["CIFAR-10", "cifar10", "MNIST", "Tiny-ImageNet", "Photos of mine"]),
        "model": st.sampled_from(["ResNet-18", "resnet18", "WRN-28-10", "ConvNeXt"]),
        "method": st.sampled_from(["ERM", "Corr_Laplace", "Corr_laplace", "CVaR", "New"]),
        "acc": st.integers(200, 10_000).map(lambda hundredths: hundredths / 100),
    },
    optional={
        "ar": st.dictionaries(st.sampled_from(["PGD7", "PGD20", "CW20", "AA", "Odd"]), percents, min_size=1),
        "pr": keyed.filter(bool),
        "probacc": st.dictionaries(st.sampled_from(["0.10", "0.05", "0.01", "0.2"]), percents, min_size=1),
        "ge_ar": st.dictionaries(st.sampled_from(["PGD20", "AA"]), percents, min_size=1),
        "ge_pr": keyed.filter(bool),
        "time_s_per_ep": st.integers(0, 400) | st.floats(0, 400),
        "note": st.text(max_size=3) | st.dictionaries(st.text(max_size=2), percents, min_size=1),
    },
)


@given(rows)
def test_a_round_trip_loses_nothing(row: dict[str, Any]) -> None:
    assert written([record_of(copy.deepcopy(row))]) == [row]


@given(
    st.dictionaries(
        st.sampled_from(["acc", "pgd20.8", "pr.uniform.0.08", "ge.pgd20.8", "seconds_per_epoch"]),
        st.floats(0, 1),
        min_size=1,
    )
)
def test_measured_values_come_back_to_the_last_bit(metrics: dict[str, float]) -> None:
    metrics = {"acc": 0.5, **metrics}
    train = {"method": "pgd"}
    record = {"arch": {"name": "resnet18"}, "dataset": "cifar10", "train": train, "metrics": metrics}
    (unit,) = units(text_of([record]))
    assert PRBENCH.record(unit.content, ConversionReport(ours=True), "")["metrics"] == metrics


def test_nan_and_what_is_no_number_leave_the_rest_of_the_row() -> None:
    told = ConversionReport()
    text = json.dumps([{**ERM, "ar": {"PGD20": float("nan"), "AA": "46,34", "CW20": True}, "acc": 94.85}])
    (unit,) = units(text)
    record = record_of(unit.content, told)
    assert record["metrics"]["acc"] == 0.9485 and not {"pgd20.8", "aa.8", "cw20.8"} & record["metrics"].keys()
    entry = next(entry for entry in record["evals"] if entry["metric"] == "pgd20.8")
    assert entry["value"] is None and entry["reason"].startswith("published as NaN")
    assert len(list(told.errors())) == 3


def test_fractions_in_the_place_of_percents_are_noticed() -> None:
    row = {**ERM, "acc": 0.9485, "ar": {}, "pr": {"0.08": 0.7619}, "probacc": {}, "ge_pr": {}}
    with pytest.raises(RbError, match=r"they look like fractions, but prbench.*--scale fraction"):
        record_of(row)
    chosen = FORMATS.build("prbench", scale="fraction")
    record = chosen.record(row, ConversionReport(), "row 1")
    assert record["metrics"]["acc"] == 0.9485 and record["metrics"]["pr.uniform.0.08"] == 0.7619
    assert chosen.unit(record)["acc"] == Decimal("0.9485")


# The first row of prbench_table8.json.
THREE_NOISES: dict[str, Any] = {
    "dataset": "CIFAR-10",
    "model": "VGG-19",
    "method": "ERM",
    "acc": 93.12,
    "pr_uniform": {"0.03": 97.15, "0.08": 77.65, "0.1": 65.33, "0.12": 52.22},
    "pr_gaussian": {"0.03": 95.50, "0.08": 65.40, "0.1": 49.26, "0.12": 35.62},
    "pr_laplace": {"0.03": 95.38, "0.08": 64.66, "0.1": 48.32, "0.12": 34.81},
    "ge": {"uni": 6.34, "gau": 6.48, "lap": 6.52},
}


def test_the_file_of_three_noises_is_read_and_written_back() -> None:
    told = ConversionReport()
    record = record_of(THREE_NOISES, told)
    assert not list(told.remarks())
    assert record.get("prbench") == {"model": "VGG-19"}
    metrics = record["metrics"]
    assert metrics["pr.uniform.0.03"] == 0.9715 and metrics["pr.laplace.0.1"] == 0.4832
    assert metrics["ge.pr-all.gaussian.0.03"] == 0.0648
    (gap,) = [one for one in record["evals"] if one["metric"] == "ge.pr-all.uniform.0.03"]
    assert gap["denominator"] == "all" and gap["noise"] == "uniform"
    assert written([record]) == [THREE_NOISES]


def test_the_printed_radius_is_that_of_the_code_or_of_the_text() -> None:
    text = FORMATS.build("prbench", radius="text")
    record = text.record(ERM, ConversionReport(), "row 1")
    assert record["metrics"]["pr.uniform.0.0313725"] == 0.9764
    assert record["metrics"]["probacc.uniform.0.0313725.0.05"] == 0.9348
    assert record["metrics"]["pgd20.8"] == 0.0005  # the attacks are at 8/255 in both
    assert text.unit(record) == PRBENCH.unit(record_of(ERM))
