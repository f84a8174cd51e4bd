"""Writes a model card for the Hugging Face Hub, and a file with its evaluation results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import yaml

from rbtools.errors import RbError
from rbtools.formats.base import Document, Record, Unit
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.rows import measured
from rbtools.formats.written import WrittenOnly, model_name, numbers_of, text_of
from rbtools.records import metric_name, results
from rbtools.registry import param

# Maps our data sets to their ids on the Hub.
DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "svhn": "ufldl-stanford/svhn",
    "mnist": "ylecun/mnist",
    "tinyimagenet": "zh-plus/tiny-imagenet",
    "imagenet": "ILSVRC/imagenet-1k",
}
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PATH = re.compile(r"(?<![^\s=:,'])/[^=:,']*/([^/=:,']*)")  # an absolute path
_TASK = {"type": "image-classification", "name": "Image classification"}


@dataclass(frozen=True, kw_only=True)
class Hub(WrittenOnly):
    """A folder to upload as a model's page on the Hugging Face Hub: README.md and .eval_results/MODEL.yaml.

    README.md is a model card. The front matter of the card contains each metric under "model-index", with n,
    interval and settings in "args". The text of the card is a table. The other file contains the metrics in
    the form that the Hub's leaderboards of data sets read, in which each metric is a task of the data set.
    The Hub shows only metrics whose task is in the eval.yaml of the data set. The input is one record.
    Existing files are not replaced.
    """

    name: ClassVar[str] = "hub"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = False

    hub_dataset: str = param(
        "",
        "Id of the data set on the Hub, such as uoft-cs/cifar10. Not needed for published data sets.",
        metavar="ID",
    )
    hub_license: str = param("", "License of the model, such as mit.", metavar="NAME")

    def unit(self, record: Record) -> Record:
        metrics = numbers_of(record)
        evals = [
            _plain(results.last_entry(record, metric)) | {"metric": metric, "value": value}
            for metric, value in metrics.items()
        ]
        train = {
            key: value
            for key in ("method", "seed")
            if (value := results.at(record, ("train", key))) is not None
        }
        dataset = results.short_dataset(text_of(record, "dataset") or "")
        kept: Record = {"arch": {"name": text_of(record, "arch.name")}, "dataset": dataset}
        if isinstance(weights := record.get("checkpoint"), str):
            kept["checkpoint"] = weights
        if isinstance(classes := record.get("class_map"), list):
            kept["class_map"] = classes
        return {**kept, **({"train": train} if train else {}), "metrics": metrics, "evals": evals}

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        unit, *others = units
        if others:
            raise RbError(
                f"A page of the Hub describes one model, but there are {1 + len(others)} records. Choose one,"
                " for example with rb-rank --top 1."
            )
        card: Record = unit.content
        yield Document("README.md", self._card(card).encode())
        dataset = self.hub_dataset or DATASETS.get(card["dataset"], str(card["dataset"]))
        if not _ID.fullmatch(dataset):
            report.note(
                "the data set has no known id on the Hub, so .eval_results is not written; name it with"
                " --hub-dataset",
                unit.where,
            )
            return
        name = re.sub(r"[^\w.-]", "_", model_name(card))
        yield Document(f".eval_results/{name}.yaml", _yaml(_results(card, dataset)).encode())

    def _card(self, card: Record) -> str:
        name = card["dataset"] or "unknown"
        of_data = {"type": self.hub_dataset or DATASETS.get(name, name), "name": self.hub_dataset or name}
        rows = [
            {
                "task": _TASK,
                "dataset": of_data | {"split": str(entry.get("split", "test"))},
                "metrics": [
                    {
                        "type": "accuracy" if entry["metric"] == "acc" else entry["metric"],
                        "value": entry["value"],
                        "name": entry["metric"],
                        "args": {
                            key: value
                            for key, value in entry.items()
                            if key not in ("metric", "value", "split")
                        },
                    }
                ],
            }
            for entry in card["evals"]
        ]
        front = {
            **({"license": self.hub_license} if self.hub_license else {}),
            "pipeline_tag": "image-classification",
            "tags": ["adversarial-robustness"],
            "model-index": [{"name": model_name(card), "results": rows}],
        }
        text = f"{_table(card, of_data['name'])}{_identity(card)}"
        return f"---\n{_yaml(front)}---\n\n# {_cell(model_name(card))}\n\n{text}"


def _plain(entry: Record) -> Record:
    """The fields of an entry that are numbers, strings or lists of numbers; paths are reduced to the file
    name."""
    return {
        key: _PATH.sub(r"\1", value) if isinstance(value, str) else value
        for key, value in entry.items()
        if isinstance(value, int | float | str)
        or (isinstance(value, list) and all(map(results.is_number, value)))
    }


def _table(card: Record, dataset: str) -> str:
    lines = [f"Robustness on {_cell(dataset)}, as shares of its test images.\n"]
    lines += ["| metric | value | 95 % interval | images |", "|---|---:|---:|---:|"]
    for entry in card["evals"]:
        beside = measured(entry)
        interval = f" {beside['low']:.4g} to {beside['high']:.4g} " if "low" in beside else " "
        n = beside.get("n", "")
        lines.append(
            f"| {_cell(metric_name.heading(entry['metric']))} | {entry['value']:.4g} |{interval}| {n} |"
        )
    return "\n".join(lines) + "\n"


def _identity(card: Record) -> str:
    """The hashes of the weights and of the ordered class names, which identify the model."""
    maps = dict.fromkeys(str(entry["class_map"]) for entry in card["evals"] if "class_map" in entry)
    lines = [f"Weights: {_cell(card['checkpoint'])}\n"] if "checkpoint" in card else []
    lines += [f"Class map: {_cell(', '.join(maps))}\n"] if maps else []
    classes = [str(name) for name in card.get("class_map", ())]
    lines += [f"Classes in the model's order: {_cell(', '.join(classes))}\n"] if classes else []
    return "".join("\n" + line for line in lines)


def _cell(value: object) -> str:
    """Escape a string for Markdown, so that it contains no tables, HTML or links."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(str(value).split()))


def _results(card: Record, dataset: str) -> list[Record]:
    rows = []
    for entry in card["evals"]:
        beside = measured(entry)
        notes = [f"{beside['n']} images"] if "n" in beside else []
        notes += [f"95 % interval {beside['low']:.4g} to {beside['high']:.4g}"] if "low" in beside else []
        result: Record = {"dataset": {"id": dataset, "task_id": entry["metric"]}, "value": entry["value"]}
        rows.append(result | ({"notes": ", ".join(notes)} if notes else {}))
    return rows


def _yaml(value: object) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    return text
