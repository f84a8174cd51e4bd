"""The robustness dataset of Jung, Lukasik and Keuper (ICLR 2023): a folder of JSON files.

The layout is from the reader in steffen-jung/robustness-dataset. `meta.json` contains two objects. `ids` maps
each published index to `nb201-string` and `isomorph` (the representative's index), and `epsilons` maps each
attack to its distances in 1/255. `DATA/{key}_{measure}.json` contains {DATA: {key: {measure: {id: value}}}}.
DATA is cifar10, cifar100 or ImageNet16-120. The measure is accuracy, confidence or cm. The key is "clean", an
attack or a corruption. An accuracy is a number if the key is "clean"; otherwise, it is a list with one number
for each distance or severity.

The reader does not show the contents of confidence and cm. We assume that confidence and cm have the same
structure as accuracies: one value for clean, and otherwise a list. A confidence may also be an object of such
lists. The values are kept unchanged: "label", "argmax" and "prediction" of a confidence, as in the paper, and
the matrix of a cm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.formats import numbers
from rbtools.formats.base import Bad, Broken, Document, Published, Record, Unit, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import dataset_name
from rbtools.formats.rows import MetricValues, PublishedRow
from rbtools.papers.formats.published_json import an_object, cell, class_of, dumps, file_name, parsed
from rbtools.plain_files import LARGEST_LIST, read_plain
from rbtools.records import metric_name
from rbtools.spaces import nasbench201
from rbtools.units import SEVERITIES

META = "meta.json"
MEASURES = ("accuracy", "confidence", "cm")
DETAILS = {"confidence": "confidence", "cm": "confusion"}
CLEAN = "clean"
# foolbox' PGD has 40 steps; APGD-CE and Square are AutoAttack's.
ATTACKS = {"fgsm@Linf": "fgsm", "pgd@Linf": "pgd40", "aa_apgd-ce@Linf": "apgd-ce", "aa_square@Linf": "square"}
LINF = "@Linf"
DATA = {"imagenet16-120": "ImageNet16-120"}  # other data sets have the same names in records
TRAIN = {"method": "erm", "preset": "nasbench201"}


class JungResult(NamedTuple):
    """The results of one architecture on one data set, by key and measure, and the attacks' distances."""

    data: str
    arch: str
    values: dict[str, dict[str, Any]]
    epsilons: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Jung2023:
    """The robustness dataset: a folder with meta.json and {key}_{measure}.json files for each data set.

    Each record contains the accuracies of all existing keys for a data set and an architecture. Confidence
    and confusion matrix (cm) are in the "detail" of the metric's entry. Missing parts are reported, and all
    other parts are read. If an architecture is not the representative of its isomorphism class, arch.class
    contains the representative, and written files use the representative's id.
    """

    name: ClassVar[str] = "jung2023"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = False

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        if not source.path or not source.folder:
            raise RbError(f"{source.name} is a file. Expected the dataset's folder, which contains {META}.")
        epsilons = _epsilons(source.path, report)
        folders = [path for path in sorted(source.path.iterdir()) if path.is_dir() and _files(path)]
        if not folders:
            raise RbError(
                f"{source.name} has no results. Expected files such as cifar10/clean_accuracy.json next to"
                f" {META}."
            )
        for folder in folders:
            yield from _merged(folder, _files(folder), epsilons, report)

    def record(self, unit: JungResult, report: ConversionReport, where: str) -> Record:
        ours = dataset_name(unit.data)
        arch = cell(unit.arch, ours)
        row = PublishedRow("jung2023", report, where, percent=False)
        over: Record = {}
        for key, values in unit.values.items():
            try:
                places = _places(key, unit.epsilons)
                for protocol, measures in zip(places, _taken_apart(key, values, len(places)), strict=True):
                    row.add(raw=measures.get("accuracy"), **protocol)
                    _add_detail(row, protocol, measures)
            except RbError as wrong:
                report.error(f"{key}: {str(wrong).rstrip('.')}; it is left out", where)
        if unit.data != DATA.get(ours, ours):
            over["data"] = unit.data
        return row.record(arch, dataset=ours, train=dict(TRAIN), jung2023=over)

    def unit(self, record: Record) -> Any:
        index, dataset = class_of(record["arch"]), record.get("dataset")
        if index is None or not isinstance(dataset, str):
            raise RbError(
                "The robustness dataset only has results of NAS-Bench-201 on data sets. Expected a record"
                " with arch.space nasbench201 and dataset."
            )
        values = MetricValues(record, percent=False)
        levels_of: dict[str, dict[str, Any]] = {}
        epsilons: dict[str, list[float]] = {}
        for metric in dict.fromkeys([*values.metrics, *values.entries]):
            place = _place(metric)
            if place is None:
                continue
            key, level = place
            detail = own_part(values.entries.get(metric, {}).get("detail"))
            measured = {"accuracy": values.value(metric)}
            measured |= {measure: detail.get(name) for measure, name in DETAILS.items()}
            for measure, value in measured.items():
                if value is not None:
                    levels_of.setdefault(key, {}).setdefault(measure, {})[level] = value
            if key in levels_of and level is not None and (key in ATTACKS or key.endswith(LINF)):
                epsilons.setdefault(key, []).append(level)
        epsilons = {key: sorted(set(levels)) for key, levels in epsilons.items()}
        data = str(own_part(record.get("jung2023")).get("data", DATA.get(dataset, dataset)))
        return JungResult(file_name(data), str(index), _listed(levels_of, epsilons), epsilons)

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        results: dict[tuple[str, str], JungResult] = {}
        for unit in units:
            result: JungResult = unit.content
            if (result.data, result.arch) in results:
                report.note("two records have the same architecture; the last one is written", unit.where)
            results[result.data, result.arch] = result
        epsilons: dict[str, list[float]] = {}
        for result in results.values():
            for key, levels in result.epsilons.items():
                epsilons[key] = sorted({*epsilons.get(key, ()), *levels})
        yield Document(META, dumps({"ids": _ids(), "epsilons": epsilons}))
        files: dict[tuple[str, str, str], dict[str, Any]] = {}
        for result in sorted(results.values(), key=lambda result: int(result.arch)):
            for key, measures in result.values.items():
                every = epsilons.get(key, [])
                own = result.epsilons.get(key, every)
                for measure, value in measures.items():
                    if own != every:
                        by = dict(zip(own, value, strict=True))
                        value = [by.get(level) for level in every]
                    files.setdefault((result.data, key, measure), {})[result.arch] = value
        for (data, key, measure), values in files.items():
            path = f"{data}/{file_name(key)}_{measure}.json"
            yield Document(path, dumps({data: {key: {measure: values}}}) + b"\n")


def _files(folder: Path) -> list[tuple[Path, str, str]]:  # path, key and measure
    files = []
    for path in sorted(folder.glob("*.json")):
        key, _, measure = path.stem.rpartition("_")
        if key and measure in MEASURES:
            files.append((path, key, measure))
    return files


def _epsilons(folder: Path, report: ConversionReport) -> dict[str, list[float]]:
    """The distances of each attack in meta.json. Its numbering of architectures is compared with ours."""
    path = folder / META
    try:
        text = read_plain(path, LARGEST_LIST)
    except OSError as error:
        raise RbError(
            f"Cannot read {path}: {error.strerror}. This file contains the distances of the attacks. Unpack"
            " the dataset's meta.zip there."
        ) from None
    try:
        meta = an_object(parsed(text), "It")
        given = an_object(meta.get("epsilons"), 'Its "epsilons"')
        epsilons = {}
        for key, levels in given.items():
            if not isinstance(levels, list):
                raise RbError(f'Its "epsilons" contains {numbers.kind(levels)} for {key}. Expected a list.')
            epsilons[key] = [_level(key, level) for level in levels]
    except RbError as wrong:
        raise RbError(f"{path}: {wrong}") from None
    ours, ids = _ids(), meta.get("ids")
    for index, row in ids.items() if isinstance(ids, dict) else ():
        if ours.get(index) != row:
            report.error(
                f"{META} gives an architecture a different number than NAS-Bench-201", f"{path}: {index}"
            )
    return epsilons


def _level(key: str, raw: object) -> float:
    try:
        distance = numbers.number(raw)
    except numbers.NoNumber as wrong:
        raise RbError(f'Its "epsilons" of {key}: {wrong}.') from None
    if distance is None:
        raise RbError(f'Its "epsilons" of {key} has null. Expected distances in 1/255.')
    return float(distance.value)


def _merged(
    folder: Path,
    files: list[tuple[Path, str, str]],
    epsilons: dict[str, list[float]],
    report: ConversionReport,
) -> Iterator[Unit | Bad]:
    """One unit for each architecture of a data set, from all files that can be read."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    counts: Counter[str] = Counter()
    for path, key, measure in files:
        wanted = (folder.name, key, measure)
        try:
            value = parsed(read_plain(path), exact=measure == "accuracy")
        except Broken as wrong:
            report.error(f"it {wrong}; it is left out", str(path))
            continue
        for name in wanted:
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            report.error(f"it has no object {'.'.join(wanted)}; it is left out", str(path))
            continue
        counts.update(value.keys())
        for index, one in value.items():
            results.setdefault(index, {}).setdefault(key, {})[measure] = one
    for index, values in results.items():
        if counts[index] < len(files):
            report.note("an architecture is missing in some files", f"{folder}: {index}")
        yield Unit(f"{folder}: {index}", JungResult(folder.name, index, values, epsilons))


def _places(key: str, epsilons: dict[str, list[float]]) -> list[Record]:
    """The metrics that belong to a key, in the order of the key's list, with their protocols."""
    if key == CLEAN:
        return [{"metric": "acc", "split": "test"}]
    if key in epsilons:
        return [_attacked(key, level) for level in epsilons[key]]
    if key.endswith(LINF):
        raise RbError(f"{META} contains no distances for it")
    return [
        {"metric": metric_name.corrupt_name(key, n), "corruption": key, "severity": n, "split": "test"}
        for n in SEVERITIES
    ]


def _attacked(key: str, level: float) -> Record:
    stem = ATTACKS.get(key, key.removesuffix(LINF))
    protocol: Record = {
        "metric": metric_name.attack_name(stem, metric_name.eps_name(level / 255)),
        "attack": stem.rstrip("0123456789"),
    }
    steps = stem.removeprefix("pgd")
    if key == "pgd@Linf":
        protocol["steps"] = int(steps)
    return {**protocol, "norm": "linf", "eps": level / 255, "split": "test"}


def _taken_apart(key: str, values: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The measures of a key, as one object for each eps or severity. Raises RbError if a list does not have
    one value for each eps or severity."""
    if key == CLEAN:
        return [values]
    measures: list[dict[str, Any]] = [{} for _ in range(count)]
    for measure, value in values.items():
        parts = value
        if isinstance(value, dict):  # maps schemes to lists over distances
            if not all(isinstance(part, list) and len(part) == count for part in value.values()):
                raise RbError(f"its {measure} is an object whose values are not lists of {count}")
            parts = [{scheme: part[n] for scheme, part in value.items()} for n in range(count)]
        if not isinstance(parts, list) or len(parts) != count:
            length = f"a list of {len(parts)}" if isinstance(parts, list) else numbers.kind(parts)
            raise RbError(f"its {measure} is {length}, but {count} distances or severities are known")
        for into, part in zip(measures, parts, strict=True):
            into[measure] = part
    return measures


def _add_detail(row: PublishedRow, protocol: Record, measures: dict[str, Any]) -> None:
    detail = {
        name: numbers.plain(measures[measure])
        for measure, name in DETAILS.items()
        if measures.get(measure) is not None
    }
    if not detail:
        return
    if not row.entries or row.entries[-1]["metric"] != protocol["metric"]:
        row.absent(protocol, "no accuracy was published")
    row.entries[-1]["detail"] = detail


def _place(metric: str) -> tuple[str, Any] | None:
    """The key of a metric, and the eps or severity (None for clean); None if the metric has no key."""
    if metric == "acc":
        return CLEAN, None
    parts = metric_name.parse(metric)
    if parts.over == "severity" and not parts.prefixes:
        return parts.of, int(parts.number)
    for key, stem in ATTACKS.items():
        if parts.attacked and f"{stem}.{parts.number}" == metric:
            return key, float(parts.number)
    return None


def _listed(
    levels_of: dict[str, dict[str, Any]], epsilons: dict[str, list[float]]
) -> dict[str, dict[str, Any]]:
    """The values of all levels as lists in the order of the files; a missing value is null."""
    listed: dict[str, dict[str, Any]] = {}
    for key, measures in levels_of.items():
        levels: list[Any] = [None] if key == CLEAN else [*epsilons.get(key, SEVERITIES)]
        for measure, by in measures.items():
            row = [by.get(level) for level in levels]
            listed.setdefault(key, {})[measure] = row[0] if key == CLEAN else row
    return listed


def _ids() -> dict[str, dict[str, str]]:
    classes = nasbench201.classes()
    strings = nasbench201.strings()
    return {
        str(index): {"nb201-string": strings[index], "isomorph": str(classes[index])}
        for index in range(nasbench201.SIZE)
    }
