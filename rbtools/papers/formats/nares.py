"""NARes: adversarially trained wide residual networks of many depths and widths, as JSON Lines.

Layout, from the reader in zhichao-lu/arch-dataset-adv-robustness: one object per architecture, with
`arch_id`, `arch` (D1, W1, D2, W2, D3, W3), `MACs`, `Params`, and the lists `train` and `test_best` with one
object per training. Its evaluation code (ZaberKo/NARes-Eval) attacks at 8/255 with PGD of 20 steps and PGD on
the margin of 40 steps, and writes percents; its training code (ZaberKo/NARes-Train) uses PGD of 7 steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.formats import numbers, stream
from rbtools.formats.base import Bad, Document, Published, Record, Unit, an_object, dumps, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.rows import MetricValues, PublishedRow
from rbtools.records import metric_name, texts
from rbtools.registry import param

SMALLEST = 100_000  # the least number of parameters or multiply-adds of a network
PARTS = ("D1", "W1", "D2", "W2", "D3", "W3")
EPS = 8 / 255
_PGD = {"attack": "pgd", "norm": "linf", "eps": EPS, "steps": 20}
_CW = {"attack": "cw", "norm": "linf", "eps": EPS, "steps": 40}
# Keys of a test, the metrics that they are, and how these were measured.
ACCURACIES: dict[str, Record] = {
    "test_clean_acc": {"metric": "acc"},
    "Linf_fgsm_acc": {"metric": "fgsm.8", "attack": "fgsm", "norm": "linf", "eps": EPS},
    "Linf_pgd_acc": {"metric": "pgd20.8", **_PGD},
    "Linf_cw_acc": {"metric": "cw40.8", **_CW},
    "Linf_aa_acc": {"metric": "aa.8", "attack": "aa", "norm": "linf", "eps": EPS},
    "Linf_fgsm_stable": {"metric": "fgsm.8.stable", "attack": "fgsm", "norm": "linf", "eps": EPS},
    "Linf_pgd_stable": {"metric": "pgd20.8.stable", **_PGD},
    "Linf_cw_stable": {"metric": "cw40.8.stable", **_CW},
}
NUMBERS: dict[str, Record] = {
    "test_loss": {"metric": "loss"},
    "Linf_pgd_lip": {"metric": "pgd20.8.lip", **_PGD},
    "Linf_cw_lip": {"metric": "cw40.8.lip", **_CW},
}
# Histories of the validation, and the metrics of their values at the best epoch.
VALIDATION: dict[str, Record] = {
    "val_acc": {"metric": "val.acc"},
    "pgd": {"metric": "val.pgd20.8", **_PGD},
    "cw": {"metric": "val.cw40.8", **_CW},
}
TRAIN = {"method": "pgd", "config": {"attack_steps": 7, "eps": EPS, "step_size": 2 / 255}}


class Training(NamedTuple):
    """One training of an architecture: the shared fields of its line, and its `train` and `test_best`."""

    line: dict[str, Any]
    train: dict[str, Any]
    test: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NARes:
    """NARes' cifar10.jsonl, or lines like it: one object per architecture with its trainings and tests.

    One record for each training. Numbers are percents. arch.depth and arch.width are D1 to D3 and W1 to W3;
    test accuracies are acc, fgsm.8, pgd20.8, cw40.8, aa.8 and corrupt.NAME.SEVERITY, those of the validation
    at the best epoch val.acc, val.pgd20.8 and val.cw40.8. Histories and all other fields of a line are kept
    under "nares". Reads line by line.
    """

    name: ClassVar[str] = "nares"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    scale: str = param("percent", "Unit of accuracies.", choices=numbers.SCALES)

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        with source.opened() as opened:
            for number, text, readable in texts(opened):
                where = f"{source.name}: line {number}"
                if not readable:
                    yield Bad(where, "It is binary data, not JSON, and the rest is not read.", "")
                    return
                try:
                    line = an_object(stream.loads(text), "It")
                    pairs = list(_trainings(line))
                except RbError as wrong:
                    problem = f"It {wrong}." if isinstance(wrong, stream.Broken) else str(wrong)
                    yield Bad(where, problem, text.strip().decode("utf-8", "replace"))
                    continue
                fields = {key: value for key, value in line.items() if key not in ("train", "test_best")}
                yield from (Unit(where, Training(fields, train, test)) for train, test in pairs)

    def record(self, unit: Training, report: ConversionReport, where: str) -> Record:
        row = PublishedRow("nares", report, where, percent=self.scale == "percent")
        over: Record = {}
        test = dict(unit.test)
        for table, add in ((ACCURACIES, row.accuracy), (NUMBERS, row.plain)):
            for key, protocol in table.items():
                add(raw=test.pop(key, None), **protocol, split="test")
        test_over = _corruptions(row, test.pop("corruptions", None)) | test
        row.check_scale()
        best = unit.train.get("best_epoch")
        for key, protocol in VALIDATION.items():
            history = unit.train.get(key)
            if isinstance(best, int) and isinstance(history, list) and 0 <= best < len(history):
                row.accuracy(raw=history[best], **protocol, split="val", epoch=best)
        line = dict(unit.line)
        arch = _arch(line)
        history = {key: value for key, value in unit.train.items() if key != "seed"}
        over = {"train": history, "test_best": test_over, **line}
        train: Record = {**TRAIN, "seed": numbers.plain(unit.train.get("seed"))}
        if isinstance(unit.train.get("train_loss"), list):
            train["epochs"] = len(unit.train["train_loss"])
        train = {key: value for key, value in train.items() if value is not None}
        over = {key: value for key, value in over.items() if value not in ({}, None)}
        return row.record(arch, dataset="cifar10", train=train, nares=numbers.plain(over))

    def unit(self, record: Record) -> Any:
        arch, over = record["arch"], own_part(record.get("nares"))
        depth, width = arch.get("depth"), arch.get("width")
        if not all(isinstance(one, list) and len(one) == 3 for one in (depth, width)):
            raise RbError(
                "NARes has networks of three depths and three widths. Expected a record with the lists"
                " arch.depth and arch.width, such as rb-convert nares reads."
            )
        values = MetricValues(record, percent=self.scale == "percent")
        test = own_part(over.pop("test_best", None))
        published = {key: values.scaled(protocol["metric"]) for key, protocol in ACCURACIES.items()}
        published |= {key: values.plain(protocol["metric"]) for key, protocol in NUMBERS.items()}
        test |= {key: value for key, value in published.items() if value is not None}
        corruptions = _merged(test.pop("corruptions", {}), _of_corruptions(values))
        if corruptions:
            test["corruptions"] = corruptions
        seed = (record.get("train") or {}).get("seed")
        train = ({} if seed is None else {"seed": seed}) | own_part(over.pop("train", None))
        line = {
            "arch_id": arch.get("index"),
            "arch": dict(zip(PARTS, itertools.chain(*zip(depth, width, strict=True)), strict=True)),
        }
        line |= {"MACs": arch.get("macs"), "Params": arch.get("params"), **over}
        return Training({key: value for key, value in line.items() if value is not None}, train, test)

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        lines: dict[str, tuple[dict[str, Any], dict[bytes, Training]]] = {}
        for unit in units:
            training: Training = unit.content
            line = lines.setdefault(dumps(training.line["arch"]).decode(), (training.line, {}))
            seed = dumps(training.train.get("seed"))  # a value of any type
            if seed in line[1]:
                report.note("two records stand for one training; the last one is written", unit.where)
            line[1][seed] = training
        yield Document("", map(_line, lines.values()))


def _line(trainings_of: tuple[dict[str, Any], dict[bytes, Training]]) -> bytes:
    line, trainings = trainings_of
    pairs = list(trainings.values())
    return dumps({**line, "train": [p.train for p in pairs], "test_best": [p.test for p in pairs]}) + b"\n"


def _trainings(line: Record) -> Iterator[tuple[Record, Record]]:
    """The trainings of a line with their tests. Raises RbError where they do not belong together."""
    trains, tests = line.get("train", []), line.get("test_best", [])
    if not isinstance(trains, list) or not isinstance(tests, list) or len(trains) != len(tests) or not trains:
        listed = ", ".join(map(str, list(line)[:8])) or "nothing"
        raise RbError(
            f'It has no "train" and "test_best" of one length (it has: {listed}). Expected a line of NARes.'
        )
    for train, test in zip(trains, tests, strict=True):
        yield an_object(train, 'Its "train"'), an_object(test, 'Its "test_best"')


def _arch(line: Record) -> Record:
    """The architecture; its fields are removed from the line. Raises RbError."""
    parts = an_object(line.pop("arch", None), 'Its "arch"')
    if set(parts) != set(PARTS) or not all(isinstance(parts[key], int) for key in PARTS):
        raise RbError(
            f'Its "arch" has {", ".join(map(str, parts)) or "nothing"}. Expected numbers D1, W1 to D3, W3.'
        )
    depth, width = [parts[key] for key in PARTS[::2]], [parts[key] for key in PARTS[1::2]]
    name = "-".join(f"{d}x{w}" for d, w in zip(depth, width, strict=True))
    arch: Record = {
        "space": "nares",
        "name": f"nares-{name}",
        "index": numbers.plain(line.pop("arch_id", None)),
    }
    arch |= {"depth": depth, "width": width}
    for ours, theirs in (("params", "Params"), ("macs", "MACs")):
        # otherwise the number is in millions
        if isinstance(line.get(theirs), int) and line[theirs] >= SMALLEST:
            arch[ours] = line.pop(theirs)
    return {key: value for key, value in arch.items() if value is not None}


def _corruptions(row: PublishedRow, results: object) -> Record:
    """Add accuracies and losses under corruptions; return the remaining fields."""
    if not isinstance(results, dict):
        return {} if results is None else {"corruptions": results}
    over: Record = {}
    for name, levels in results.items():
        for level, both in levels.items() if isinstance(levels, dict) else ():
            if level not in ("1", "2", "3", "4", "5") or not isinstance(both, dict):
                over.setdefault(name, {})[level] = both
                continue
            metric = metric_name.corrupt_name(name, level)
            protocol = {"corruption": name, "severity": int(level), "split": "test"}
            row.accuracy(metric, both.get("acc"), **protocol)
            row.plain(f"{metric}.loss", both.get("loss"), **protocol)
            fields = {key: value for key, value in both.items() if key not in ("acc", "loss")}
            if fields:
                over.setdefault(name, {})[level] = fields
    return {"corruptions": over} if over else {}


def _of_corruptions(values: MetricValues) -> Record:
    results: Record = {}
    for metric in values.metrics:
        parts = metric_name.parse(metric)
        if parts.stem != "corrupt" or parts.prefixes or not parts.number:
            continue
        into = results.setdefault(parts.of, {}).setdefault(parts.number, {})
        if not parts.suffix:
            into["acc"] = values.scaled(metric)
        elif parts.suffix == "loss":
            into["loss"] = values.plain(metric)
    return results


def _merged(first: object, second: object) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            key: _merged(first.get(key), second[key]) if key in second else first[key]
            for key in first | second
        }
    return second if second is not None else first
