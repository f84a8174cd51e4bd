"""RobustBench's model_info: small files as records and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.formats import FORMATS, Bad, ConversionReport
from rbtools.papers.formats import robustbench
from rbtools.papers.formats.robustbench import Info
from tests.formats import reading
from tests.runner import model, records, run

# model_info/cifar10/L2/Augustin2020Adversarial_34_10_extra.json, with made-up authors.
INFO: dict[str, Any] = {
    "link": "https://example.org",
    "name": "Some Paper",
    "authors": "A, B",
    "additional_data": False,
    "number_forward_passes": 1,
    "dataset": "cifar10",
    "venue": "ECCV 2020",
    "architecture": "WideResNet-34-10",
    "eps": "0.5",
    "clean_acc": "93.96",
    "reported": "78.79",
    "autoattack_acc": "78.79",
    "unreliable": False,
}
ROBUSTBENCH = FORMATS.build("robustbench")


def read(told: ConversionReport | None = None, folder: str = "model_info") -> list[dict[str, Any]]:
    return reading.read("robustbench", folder, told)


def written(records: list[dict[str, Any]], told: ConversionReport | None = None) -> dict[str, Any]:
    return reading.values("robustbench", records, told)


def test_a_file_is_a_record_of_its_path_and_its_texts() -> None:
    reading.put("model_info/cifar10/L2/Some2020Paper.json", INFO)
    (record,) = read()
    assert record["arch"]["space"] == "zoo" and record["arch"]["name"] == "wrn-34-10"
    assert (record["dataset"], record["train"]) == ("cifar10", {"method": "Some2020Paper"})
    assert record["metrics"] == {"acc": 0.9396, "aa.l2.0.5": 0.7879, "reported.l2.0.5": 0.7879}
    assert record["robustbench"]["venue"] == "ECCV 2020" and record["robustbench"]["threat"] == "L2"
    told = {"norm": "l2", "eps": 0.5, "published": "78.79", "unit": "percent", "rounding": 0.0001}
    assert record["evals"][1].items() >= {**told, "metric": "aa.l2.0.5", "value": 0.7879}.items()


@pytest.mark.parametrize(
    ("eps", "metric", "distance", "notes"),
    [("8/255", "aa.8", 8 / 255, 0), ("4/255", "aa.4", 4 / 255, 0), ("0.031", "aa.8", 0.031, 1)],
)
def test_distances_are_texts(eps: str, metric: str, distance: float, notes: int) -> None:
    reading.put("model_info/cifar10/Linf/A.json", {**INFO, "eps": eps, "external": "70.1"})
    told = ConversionReport()
    (record,) = read(told)
    assert record["metrics"][metric] == 0.7879
    assert record["metrics"][f"external.{metric[3:]}"] == 0.701
    entry = next(one for one in record["evals"] if one["metric"] == metric)
    assert entry["eps"] == distance and len(list(told.remarks())) == notes
    assert written([record])["cifar10/Linf/A.json"]["eps"] == eps


def test_numbers_are_in_1_255_in_linf_alone() -> None:
    assert (robustbench.distance(8, "linf"), robustbench.distance(2, "l2")) == (8 / 255, 2)


def test_corruptions_have_no_distance() -> None:
    info = {key: INFO[key] for key in ("dataset", "clean_acc", "architecture")}
    info |= {"eps": None, "reported": "", "corruptions_acc": "62.91", "corruptions_mce": "147.61"}
    reading.put("model_info/imagenet/corruptions/A.json", info)
    (record,) = read()
    assert record["metrics"] == {"acc": 0.9396, "corrupt.mean": 0.6291, "corrupt.mce": 1.4761}
    assert record["dataset"] == "imagenet" and record["arch"]["space"] == "robustbench"
    assert written([record]) == {"imagenet/corruptions/A.json": {**info, "dataset": "cifar10"}}


def test_the_folder_says_the_data_set_where_the_file_says_another() -> None:
    reading.put("model_info/cifar100/L2/A.json", INFO)
    told = ConversionReport()
    (record,) = read(told)
    assert record["dataset"] == "cifar100" and "differs from its folder" in next(told.remarks())
    assert written([record]) == {"cifar100/L2/A.json": INFO}


def test_one_file_by_itself_tells_its_threat_model() -> None:
    reading.put("alone.json", {**INFO, "eps": "8/255"})
    assert "aa.8" in read(folder="alone.json")[0]["metrics"]
    reading.put("alone.json", INFO)
    assert "aa.l2.0.5" in read(folder="alone.json")[0]["metrics"]


texts = st.text(st.characters(codec="utf-8"), max_size=4)
percents = st.integers(0, 10_000).map(lambda hundredths: f"{hundredths / 100:.2f}")
infos = st.fixed_dictionaries(
    {
        "dataset": st.sampled_from(["cifar10", "cifar100", "imagenet"]),
        "eps": st.sampled_from(["8/255", "4/255", "0.031", "8.0/255"]),
        "clean_acc": percents,
    },
    optional={
        "architecture": st.sampled_from(
            ["WideResNet-34-10", "wrn-34-10", "ResNet-18", "PreActResNet-18", "XCiT-S12", "ResNet-50 + x"]
        ),
        "reported": percents | st.sampled_from(["", "58", "0.0"]),
        "autoattack_acc": percents,
        "external": percents,
        "footnote": texts | st.none(),
        "unreliable": st.booleans(),
        "link": texts,
    },
)


@given(infos)
def test_a_round_trip_loses_nothing(info: dict[str, Any]) -> None:
    path = f"{info['dataset']}/Linf/Model.json"
    unit = Info(info["dataset"], "Linf", "Model", info)
    record = ROBUSTBENCH.record(unit, ConversionReport(), "here")
    assert written([record]) == {path: info}


def test_measured_results_become_files() -> None:
    metrics = {"acc": 0.875, "aa.4": 0.5, "aa.8": 0.25}
    record = model("preactresnet18", dataset="cifar10", train={"method": "mine"}, metrics=metrics)
    assert written([record]) == {
        "cifar10/Linf/mine.json": {
            "dataset": "cifar10",
            "architecture": "PreActResNet-18",
            "eps": "8/255",
            "clean_acc": "87.5",
            "autoattack_acc": "25",
        }
    }
    chosen = FORMATS.build("robustbench", threat="corruptions")
    both = {**record, "metrics": {"aa.8": 0.5, "corrupt.mean": 0.75}}
    assert chosen.unit(both).fields["corruptions_acc"] == "75" and chosen.unit(both).threat == "corruptions"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "It is not complete JSON: Expecting property name"),
        ("name,acc\na,1", "It is not JSON, which begins with { or [; a table is read by rb-convert csv."),
        ('{"rows": 1}', "It has neither autoattack_acc nor corruptions_acc (it has: rows)."),
    ],
)
def test_a_file_that_is_none_says_why_and_the_others_are_read(text: str, message: str) -> None:
    reading.put("model_info/cifar10/Bad.json", text)
    reading.put("model_info/cifar10/L2/Good.json", INFO)
    units = reading.units("robustbench", "model_info")
    (bad,) = [unit for unit in units if isinstance(unit, Bad)]
    assert bad.problem.startswith(message) and len(units) == 2


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ""])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    record = model("a", dataset="cifar10", train={"method": name}, metrics={"aa.8": 0.5})
    with pytest.raises(RbError, match="cannot be the name of a file"):
        written([record])


def test_published_values_come_with_the_package() -> None:
    rows = records(run("convert", ["robustbench", "--published", "cifar10/L2"]))
    (one,) = [row for row in rows if row["arch"]["name"] == "Augustin2020Adversarial_34_10_extra"]
    assert one["metrics"] == {"acc": 0.9396, "aa.l2.0.5": 0.7879} and one["dataset"] == "cifar10"
    assert all(row["robustbench"]["threat"] == "L2" for row in rows) and len(rows) > 10
