"""NAS-RobBench-201: one JSON file with the results of adversarially trained NAS-Bench-201 networks.

The layout follows the reader in TT2408/nasrobbench201, {data set: {architecture id: {metric: {seed:
number}}}}. The metrics have the names of the authors' training code: val_acc, and val_ATTACK_EPS_acc with eps
in 1/255. The key "threeseed" contains means over the seeds, according to code that other authors published
for this file. Their code calls ImageNet16-120 "imagenet"; any spelling of a name in the file is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.formats import numbers
from rbtools.formats.base import Bad, Document, Published, Record, Unit, as_text, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import dataset_name
from rbtools.formats.rows import MetricValues, PublishedRow
from rbtools.papers.formats.published_json import cell, class_of, dumps, parsed
from rbtools.records import metric_name
from rbtools.registry import param

MEAN = "threeseed"
# The file calls the test images val. PGD has 20 steps of 2.5 eps / 20.
ATTACKS = {"fgsm": "fgsm", "pgd": "pgd20", "square": "square", "autoattack": "aa", "apgd": "apgd-ce"}
STEPS = {"pgd": 20, "apgd": 20}
_METRIC = re.compile(r"(val|test)_(?:([a-z]+)_([\d.]+)_)?acc")
TRAIN = {"method": "pgd", "preset": "nasrobbench201"}


class RobBenchResult(NamedTuple):
    """The results of one architecture with one seed. The seed "threeseed" is the mean over three seeds.
    `lone` contains values that are published once, not for each seed; they are stored with the first seed."""

    dataset: str
    arch: str
    seed: str | None
    values: dict[str, Any]
    means: dict[str, Any]
    lone: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NASRobBench201:
    """NAS-RobBench-201_all.json: clean and robust accuracies of adversarially trained networks, for each
    seed.

    Each record contains the results for a data set, an architecture and a seed. The mean over three seeds
    ("threeseed") is in the entry of each value or, with --seeds mean, in a separate record. The published
    metric val_pgd_3.0_acc becomes pgd20.3, because this PGD has 20 steps. The published val images are the
    test images. If an architecture is not the representative of its isomorphism class, arch.class contains
    the representative, and written files use the representative's id.
    """

    name: ClassVar[str] = "nasrobbench201"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    seeds: str = param(
        "all", "Which seeds to read: all, mean (the mean over three seeds), or a single seed such as 0."
    )

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        if self.seeds not in ("all", "mean") and not self.seeds.isdecimal():
            raise RbError(f"--seeds is '{self.seeds}'. Expected all, mean, or a single seed such as 0.")
        whole = parsed(source.read())
        if not isinstance(whole, dict) or not all(isinstance(archs, dict) for archs in whole.values()):
            raise RbError(
                f"{source.name} is not the file of NAS-RobBench-201. Expected an object of data sets, each an"
                " object of architecture ids."
            )
        for dataset, archs in whole.items():
            for index, values in archs.items():
                where = f"{source.name}: {dataset} {index}"
                if not isinstance(values, dict):
                    yield Bad(where, f"It is {numbers.kind(values)}. Expected an object.", as_text(values))
                    continue
                yield from (Unit(where, result) for result in self._by_seed(dataset, index, values))

    def _by_seed(self, dataset: str, index: str, values: Record) -> Iterator[RobBenchResult]:
        seeds: dict[str | None, dict[str, Any]] = {}
        lone: dict[str, Any] = {}
        for name, by in values.items():
            if isinstance(by, dict):
                for seed, raw in by.items():
                    seeds.setdefault(seed, {})[name] = raw
            elif _protocol(name) is None:
                lone[name] = by
            else:
                seeds.setdefault(None, {})[name] = by
        means = seeds.pop(MEAN, {})
        named: list[str | None] = [seed for seed in seeds if self.seeds in ("all", seed)]
        if self.seeds == "mean" or (self.seeds == "all" and not named):
            seeds[MEAN], named, means = means, [MEAN], {}
        for number, seed in enumerate(named):
            beside = means if seed is not None else {}
            yield RobBenchResult(dataset, index, seed, seeds[seed], beside, {} if number else lone)

    def record(self, unit: RobBenchResult, report: ConversionReport, where: str) -> Record:
        ours = dataset_name("imagenet16-120" if unit.dataset == "imagenet" else unit.dataset)
        arch = cell(unit.arch, ours)
        row = PublishedRow("nasrobbench201", report, where, percent=False)
        over: Record = {} if unit.dataset == ours else {"dataset": unit.dataset}
        beside_it: set[str] = set()
        for name, raw in unit.values.items():
            protocol = _protocol(name)
            if protocol is None:
                over.setdefault("values", {})[name] = raw
                continue
            beside = unit.means.get(name)
            if beside is not None:
                protocol[MEAN] = numbers.plain(beside)
                beside_it.add(name)
            row.add(raw=raw, **protocol)
        lone = {name: raw for name, raw in unit.means.items() if name not in beside_it}
        if lone:
            over["means"] = lone
        if unit.lone:
            over["lone"] = unit.lone
        train: Record = dict(TRAIN)
        if unit.seed is not None and unit.seed.isdecimal():
            train["seed"] = int(unit.seed)
        elif unit.seed is not None:
            train["seeds" if unit.seed == MEAN else "seed"] = 3 if unit.seed == MEAN else unit.seed
        return row.record(arch, dataset=ours, train=train, nasrobbench201=numbers.plain(over))

    def unit(self, record: Record) -> Any:
        over, train = own_part(record.get("nasrobbench201")), record.get("train") or {}
        index = class_of(record["arch"])
        if index is None or not isinstance(record.get("dataset"), str):
            raise RbError(
                "NAS-RobBench-201 only has results of NAS-Bench-201 on data sets. Expected a record with"
                " arch.space nasbench201 and dataset."
            )
        values = MetricValues(record, percent=False)
        published, means = own_part(over.get("values")), own_part(over.get("means"))
        for metric in values.metrics:
            entry = values.entries.get(metric, {})
            name = entry.get("key") or _published(metric)
            if name is None or (_protocol(name) or {}).get("metric") != metric:
                continue
            published[name] = values.value(metric)
            beside = entry.get(MEAN)
            if beside is not None:
                means[name] = beside
        seed = MEAN if "seeds" in train else None if train.get("seed") is None else str(train["seed"])
        return RobBenchResult(
            str(over.get("dataset", record["dataset"])),
            str(index),
            seed,
            published,
            means,
            own_part(over.get("lone")),
        )

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        whole: dict[str, dict[str, dict[str, Any]]] = {}
        for unit in units:
            result: RobBenchResult = unit.content
            into = whole.setdefault(result.dataset, {}).setdefault(result.arch, {})
            into.update(result.lone)
            for name, raw in result.values.items():
                if result.seed is None:
                    into[name] = raw
                    continue
                by = into.setdefault(name, {})
                if not isinstance(by, dict):
                    by = into[name] = {}
                if result.seed in by:
                    report.note(
                        "two records have the same place in the file; the last one is written", unit.where
                    )
                by[result.seed] = raw
            for name, raw in result.means.items():
                by = into.setdefault(name, {})
                if isinstance(by, dict):
                    by.setdefault(MEAN, raw)
        ordered = {
            dataset: dict(sorted(archs.items(), key=lambda item: int(item[0])))
            for dataset, archs in whole.items()
        }
        yield Document("", dumps(ordered) + b"\n")


def _protocol(name: str) -> Record | None:
    """The metric for a published name, and the metric's protocol; None for an unknown name."""
    match = _METRIC.fullmatch(name)
    if match is None or match[1] != "val" or (match[2] and match[2] not in ATTACKS):
        return None
    if not match[2]:
        return {"metric": "acc", "split": "test"}
    eps = float(match[3]) / 255
    protocol: Record = {
        "metric": metric_name.attack_name(ATTACKS[match[2]], metric_name.eps_name(eps)),
        "attack": ATTACKS[match[2]].rstrip("0123456789"),
        "norm": "linf",
        "eps": eps,
    }
    if match[2] in STEPS:
        protocol["steps"] = STEPS[match[2]]
    protocol["split"] = "test"
    return protocol if _published(protocol["metric"]) == name else {**protocol, "key": name}


def _published(metric: str) -> str | None:
    if metric == "acc":
        return "val_acc"
    parts = metric_name.parse(metric)
    for attack, stem in ATTACKS.items():
        if parts.attacked and parts.build() == f"{stem}.{parts.number}":
            return f"val_{attack}_{float(parts.number)}_acc"
    return None
