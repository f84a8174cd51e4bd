"""Compares the results of records with published results (`rb-rank --against`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.cli.sink import counted
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError, unknown
from rbtools.registry import Registry
from rbtools.scoring import published_difference

if TYPE_CHECKING:
    from rbtools.formats import Unit

Record = Mapping[str, Any]
Key = tuple[Any, ...]
_NAMED = 3  # the most reasons that are printed on stderr


class PublishedSource(NamedTuple):
    """A source of published results: how its rows match records, and how many test images it evaluated.

    `key` returns the fields that are equal in a record and a row of the same model (data set first), or None
    if the record cannot match a row. A record matches only if its training method is in `methods` or unknown.
    `options` are options of the publication's format. `shipped` reads the wanted rows that are part of
    rbtools, so that no file is needed. `folder` is the folder with the results in the publication's
    repository.
    """

    key: Callable[[Record], Key | None]
    images: Mapping[str, int]
    methods: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    shipped: Callable[[set[Key]], Iterator[Unit]] | None = None
    folder: str = ""


SOURCES = Registry("source of published results", {}, group="published-results", closed=True)


class PublishedResults:
    def __init__(self, name: str, rows: Mapping[Key, list[Record]]) -> None:
        self.name, self.source, self.rows = name, SOURCES.load(name), rows

    def beside(self, record: Record) -> dict[str, Any] | None:
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
        if len(rows) > 1:  # RobustBench uses some names for several threat models
            threat = str(record.get("leaderboard") or "").rpartition("/")[0].rpartition("/")[2]
            rows = [row for row in rows if threat in ("", _threat(row))]
        if len(rows) > 1:
            rows = [row for row in rows if _metrics(row) & _metrics(record) - {"acc"}]
        return rows[0] if len(rows) == 1 else None


def _name(row: Record) -> str:
    """`cifar10/Linf/Carmon2019Unlabeled`, `cifar10/resnet18/trades`."""
    middle, method = _threat(row), (row.get("train") or {}).get("method")
    parts = (row.get("dataset"), middle, None if middle and method else row["arch"].get("name"), method)
    return "/".join(str(part) for part in parts if part)


def _threat(row: Record) -> object:
    return (row.get("robustbench") or {}).get("threat")


def _metrics(record: Record) -> set[str]:
    return set(record.get("metrics") or ())


def load(name: str, file: str | None, records: Iterable[Record], screen: Terminal) -> PublishedResults:
    """Read the published results of a source for the models of the records. Raises UsageError."""
    from rbtools.formats import FORMATS, Bad, Broken, ConversionReport, Published

    source, report = SOURCES.load(name), ConversionReport()
    chosen = FORMATS.build(name, **source.options)
    wanted = {key for record in records if (key := source.key(record)) is not None}
    rows: dict[Key, list[Record]] = {}
    try:
        units = (
            source.shipped(wanted)
            if file is None
            else chosen.units(Published(_place(source, file), file), report)
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
        raise UsageError(f"--against {name}: {reason}") from None
    for line in report.errors():
        screen.warn(line)
    return PublishedResults(name, rows)


def check_source(name: str, file: str | None) -> None:
    """Raise UsageError if a source is unknown, or if it needs a file and none is given."""
    source, colon, place = name.partition(":")
    if colon and source in SOURCES:
        raise UsageError(f"--against is '{name}'. Write --against {source} --against-file '{place}'.")
    if name not in SOURCES:
        raise unknown("source of published results", name, SOURCES, UsageError)
    if file is None and SOURCES.load(name).shipped is None:
        raise UsageError(
            f"--against {name} needs the published file, which is not part of rbtools. Add --against-file"
            f" FILE, the file that rb-convert {name} reads."
        )


def _place(source: PublishedSource, file: str) -> Path:
    """The file to read or, in a copy of the publication's repository, the folder with the results."""
    path = Path(file)
    if not path.exists():
        raise UsageError("No such file or directory.")
    inside = path / source.folder
    return inside if inside.is_dir() else path


def _may_be(content: object, wanted: set[Key]) -> bool:
    """True if a row may belong to one of the wanted models; in large files, only such rows become records."""
    index = getattr(content, "arch", None)
    if not (isinstance(index, str) and index.isdigit()):
        return True
    return any(key[-1] == int(index) for key in wanted)


def tell(beside: Sequence[dict[str, Any] | None], name: str, screen: Terminal) -> None:
    """Report how many records have published values, and how many of the values differ."""
    found = [published["metrics"] for published in beside if published is not None]
    judged = [one for metrics in found for one in metrics.values() if "within" in one]
    beyond = sum(not one["within"] for one in judged)
    message = f"{name} has values for {len(found)} of {counted(len(beside), 'record')}"
    if judged:
        message += f"; {beyond} of {counted(len(judged), 'difference')} beyond the sampling error"
    screen.say(f"{message}.")
    reasons = Counter(
        f"{metric}: {one['reason']}"
        for metrics in found
        for metric, one in metrics.items()
        if "value" not in one
    )
    for reason, count in reasons.most_common(_NAMED):
        screen.say(f"{reason} ({counted(count, 'record')}); not compared.")
    if len(reasons) > _NAMED:
        screen.say(f"{len(reasons) - _NAMED} other metrics not compared; --format jsonl shows the reasons.")
