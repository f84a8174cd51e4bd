"""The rows of a paper's printed tables next to the results of one network, for rb-attack and rb-measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rbtools.papers import packaged, printed


def beside(preset: str, record: Mapping[str, Any]) -> list[str]:
    """The lines of the tables whose columns the record has, with this network as the first row. Returns a
    sentence if there are none, and [] for a preset that does not belong to a paper."""
    tables = packaged.read("printed_rows.yaml").get(preset)
    if tables is None:
        return []
    lines = [line for fields in tables for line in _table(record, **fields)]
    more = f" rb-attack --preset {preset} measures the results that it prints." if tables else ""
    return lines or [f"the paper prints none of these results for a single network.{more}"]


def _table(
    record: Mapping[str, Any], *, tables: Mapping[str, str], columns: Mapping[str, str]
) -> Iterator[str]:
    metrics, fields = record["metrics"], _Fields(record["arch"])
    measured = {name: metrics[metric] for name, metric in columns.items() if metric in metrics}
    rows = {table: _rows(table, row.format_map(fields)) for table, row in tables.items()}
    titles = [printed.title(table) for table, some in rows.items() if some]
    if not measured or not titles:
        return
    scale, digits = (100, 2) if "percent" in titles[0] else (1, 4)
    images = next((one["n"] for one in record["evals"] if one["metric"] in columns.values()), None)
    here = {f"this network, {images} images": {name: scale * value for name, value in measured.items()}}
    cells = [["", *measured]]
    for some in (here, *rows.values()):
        cells += [[name, *(_number(of.get(one), digits) for one in measured)] for name, of in some.items()]
    yield from titles
    yield from _aligned(cells)


def _rows(table: str, row: str) -> Mapping[str, Mapping[str, float | None]]:
    """The rows of a printed table, or only the row of this name if `row` is not empty."""
    return {name: values for name, values in printed.read(table).items() if row in ("", name)}


class _Fields(dict[str, Any]):
    """The fields of an architecture; a missing field becomes "-", which no row contains."""

    def __missing__(self, name: str) -> str:
        return "-"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _aligned(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    for name, *numbers in cells:
        right = (text.rjust(width) for text, width in zip(numbers, others, strict=True))
        yield "  ".join([name.ljust(first), *right])
