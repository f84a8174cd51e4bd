"""Published results beside records: `rb-rank --against`."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rbtools.cli.sink import counted
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError, unknown
from rbtools.scoring import published_difference

Record = Mapping[str, Any]
Key = tuple[Any, ...]
_NAMED = 3  # reasons that are said on stderr
_CIFAR = {"cifar10": 10_000, "cifar100": 10_000}
_IMAGENET16 = "imagenet16-120"


class PublishedSource(NamedTuple):
    """A publication: how its rows and records are matched, and of how many test images its numbers are.

    key: what a record and a row of the same model share (data set first); None for a record that is none of
    its models. methods: the training methods of all its models, of which a record names none or one.
    """

    key: Callable[[Record], Key | None]
    images: Mapping[str, int]
    methods: tuple[str, ...] = ()
    options: Mapping[str, str] = {}


def _leaderboard_key(record: Record) -> Key | None:
    """The name of the model: that of --arch robustbench:NAME, else the method of a converted record."""
    name = record.get("leaderboard") or (record.get("train") or {}).get("method")
    return (record.get("dataset"), name.rpartition("/")[2]) if isinstance(name, str) else None


def _trained_key(record: Record) -> Key | None:
    """Architecture, training method and its noise."""
    arch, train = record.get("arch") or {}, record.get("train") or {}
    noise = (train.get("config") or {}).get("noise") if train.get("method") == "corruption" else None
    return record.get("dataset"), arch.get("space"), arch.get("name"), train.get("method"), noise


def _cell_key(record: Record) -> Key | None:
    """The class of isomorphic cells, under whose first index the data sets of NAS-Bench-201 are."""
    from rbtools.formats.naming import class_of

    with contextlib.suppress(RbError):
        index = class_of(record.get("arch") or {})
        return None if index is None else (record.get("dataset"), index)
    return None


SOURCES = {
    "robustbench": PublishedSource(_leaderboard_key, {**_CIFAR, "imagenet": 5_000}),
    "prbench": PublishedSource(
        _trained_key,
        {
            **_CIFAR,
            **{"tinyimagenet": 10_000, "mnist": 10_000, "svhn": 26_032, "cinic10": 90_000},
            "imagenet50": 2_500,
        },
    ),
    "jung2023": PublishedSource(_cell_key, {**_CIFAR, _IMAGENET16: 3_000}, ("erm",)),
    "nasrobbench201": PublishedSource(_cell_key, {**_CIFAR, _IMAGENET16: 6_000}, ("pgd",), {"seeds": "mean"}),
}


class PublishedResults:
    """The published results of the models of some records."""

    def __init__(self, name: str, rows: Mapping[Key, list[Record]]) -> None:
        self.name, self.source, self.rows = name, SOURCES[name], rows

    def beside(self, record: Record) -> dict[str, Any] | None:
        """The published values beside those of a record; None if there are none."""
        row = self._row(record)
        if row is None:
            return None
        images = self.source.images.get(str(record.get("dataset")))
        metrics = published_difference.compared(record, row, images)
        return {"source": self.name, "row": _name(row), "metrics": metrics} if metrics else None

    def _row(self, record: Record) -> Record | None:
        key, method = self.source.key(record), (record.get("train") or {}).get("method")
        if key is None or (self.source.methods and method not in (None, *self.source.methods)):
            return None
        rows = self.rows.get(key, [])
        if len(rows) > 1:  # a name that RobustBench has for several threat models
            threat = str(record.get("leaderboard") or "").rpartition("/")[0].rpartition("/")[2]
            rows = [row for row in rows if threat in ("", _threat(row))]
        if len(rows) > 1:
            rows = [row for row in rows if _metrics(row) & _metrics(record) - {"acc"}]
        return rows[0] if len(rows) == 1 else None


def _name(row: Record) -> str:
    """`cifar10/Linf/Carmon2019Unlabeled`, `cifar10/resnet18/trades`."""
    middle = _threat(row) or row["arch"].get("name")
    return "/".join(str(part) for part in (row.get("dataset"), middle, row["train"]["method"]))


def _threat(row: Record) -> object:
    return (row.get("robustbench") or {}).get("threat")


def _metrics(record: Record) -> set[str]:
    return set(record.get("metrics") or ())


def load(text: str, records: Iterable[Record], screen: Terminal) -> PublishedResults:
    """The results that SOURCE or SOURCE:FILE has of the records' models.

    Raises UsageError for an unknown source, or a file that is missing or cannot be read.
    """
    from rbtools.formats import FORMATS, Bad, Broken, ConversionReport, Published

    name, file = parts(text)
    source, report = SOURCES[name], ConversionReport()
    chosen = FORMATS.build(name, **source.options)
    wanted = {key for record in records if (key := source.key(record)) is not None}
    rows: dict[Key, list[Record]] = {}
    try:
        units = (
            _shipped(wanted) if file is None else chosen.units(Published(_place(name, file), file), report)
        )
        for unit in units:
            if isinstance(unit, Bad):
                report.error(unit.problem, unit.where)
            elif _may_be(unit.content, wanted):
                row = chosen.record(unit.content, report, unit.where)
                key = source.key(row)
                if key in wanted and key is not None:
                    rows.setdefault(key, []).append(row)
    except (RbError, Broken, OSError) as wrong:
        reason = f"{file} {wrong}." if isinstance(wrong, Broken) else str(wrong)
        raise UsageError(f"--against {text}: {reason}") from None
    for line in report.errors():
        screen.warn(line)
    return PublishedResults(name, rows)


def parts(text: str) -> tuple[str, str | None]:
    """SOURCE and FILE of the option. Raises UsageError."""
    name, colon, file = text.partition(":")
    if name not in SOURCES:
        raise unknown("source of published results", name, SOURCES, UsageError)
    if colon and not file:
        raise UsageError(f"--against {text}: no file follows the colon. Expected {name}:FILE.")
    if not colon and name != "robustbench":
        raise UsageError(
            f"--against {name} needs the published file, which is not part of rbtools. Add it: --against"
            f" {name}:FILE, with FILE as rb-convert {name} reads it."
        )
    return name, file or None


def _place(name: str, file: str) -> Path:
    """The file to read; of a checkout of RobustBench its model_info."""
    path = Path(file)
    if not path.exists():
        raise UsageError("No such file or directory.")
    inside = path / "model_info"
    return inside if name == "robustbench" and inside.is_dir() else path


def _may_be(content: object, wanted: set[Key]) -> bool:
    """Whether a unit may be of a wanted model: large files are read without making a record of each row."""
    index = getattr(content, "arch", None)
    if not (isinstance(index, str) and index.isdigit()):
        return True
    return any(key[-1] == int(index) for key in wanted)


def _shipped(wanted: set[Key]) -> Iterator[Any]:
    """The values of RobustBench's entries that rbtools can load, as units of its format."""
    from rbtools import formats
    from rbtools.papers.formats.robustbench import Info

    text = Path(formats.__file__).with_name("robustbench.json").read_text("utf-8")
    for row, fields in json.loads(text).items():
        dataset, threat, model = row.split("/")
        if (dataset, model) in wanted:
            yield formats.Unit(row, Info(dataset, threat, model, {"dataset": dataset, **fields}))


def tell(results: Iterable[tuple[Record, dict[str, Any] | None]], name: str, screen: Terminal) -> None:
    """Say how many records have published values, how many of these differ, and what was not compared."""
    every = list(results)
    values = [one for _, beside in every if beside for one in beside["metrics"].values()]
    judged = [one for one in values if "within" in one]
    beyond = sum(not one["within"] for one in judged)
    known = sum(beside is not None for _, beside in every)
    words = f"{name} has values of {known} of {counted(len(every), 'record')}"
    if judged:
        words += f"; {beyond} of {counted(len(judged), 'difference')} beyond the sampling error"
    screen.say(f"{words}.")
    reasons = Counter(
        f"{metric}: {one['reason']}"
        for _, beside in every
        if beside
        for metric, one in beside["metrics"].items()
        if "value" not in one
    )
    for reason, count in reasons.most_common(_NAMED):
        screen.say(f"{reason} ({counted(count, 'record')}); not compared.")
    if len(reasons) > _NAMED:
        screen.say(f"{len(reasons) - _NAMED} other metrics not compared; --format jsonl has the reasons.")
