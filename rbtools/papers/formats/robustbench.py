"""RobustBench's model_info: a folder of small JSON files, one for each model and threat model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError, unknown
from rbtools.formats import numbers
from rbtools.formats.base import Bad, Broken, Document, Published, Record, Unit, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import dataset_name, described
from rbtools.formats.rows import MetricValues, PublishedRow
from rbtools.papers.formats.published_json import (
    an_object,
    dumps,
    file_name,
    latest,
    parsed,
    text_field,
    zoo_name,
)
from rbtools.plain_files import LARGEST_LIST, plain
from rbtools.records import metric_name
from rbtools.registry import param

THREATS = {"Linf": "linf", "L2": "l2", "corruptions": None}
USUAL = {"Linf": "8/255", "L2": "0.5"}
# The eps of some models instead of 8/255; the leaderboard ranks them together with the others.
ROUNDED = 0.031
ATTACKED = {"autoattack_acc": "aa", "reported": "reported", "external": "external"}
# Metrics of a corruptions file; mCE is relative to a reference and may be above 1.
CORRUPTIONS = {"corruptions_acc": "corrupt.mean", "corruptions_acc_3d": "corrupt-3d.mean"}
MCE = {"corruptions_mce": "corrupt.mce", "corruptions_mce_3d": "corrupt-3d.mce"}
ORDER = (
    *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue"),
    *("architecture", "eps", "clean_acc", "reported", "autoattack_acc", "external"),
    *("corruptions_acc_3d", "corruptions_mce_3d", "corruptions_acc", "corruptions_mce"),
)


class Info(NamedTuple):
    """One file of model_info: the parts of its path (DATASET/THREAT/MODEL.json), and its content."""

    dataset: str
    threat: str
    model: str
    fields: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RobustBench:
    """RobustBench's model_info: a folder with many small files DATASET/THREAT/MODEL.json, or a single file.

    In the files, numbers are strings in percent, and distances are strings such as 8/255. The name of a model
    becomes the training method of its record, or the network's name if the file does not name a network.
    Authors, venue and other fields are kept under "robustbench". clean_acc becomes acc, autoattack_acc
    becomes aa.8 (or aa.l2.0.5), corruptions_acc becomes corrupt.mean, and reported and external become
    reported.8 and external.8. Models that were attacked at distance 0.031 also have the metric aa.8, and the
    entry of the metric contains the exact distance. Networks of the same size as a network in our model zoo
    have the name of the zoo. Files are read one by one.
    """

    name: ClassVar[str] = "robustbench"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = False

    threat: str | None = param(
        None, "The kind of results to write, for records that have several kinds.", choices=tuple(THREATS)
    )
    published: str = param(
        "",
        "The published values in rbtools to read instead of FILE, as DATASET/THREAT, such as cifar10/Linf.",
        metavar="DATASET/THREAT",
    )

    @property
    def needs_no_file(self) -> bool:
        return bool(self.published)

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        if self.published:
            yield from self._published()
            return
        files = sorted(source.path.rglob("*.json")) if source.path and source.folder else [source.path]
        if not files:
            raise RbError(
                f"The folder {source.name} contains no .json files. Expected RobustBench's model_info, with"
                " files DATASET/THREAT/MODEL.json."
            )
        for path in files:
            where = source.name if path is None else str(path)
            within = plain(path) if path is not None and source.folder else path
            text = Published(within, where).read(LARGEST_LIST)
            try:
                fields = an_object(parsed(text), "The file")
                yield Unit(where, _info(PurePath(where), fields))
            except RbError as wrong:
                problem = f"It {wrong}." if isinstance(wrong, Broken) else str(wrong)
                yield Bad(where, problem, text.decode("utf-8", "replace"))

    def _published(self) -> Iterator[Unit]:
        rows = [unit for unit in shipped() if unit.where.startswith(f"{self.published.rstrip('/')}/")]
        if not rows:
            groups = sorted({unit.where.rpartition("/")[0] for unit in shipped()})
            raise unknown("group of RobustBench's entries", self.published, groups)
        yield from rows

    def record(self, unit: Info, report: ConversionReport, where: str) -> Record:
        fields, norm = unit.fields, THREATS[unit.threat]
        ours = dataset_name(unit.dataset)
        if dataset_name(text_field(fields, "dataset")) != ours:
            report.note('a file\'s "dataset" differs from its folder, which is used', where)
        row = PublishedRow("robustbench", report, where, percent=True)
        row.add("acc", fields.get("clean_acc"), split="test")
        taken = {"clean_acc": "acc"}
        if norm is None:
            for key, metric in CORRUPTIONS.items():
                row.add(metric, fields.get(key), split="test")
            for key, metric in MCE.items():
                row.add(metric, fields.get(key), limits=None, split="test")
            row.add("reported", fields.get("reported"), split="test")
            taken |= {**CORRUPTIONS, **MCE, "reported": "reported"}
        else:
            eps = distance(fields.get("eps"), norm)
            if norm == "linf" and eps == ROUNDED:
                report.note(
                    "a model was attacked at 0.031; its metric is aa.8, and evals has the distance", where
                )
            at: Record = {"norm": norm, "eps": eps, "split": "test"}
            attacked = _attack_metrics(eps, norm)
            for key, metric in attacked.items():
                own: Record = {"attack": "aa"} if key == "autoattack_acc" else {}
                row.add(metric, fields.get(key), **own, **at)
            taken |= attacked
        named = isinstance(fields.get("architecture"), str)
        arch = _arch(fields["architecture"] if named else unit.model, ours)
        # Fields that the record already has are left out. An empty text is not a number, and is kept.
        said = {"dataset": ours, "architecture": _published(arch)}
        if norm is not None and taken["autoattack_acc"] in row.metrics:
            said["eps"] = f"{eps * 255:g}/255" if norm == "linf" else f"{eps:g}"
        over = {
            key: value
            for key, value in fields.items()
            if taken.get(key) not in row.metrics and (key not in said or said[key] != value)
        }
        over["threat"] = unit.threat
        about: Record = {"train": {"method": unit.model}} if named else {}
        return row.record(arch, dataset=ours, **about, robustbench=numbers.plain(over))

    def unit(self, record: Record) -> Any:
        over = own_part(record.get("robustbench"))
        dataset, model = record.get("dataset"), model_name(record)
        if not isinstance(dataset, str) or not isinstance(model, str):
            raise RbError(
                "A RobustBench file needs a data set and the name of a model. Expected a record with"
                " dataset and train.method."
            )
        values = MetricValues(record, percent=True)
        threat = self.threat or over.pop("threat", None) or _threat_of(values)
        over.pop("threat", None)
        if not isinstance(threat, str) or threat not in THREATS:
            raise unknown("threat model", str(threat), THREATS)
        norm = THREATS[threat]
        architecture = None if _without_architecture(record) else _published(record["arch"])
        fields: Record = {
            "dataset": over.pop("dataset", dataset),
            "architecture": over.pop("architecture", architecture),
            "clean_acc": _text(values.value("acc")),
        }
        if norm is None:
            metrics = {**CORRUPTIONS, **MCE, "reported": "reported"}
        else:
            eps = over.pop("eps", None) or _eps_of(values, threat)
            fields["eps"] = eps
            metrics = _attack_metrics(distance(eps, norm), norm)
        fields |= {key: text for key, metric in metrics.items() if (text := _text(values.value(metric)))}
        fields = {**over, **{key: value for key, value in fields.items() if value is not None}}
        known = {key: fields.pop(key) for key in ORDER if key in fields}
        return Info(file_name(dataset), threat, file_name(model), known | fields)

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        for info in latest(units, lambda one: one[:3], report):
            path = f"{info.dataset}/{info.threat}/{info.model}.json"
            yield Document(path, dumps(info.fields, indent=True) + b"\n")


def _info(path: PurePath, fields: Record) -> Info:
    threat = _threat(path, fields)
    folder = path.parent.parent.name if path.parent.name == threat else ""
    return Info(folder or text_field(fields, "dataset"), threat, path.stem, fields)


def _threat(path: PurePath, fields: Record) -> str:
    """The threat model, which is the name of the folder or else follows from the fields. Raises RbError."""
    if path.parent.name in THREATS:
        return path.parent.name
    if any(key in fields for key in (*CORRUPTIONS, *MCE)):
        return "corruptions"
    if "autoattack_acc" in fields:
        return "Linf" if distance(fields.get("eps"), "linf") < 0.2 else "L2"
    listed = ", ".join(map(str, list(fields)[:8])) or "nothing"
    raise RbError(
        f"It has neither autoattack_acc nor corruptions_acc (it has: {listed}). Expected a file of"
        " RobustBench's model_info, in a folder Linf, L2 or corruptions."
    )


def _threat_of(values: MetricValues) -> str:
    for parts in map(metric_name.parse, values.metrics):
        if parts.words[0] == "aa" and parts.number:
            return "L2" if parts.norm else "Linf"
    if "corrupt.mean" in values.metrics:
        return "corruptions"
    raise RbError(
        "A RobustBench file needs results under AutoAttack or corruptions, but the record has neither"
        " aa.8, aa.l2.0.5 nor corrupt.mean. Run rb-attack aa or rb-corrupt all."
    )


_FRACTION = re.compile(r"\s*\d+(\.\d+)?\s*/\s*\d+(\.\d+)?\s*")


def distance(raw: object, norm: str) -> float:
    """A distance of RobustBench in pixel units of [0, 1]. The values "8/255" and 0.031 are unchanged, and 8
    in L-infinity means 8/255. Raises RbError for other values."""
    try:
        read = numbers.number(raw)
        if read is None or read.value < 0:
            raise numbers.NoNumber(f"the distance is {raw!r}")
    except numbers.NoNumber as wrong:
        raise RbError(
            f'The file\'s "eps" cannot be read: {wrong}. Expected a string such as "8/255".'
        ) from None
    written_out = isinstance(raw, str) and _FRACTION.fullmatch(raw)
    whole = norm == "linf" and not written_out and read.value >= 1
    return float(read.value) / 255 if whole else float(read.value)


def _attack_metrics(eps: float, norm: str) -> dict[str, str]:
    eps = 8 / 255 if norm == "linf" and eps == ROUNDED else eps
    ball = "" if norm == "linf" else ".l2"
    return {
        key: metric_name.attack_name(f"{stem}{ball}", metric_name.eps_name(eps, norm))
        for key, stem in ATTACKED.items()
    }


def _eps_of(values: MetricValues, threat: str) -> str:
    """The eps to write: the usual eps of the threat model if the record has it, else its first one."""
    norm = THREATS[threat] or "linf"
    names = [parts for parts in map(metric_name.parse, values.metrics) if parts.attacked]
    family = "aa" if norm == "linf" else f"aa.{norm}"
    named = [parts.number for parts in names if parts.family == family]
    texts = [f"{one}/255" if norm == "linf" else one for one in named]
    return USUAL[threat] if USUAL[threat] in texts or not texts else texts[0]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def model_name(record: Mapping[str, Any]) -> Any:
    """The model's name in RobustBench, which is in `arch.name` if the file does not name an architecture."""
    field, name = ("arch", "name") if _without_architecture(record) else ("train", "method")
    return (record.get(field) or {}).get(name)


def _without_architecture(record: Mapping[str, Any]) -> bool:
    method = (record.get("train") or {}).get("method")
    return method is None and (record.get("arch") or {}).get("space") == "robustbench"


def _arch(published: str, dataset: str) -> Record:
    zoo = None if dataset.startswith("imagenet") else zoo_name(published)
    return described({"space": "robustbench" if zoo is None else "zoo", "name": zoo or published}, dataset)


_FAMILIES = {"wrn": "WideResNet", "resnet": "ResNet", "preactresnet": "PreActResNet"}


def _published(arch: Record) -> str:
    name = str(arch.get("name"))
    match = re.fullmatch(r"(wrn-|resnet|preactresnet)([\d-]+)", name)
    return f"{_FAMILIES[match[1].rstrip('-')]}-{match[2]}" if match and arch.get("space") == "zoo" else name


def shipped() -> Iterator[Unit]:
    """The published values of all RobustBench entries that rbtools can load, as units of the format."""
    text = Path(__file__).with_name("robustbench.json").read_text("utf-8")
    for row, fields in json.loads(text).items():
        dataset, threat, model = row.split("/")
        yield Unit(row, Info(dataset, threat, model, {"dataset": dataset, **fields}))
