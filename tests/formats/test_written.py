"""Formats that are only written: a page of the Hub, runs of MLflow, a claim for RobustBench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from rbtools.errors import RbError
from rbtools.formats import FORMATS, Published
from rbtools.formats.conversion_report import ConversionReport
from tests import runner
from tests.formats import reading
from tests.runner import Record

ACC = {"metric": "acc", "value": 0.85, "n": 100, "ci95": [0.77, 0.91], "split": "test"}
AA = {"metric": "aa.8", "value": 0.5, "n": 100, "ci95": [0.4, 0.6], "attack": "aa", "norm": "linf"}
AA |= {"eps": 8 / 255, "version": "standard", "answers": {"right": "AA=="}}


def model(name: str = "resnet18", **more: Any) -> Record:
    return runner.model(
        name, ACC, AA, **{"dataset": "cifar10", "train": {"method": "pgd", "seed": 1}, **more}
    )


def convert(name: str, words: str, *given: Record) -> Any:
    return runner.run("convert", f"{name} {words}", given)


def test_a_card_is_what_the_hubs_own_client_reads() -> None:
    result = convert("hub", "--hub-license mit --write page", model())
    assert result.exit_code == 0, result.stderr
    card = ModelCard.load("page/README.md")
    assert card.data.license == "mit" and card.data.model_name == "resnet18-pgd-s1"
    acc, robust = card.data.eval_results
    assert (acc.dataset_type, acc.metric_type, acc.metric_value) == ("uoft-cs/cifar10", "accuracy", 0.85)
    assert (robust.metric_name, robust.metric_value, robust.dataset_split) == ("aa.8", 0.5, "test")
    assert robust.metric_args == {
        "n": 100, "ci95": [0.4, 0.6], "attack": "aa", "norm": "linf", "eps": 8 / 255, "version": "standard"
    }  # fmt: skip
    assert "| AutoAttack, ε = 8/255 | 0.5 | 0.4 to 0.6 | 100 |" in card.text
    entries = parse_eval_result_entries(
        yaml.safe_load(Path("page/.eval_results/resnet18-pgd-s1.yaml").read_text())
    )
    assert [(one.dataset_id, one.task_id, one.value) for one in entries] == [
        ("uoft-cs/cifar10", "acc", 0.85), ("uoft-cs/cifar10", "aa.8", 0.5)
    ]  # fmt: skip
    assert entries[1].notes == "100 images, 95 % interval 0.4 to 0.6"
    # What is not on the page is named.
    assert "hub has no place for these fields (and how often): arch.space (1)." in result.stderr


def test_a_card_names_data_and_weights_and_no_folder() -> None:
    own = {"class_map": "0123abcd", "indices": "/data/me/my lists/some.txt", "defend": "python:/data/me/d:F"}
    record = model(
        dataset="imagefolder:/data/me/photos", checkpoint="sha256:ab12", checkpoint_file="/data/me/m"
    )
    record["class_map"] = ["dog", "a|cat"]
    record["evals"][0] = {**ACC, **own}
    assert convert("hub", "--write page", record).exit_code == 0
    assert convert("hub", "--hub-dataset acme/shapes --write named", record).exit_code == 0
    for folder, name in (("page", "photos"), ("named", "acme/shapes")):
        text = Path(folder, "README.md").read_text()
        assert "/data" not in text and f"Robustness on {name}, " in text
        assert "Weights: sha256:ab12\n\nClass map: 0123abcd\n" in text
        assert "\nClasses in the model's order: dog, a\\|cat\n" in text
    (acc, _) = ModelCard.load("named/README.md").data.eval_results
    assert (acc.dataset_type, acc.dataset_name) == ("acme/shapes", "acme/shapes")
    assert acc.metric_args["indices"] == "some.txt" and acc.metric_args["defend"] == "python:d:F"


def test_names_are_texts_in_yaml_and_markdown_whatever_they_are() -> None:
    name = "a: [b]\n---\n| <script> `x` {y}"
    assert convert("hub", "--write page", model(name)).exit_code == 0
    card = ModelCard.load("page/README.md")
    assert card.data.model_name == f"{name}-pgd-s1"
    assert "<script>" not in card.text.replace(r"\<script", "") and "\n| \\<" not in card.text
    assert len(list(Path("page/.eval_results").iterdir())) == 1


def test_a_page_is_of_one_model_and_replaces_nothing() -> None:
    result = convert("hub", "--write page", model(), model("vgg16"))
    assert result.exit_code == 2 and "rb-rank --top 1" in result.stderr and not Path("page").exists()
    Path("page").mkdir()
    Path("page/README.md").write_text("mine")
    result = convert("hub", "--write page", model())
    assert result.exit_code == 2 and "exists already" in result.stderr
    assert Path("page/README.md").read_text() == "mine"


@pytest.mark.parametrize("name", ["hub", "mlflow"])
def test_what_is_only_written_says_so_and_needs_metrics(name: str) -> None:
    with pytest.raises(RbError, match="can be written, but not read"):
        FORMATS.build(name).units(Published(None, "-"), ConversionReport())
    result = convert(name, "--write out", {"schema": 1, "arch": {"name": "x"}, "dataset": "d"})
    assert result.exit_code == 1 and result.stderr.count("record") >= 1 and not Path("out").exists()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return lambda: MlflowClient(tracking_uri=Path("mlruns").absolute().as_uri())


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflows_client_reads_the_runs_back(client: Any, tmp_path: Path) -> None:
    given = [model(), model("vgg16", checkpoint="sha256:ab")]
    for some in (given, [model("vit-s")]):  # one more run
        result = convert("mlflow", "--experiment robust --write mlruns", *some)
        assert result.exit_code == 0 and result.stderr == "", result.stderr
    kept = client()
    experiment = kept.get_experiment_by_name("robust").experiment_id
    runs = {run.info.run_name: run for run in kept.search_runs([experiment])}
    assert set(runs) == {"resnet18-pgd-s1", "vgg16-pgd-s1", "vit-s-pgd-s1"}
    run = runs["vgg16-pgd-s1"]
    assert run.info.status == "FINISHED" and run.data.tags["checkpoint"] == "sha256:ab"
    assert run.data.metrics == {
        "acc": 0.85, "acc.n": 100, "acc.low": 0.77, "acc.high": 0.91,
        "aa.8": 0.5, "aa.8.n": 100, "aa.8.low": 0.4, "aa.8.high": 0.6,
    }  # fmt: skip
    assert run.data.params["train.seed"] == "1" and run.data.params["arch.name"] == "vgg16"
    record = kept.download_artifacts(run.info.run_id, "record.json", str(tmp_path))
    assert json.loads(Path(record).read_text())["metrics"] == given[1]["metrics"]


@pytest.mark.parametrize("name", ["csv", "parquet", "csv --scale percent"])
def test_n_and_intervals_are_columns_beside_a_metric_and_come_back(name: str) -> None:
    odd = {"metric": "acc.n", "value": 0.25}  # a metric that is called like such a column
    given = [
        runner.model("x", ACC, AA, odd, dataset="cifar10"),
        runner.model("y", {"metric": "acc", "value": 0.5}),
    ]
    result = convert(name, "--write table", *given)
    assert result.exit_code == 0, result.stderr
    assert "ci95" not in result.stderr
    first, second = runner.records(runner.run("convert", f"{name} table"))
    assert first["metrics"] == given[0]["metrics"] and second["metrics"] == given[1]["metrics"]
    for wanted in (ACC, AA):
        entry = runner.entry(first, str(wanted["metric"]))
        assert (entry["n"], entry["ci95"]) == (wanted["n"], wanted["ci95"])
    assert "n" not in runner.entry(second, "acc") and first.get("csv", {}) == {}


def test_a_parquet_table_of_others_is_mapped_as_csv_is() -> None:
    table = pandas.DataFrame({"Model": ["a", "b"], "Clean": [50.0, None], "Seed": pandas.array([1, None])})
    table.to_parquet("t.parquet")
    first, second = reading.read(
        "parquet", "t.parquet", map="Model=arch.name,Clean=acc,Seed=train.seed", percent="Clean"
    )
    assert (first["metrics"], first["train"]) == ({"acc": 0.5}, {"seed": 1})
    assert second["metrics"] == {} and "train" not in second


def test_what_is_no_parquet_is_an_error_of_one_line() -> None:
    reading.put("table", b"PAR1 and more")
    result = runner.run("convert", "parquet table")
    assert result.exit_code == 1 and "not a Parquet file" in result.stderr and result.stderr.count("\n") == 1
