"""Rank correlations between columns of numbers: Kendall's tau-b and Spearman's rho.

With n0 pairs of records, of which n1 are tied in the first column and n2 in the second, tau-b = (C - D) /
sqrt((n0 - n1) (n0 - n2)) (Kendall, "The treatment of ties in ranking problems", Biometrika 1945). Spearman's
rho is Pearson's correlation of average ranks. Only records that have numbers in both columns of a pair are
used. The columns may come from one set of records, or from several sets that are joined by fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.lazy import np, special
from rbtools.records import expr
from rbtools.scoring.columns import EXACT, Columns, unknown
from rbtools.scoring.groups import Key, field

KINDS = ("kendall", "spearman")
FEWEST = 3  # least number of records: two records always agree or disagree
_ENOUGH = 16.0  # an interval needs this many resamples with a value


class Matrix(NamedTuple):
    """Correlations of the columns `rows` with the columns `cols`.

    `value` is float (R, C), NaN if there is no correlation, and `n` is int (R, C), the number of records that
    have both columns. `low` and `high` (R, C) are the ends of the 95 % bootstrap interval. `flat_rows` and
    `flat_cols` are bool (R, C), true if the row or the column has fewer than two distinct values in these
    records.
    """

    kind: str
    rows: list[str]
    cols: list[str]
    value: np.ndarray
    n: np.ndarray
    flat_rows: np.ndarray
    flat_cols: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def matrix(
    kind: str,
    names: Sequence[str],
    numbers: np.ndarray,
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    bootstrap: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Matrix:
    """Correlate the columns `rows` with the columns `cols`.

    `numbers` is float (N, M), with one column for each of `names`, and NaN if a record has no number.
    `bootstrap` is the number of resamples of the records for the intervals; the resamples depend only on
    `seed` and N. `progress` is called with the number of finished resamples.
    """
    import threadpoolctl

    place = {name: at for at, name in enumerate(names)}
    left, right = [place[name] for name in rows], [place[name] for name in cols]
    low = high = None
    # Waiting BLAS threads use the processor: on a busy machine, two threads took 290 s, and one took 9 s.
    with threadpoolctl.threadpool_limits(1, "blas"):
        result = _matrix(kind, numbers, left, right)
        if bootstrap:
            rng = np.random.Generator(np.random.Philox(seed))
            drawn = np.empty((bootstrap, len(left), len(right)))
            for at in range(bootstrap):
                resample = numbers[rng.integers(len(numbers), size=len(numbers))]
                drawn[at] = _matrix(kind, resample, left, right)[0]
                if progress is not None:
                    progress(at + 1)
            low, high = _intervals(kind, *result[:2], drawn)
            same = np.array(rows)[:, None] == np.array(cols)  # the correlation of a column with itself is 1
            low, high = (np.where(same & ~np.isnan(end), result[0], end) for end in (low, high))
    return Matrix(kind, list(rows), list(cols), *result, low, high)


def floats(column: Sequence[float | None]) -> list[float]:
    """Convert a column for `matrix`, with NaN for None. If floats cannot represent its integers, the numbers
    are replaced by their ranks, which have the same correlations."""
    known = [value for value in column if value is not None and value == value]
    if any(isinstance(value, int) and abs(value) > EXACT for value in known):
        ranks = {value: float(place) for place, value in enumerate(sorted(set(known)))}
        return [ranks.get(value, np.nan) if value is not None else np.nan for value in column]
    return [np.nan if value is None else float(value) for value in column]


def lines(matrix: Matrix, bootstrap: int = 0, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects that `rb-corr` writes, one for each pair of columns. `value` is null if there
    is no correlation, and `reason` then gives the reason."""
    for i, row in enumerate(matrix.rows):
        for j, col in enumerate(matrix.cols):
            line: dict[str, Any] = {"tool": "rb-corr", "kind": matrix.kind, "row": row, "col": col}
            value, n = float(matrix.value[i, j]), int(matrix.n[i, j])
            line |= {"value": None if value != value else value, "n": n}
            if n < FEWEST:
                line["reason"] = f"{n} records have both columns, but {FEWEST} are needed"
            elif value != value:
                flat = [row] if matrix.flat_rows[i, j] else []
                flat += [col] if matrix.flat_cols[i, j] and col not in flat else []
                line["reason"] = f"{' and '.join(flat)}: fewer than two distinct values"
            elif matrix.low is not None and matrix.high is not None:
                ends = [float(matrix.low[i, j]), float(matrix.high[i, j])]
                line["ci95"] = None if ends[0] != ends[0] else ends
                line |= {"bootstrap": bootstrap, "seed": seed}
            yield line


def _matrix(
    kind: str, numbers: np.ndarray, left: list[int], right: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The correlations, the numbers of records, and whether rows and columns are flat, each (R, C). Columns
    that lack numbers for the same records are processed together."""
    shape = (len(left), len(right))
    value, n = np.full(shape, np.nan), np.zeros(shape, int)
    flat_rows, flat_cols = np.zeros(shape, bool), np.zeros(shape, bool)
    finite = ~np.isnan(numbers)
    measure = _spearman if kind == "spearman" else _kendall
    for some, theirs in _patterns(finite, left):
        for others, mine in _patterns(finite, right):
            both = theirs & mine
            count = int(both.sum())
            block = np.ix_(some, others)
            n[block] = count
            if count < FEWEST:
                continue
            whole = numbers if count == len(numbers) else numbers[both]
            alike = [left[i] for i in some] == [right[j] for j in others]
            a = whole[:, [left[i] for i in some]]
            b = a if alike else whole[:, [right[j] for j in others]]
            flat_a, flat_b = (x.max(0) == x.min(0) for x in (a, b))
            flat_rows[block], flat_cols[block] = flat_a[:, None], flat_b[None, :]
            coefficients = measure(a, b)
            coefficients[flat_a], coefficients[:, flat_b] = np.nan, np.nan
            value[block] = coefficients
    return value, n, flat_rows, flat_cols


def _patterns(known: np.ndarray, columns: list[int]) -> list[tuple[list[int], np.ndarray]]:
    """Groups of columns that have numbers for the same records: indices into `columns`, and a mask (N,)."""
    groups: dict[bytes, list[int]] = {}
    for place, column in enumerate(columns):
        groups.setdefault(np.packbits(known[:, column]).tobytes(), []).append(place)
    return [(places, known[:, columns[places[0]]]) for places in groups.values()]


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rho between each column of (N, A) and each column of (N, B), shape (A, B)."""
    from scipy.stats import rankdata

    # Sums of quarters and roots of squares are exact, so equal orders give exactly 1.
    x = rankdata(a, axis=0) - (len(a) + 1) / 2
    y = x if b is a else rankdata(b, axis=0) - (len(b) + 1) / 2
    scale = np.sqrt(np.outer((x * x).sum(0), (y * y).sum(0)))
    coefficients: np.ndarray = np.divide(x.T @ y, scale, out=np.full(scale.shape, np.nan), where=scale > 0)
    return coefficients.clip(-1, 1)


def _kendall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kendall's tau-b between each column of (N, A) and each column of (N, B), shape (A, B)."""
    from scipy.stats import kendalltau

    scale = np.sqrt(np.outer(_untied(a), _untied(b)))
    coefficients = np.full(scale.shape, np.nan)
    for i, j in zip(*scale.nonzero(), strict=True):
        tau = kendalltau(a[:, i], b[:, j], method="asymptotic").statistic
        # scipy divides by two roots. An integer divided by one root is exactly 1 for equal orders.
        coefficients[i, j] = np.round(tau * scale[i, j]) / scale[i, j]
    return coefficients.clip(-1, 1)


def _untied(numbers: np.ndarray) -> list[float]:
    """For each column, the number of pairs of records that are not tied."""
    counts = (np.unique(column, return_counts=True)[1] for column in numbers.T)
    return [(len(numbers) ** 2 - (count**2).sum()) / 2 for count in counts]


def _intervals(
    kind: str, value: np.ndarray, n: np.ndarray, drawn: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ends (R, C) of the 95 % intervals, from resamples (B, R, C); NaN if few resamples have a value.

    The intervals are Student's intervals on Fisher's scale, atanh. Their standard deviation is the larger of
    two values: the resamples' standard deviation, and the standard deviation for normally distributed columns
    (Bonett and Wright, Psychometrika 65, 2000). The end nearer to 0 is computed from the value times 1 - 1/n.
    For Spearman's rho, the end nearer to 1 is computed from the value after its bias is subtracted (Kendall
    and Gibbons, Rank Correlation Methods, 1990). Percentiles of the resamples would be too narrow if few
    pairs of records disagree: if no pairs disagree in the data, none disagree in any resample.
    """
    count = (~np.isnan(drawn)).sum(0)
    known, few = np.maximum(n, FEWEST), count < _ENOUGH
    most = 1 - 1 / known**2
    scaled = np.where(np.isnan(drawn), 0, np.arctanh(np.clip(drawn, -most, most)))
    mean = scaled.sum(0) / np.maximum(count, 1)
    squares = (np.where(np.isnan(drawn), 0, scaled - mean) ** 2).sum(0)
    rho = np.where(np.isnan(value), 0, value)
    spearman = kind == "spearman"
    normal = (1 + rho**2 / 2) / np.maximum(known - 3, 1) if spearman else 0.437 / np.maximum(known - 4, 1)
    half = special.stdtrit(known - 1, 0.975) * np.sqrt(np.maximum(squares / np.maximum(count - 1, 1), normal))
    outer = np.abs(rho)
    if spearman:  # for normal columns with this rho, tau is 2 / pi * asin(2 * sin(pi * rho / 6))
        tau = 2 / np.pi * np.arcsin(2 * np.sin(np.pi / 6 * outer))
        outer = outer + 3 * (outer - tau) / np.maximum(known - 2, 1)
    inner = np.abs(rho) * (1 - 1 / known)
    far = np.where(outer >= most, 1, np.tanh(np.arctanh(np.minimum(outer, most)) + half))
    near = np.tanh(np.arctanh(np.minimum(inner, most)) - half)
    low, high = np.where(rho < 0, -far, near), np.where(rho < 0, -near, far)
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


# --- sets of results for the same architectures -----------------------------------------------------


class JoinedSets:
    """Records of one set, or of several sets that are joined by the fields `on`.

    With `on`, columns are called LABEL:METRIC. If several records of a set have the same key, the last record
    is used, and `duplicates` counts the other records. `without` counts the records that lack a field of the
    key, and `reason` is the first error for such a record.
    """

    def __init__(self, sets: Mapping[str, Sequence[Mapping[str, Any]]], on: Sequence[str]) -> None:
        self.on = list(on)
        self.duplicates = self.without = 0
        self.reason: RbError | None = None
        look_up = [field(name) for name in on]
        self._rows: dict[str, dict[Key, Mapping[str, Any]]] = {}
        for label, records in sets.items():
            rows: dict[Key, Mapping[str, Any]] = {}
            for place, record in enumerate(records):
                try:
                    key = tuple(value(record) for value in look_up) if on else (place,)
                except RbError as reason:
                    self.without += 1
                    self.reason = self.reason or reason
                    continue
                self.duplicates += key in rows
                rows[key] = record
            if rows:
                self._rows[label] = rows
        self._columns = {label: Columns(list(rows.values())) for label, rows in self._rows.items()}
        self._origin: dict[str, tuple[str, str]] = {}  # maps a column to (set, name in that set)

    @property
    def labels(self) -> list[str]:
        return list(self._rows)

    @property
    def datasets(self) -> list[str]:
        """The data sets in those sets of records that contain several data sets."""
        of_sets = [
            dict.fromkeys(str(record["dataset"]) for record in rows.values() if "dataset" in record)
            for rows in self._rows.values()
        ]
        return list(dict.fromkeys(name for names in of_sets if len(names) > 1 for name in names))

    def resolve(self, items: Iterable[str]) -> list[str]:
        """The columns of these items in all sets. An item that begins with LABEL: has columns only in the
        sets whose label matches. Raises UsageError if an item is missing in all records."""
        return list(dict.fromkeys(name for item in items for name in self._resolved(item)))

    def _resolved(self, item: str) -> list[str]:
        label, colon, bare = item.rpartition(":") if self.on else ("", "", item)
        chosen = expr.expand(label, self._rows) if colon else self.labels
        if not chosen:
            raise UsageError(f"No result set is called '{label}'. Known sets: {', '.join(self._rows)}.")
        names: list[str] = []
        for other in chosen:
            try:
                found = self._columns[other].resolve(bare)
            except UsageError:  # another set may have the metric
                if self.on:
                    continue
                raise
            here = {f"{other}:{name}" if self.on else name: (other, name) for name in found}
            self._origin |= here
            names += here
        if not names:
            raise unknown(bare, dict.fromkeys(name for one in chosen for name in self._columns[one].metrics))
        return names

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """The columns (N, M) from `resolve`, with one row for each joined record; NaN for missing numbers."""
        keys = list(dict.fromkeys(key for rows in self._rows.values() for key in rows))
        values = np.full((len(keys), len(names)), np.nan)
        for place, name in enumerate(names):
            label, metric = self._origin[name]
            numbers = dict(zip(self._rows[label], self._columns[label].column(metric), strict=True))
            values[:, place] = floats([numbers.get(key, math.nan) for key in keys])
        return values
