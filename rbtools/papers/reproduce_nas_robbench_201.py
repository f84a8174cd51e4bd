"""NAS-RobBench-201, with our results next to the paper's: tables 1 and 4 to 7, and the paper's claims.

At full scale, all 6,466 architectures are trained three times on CIFAR-10. At the scales mini and tiny, a few
architectures for each number of none edges are trained on the built-in digits, with four times the distances
(12 and 32 instead of 3 and 8). Results are averaged over seeds before they are compared. The printed values
are in printed/nas-robbench-201-table-*.tsv.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rbtools.papers import estimates, items, printed, reproduce_search
from rbtools.papers import reproduce_nas_bench_201_robustness as jung
from rbtools.papers import sidebyside as side
from rbtools.records import expr
from rbtools.scoring import merge
from rbtools.spaces import nasbench201

PRINTED = "nas-robbench-201-table"
# The columns of table 1; a star marks the robustness dataset of NAS-Bench-201.
COLUMNS_1 = ("clean", "PGD 8", "FGSM 8", "clean*", "PGD 8*", "FGSM 8*")
# Tables 4 and 5 contain the best network for each number of none edges.
BEST = tuple(f"none={number}" for number in range(5))
COLUMNS = (
    *("clean", "FGSM 3", "Square 3", "PGD 3", "PGD 8", "PGD 16", "PGD 32", "PGD 64"),
    *("PGD 128", "PGD 255"),  # 0 in every row
)
ROBUST = ("FGSM 3", "PGD 3", "FGSM 8", "PGD 8", "AA 8")  # from section 3.1; section 3.2 uses their mean
COLUMNS_6 = ("PGD 3", "FGSM 3", "PGD 8", "FGSM 8")
COLUMNS_7 = ("clean", "FGSM 3", "PGD 3", "FGSM 8", "PGD 8")
# The searches of table 7 that derive a cell from a supernet, with their names in `rb-search`. The paper does
# not print these cells.
DERIVED = {"nasi": "NASI", "advrush": "AdvRush", "darts": "DARTS"}
# The cell that DARTS-V1 derived on CIFAR-10 in NAS-Bench-201's own three runs (D-X-Y/AutoDL-Projects,
# exps/algos-v2/README.md): only skip connections.
DARTS_CELL = "|skip_connect~0|+|skip_connect~0|skip_connect~1|+|skip_connect~0|skip_connect~1|skip_connect~2|"


# The best mean accuracy under FGSM and PGD at 3 and 8, by the caption of figure 8.
BEST_MEANS: side.Values = {
    "best here": {"best mean": 0.6},
    "best of the robustness dataset": {"best mean": 0.3},
}


def metrics(scale: str) -> Mapping[str, str]:
    return items.paper("nas-robbench-201", scale).columns


SHARE = "share of all"
# The signs in table 4 that gradients are not obstructed: these accuracies do not increase in this order.
SIGNS = {
    **{f"a) FGSM is not stronger than PGD ({eps})": (f"FGSM {eps}", f"PGD {eps}") for eps in (3, 8)},
    **{f"b) Square is not stronger than PGD ({eps})": (f"Square {eps}", f"PGD {eps}") for eps in (3, 8)},
    "c) accuracy is 0 without a bound (PGD 255)": ("zero", "PGD 255"),
    "d) accuracy falls with the distance": ("PGD 3", "PGD 8", "PGD 16", "PGD 32"),
    **{f"e) noise is not stronger than PGD ({eps})": (f"random {eps}", f"PGD {eps}") for eps in (3, 8)},
}


def sample(records: side.Records) -> side.Records:
    """The records of the sampled architectures, without the cells that searches derived for table 7."""
    return [record for record in records if "search" not in record]


def for_figures(records: side.Records) -> side.Records:
    """The records that figures show, one for each architecture and data set, with means over seeds."""
    groups = defaultdict(list)
    for record in sample(records):
        groups[record.get("dataset"), record["arch"]["str"]].append(record)
    return [merge.merged(some, {"over": ["seed"]}) if len(some) > 1 else some[0] for some in groups.values()]


def networks(records: side.Records, scale: str) -> side.Records:
    """For each architecture, the means over seeds and the number of none edges."""
    some = side.of_first_set(sample(records))
    corruptions = printed.read(f"{PRINTED}-6")
    wanted = {**metrics(scale), **{name: f"corrupt.{name}.5" for name in corruptions}}
    wanted |= {f"{name} at severity 1": f"corrupt.{name}.1" for name in corruptions}
    values = side.means(some, lambda record: record["arch"]["str"], wanted)
    archs = {record["arch"]["str"]: record["arch"] for record in some}
    return [
        {**values.get(name, {}), "none": arch["none"], "class": arch["class"]} for name, arch in archs.items()
    ]


def best_by_none(rows: Sequence[dict[str, Any]]) -> side.Values:
    """For each number of none edges, the architecture with the best mean robust accuracy."""
    found: side.Values = {}
    for none in sorted({one["none"] for one in rows}):
        some = [one for one in rows if one["none"] == none]
        found[f"none={none}"] = max(some, key=robust)
    return found


def robust(one: Mapping[str, Any]) -> float:
    """The sum of a network's robust accuracies. A missing accuracy counts as 0."""
    return sum(one.get(name) or 0.0 for name in ROBUST)


def best_ten(rows: Sequence[dict[str, Any]]) -> side.Values:
    """Figure 4: the operations of the ten networks with the best mean robust accuracy, and on how many edges
    3x3 convolutions are at least as frequent as any other operation; {} for ten networks or fewer."""
    if len(rows) <= 10:
        return {}
    cells = nasbench201.cells()
    edges = jung.operations([cells[one["class"]] for one in sorted(rows, key=robust, reverse=True)[:10]])
    led = sum(
        counts["nor_conv_3x3"] == max(value or 0.0 for value in counts.values()) for counts in edges.values()
    )
    return {**edges, "ten best": {"edges of 3x3 convolutions": float(led)}}


def across_sets(records: side.Records, scale: str) -> side.Row:
    """Figure 3c: for each pair of data sets, the rank correlation between the mean robust accuracies."""
    robust_by_class: dict[int, dict[str, Any]] = defaultdict(dict)
    some = sample(records)
    sets = list(dict.fromkeys(str(record.get("dataset")) for record in some))
    for name in sets:
        for one in networks([record for record in some if str(record.get("dataset")) == name], scale):
            robust_by_class[one["class"]][name] = robust(one)
    rows = list(robust_by_class.values())
    return {
        f"{one} and {other}": side.correlation(rows, one, other)
        for one, other in itertools.combinations(sets, 2)
    }


def of_kernels(rows: Sequence[dict[str, Any]], kernels: Sequence[str]) -> side.Values:
    """Figures 5 and 6: rank correlations of the kernels' scores with accuracies, and the means of these
    correlations for the kernels of FGSM and for the kernels of PGD."""
    found: side.Values = {
        name: {column: side.correlation(rows, name, column) for column in COLUMNS_7} for name in kernels
    }
    of_fgsm = [name for name in kernels if name.startswith("FGSM ")]
    of_pgd = [name.removeprefix("FGSM ") for name in of_fgsm]
    means: side.Row = {}
    for attack, some in (("FGSM", of_fgsm), ("PGD", of_pgd)):
        values = [value for name in some for value in found[name].values() if value is not None]
        means[attack] = sum(values) / len(values) if values else None
    return {**found, "mean over kernels": means}


def of_rank(rows: Sequence[dict[str, Any]]) -> side.Row:
    """Figure 3b: how far the ranks by clean accuracy and by PGD 8 are apart, as a share of all networks, in
    the tenth that is best and in the tenth that is worst on clean images. (Correlations within any tenth
    would be low, because its range is small.)"""
    import numpy as np
    from scipy import stats

    known = [(one["clean"], one["PGD 8"]) for one in rows if "clean" in one and "PGD 8" in one]
    ranks = stats.rankdata(-np.array(known).reshape(-1, 2), axis=0)
    apart = (np.abs(ranks[:, 0] - ranks[:, 1]) / max(len(known), 1))[np.argsort(ranks[:, 0], kind="stable")]
    tenth = len(known) // 10
    return {
        "best tenth": estimates.mean(apart[:tenth]),
        "worst tenth": estimates.mean(apart[len(known) - tenth :]),
    }


def medians(rows: Sequence[dict[str, Any]]) -> side.Values:
    """Figure 7: for each corruption, the median accuracy at severity 1 and at severity 5."""
    found: side.Values = {}
    for name in printed.read(f"{PRINTED}-6"):
        for column, metric in ("severity 1", f"{name} at severity 1"), ("severity 5", name):
            value = estimates.median([one[metric] for one in rows if metric in one])
            if value is not None:
                found.setdefault(name, {})[column] = value
    return found


def extremes(rows: Sequence[Mapping[str, Any]]) -> side.Values:
    """The lowest and the highest accuracy under FGSM at 3."""
    values = [one["FGSM 3"] for one in rows if one.get("FGSM 3") is not None]
    if not values:
        return {}
    return {"lowest": {"FGSM 3": min(values)}, "highest": {"FGSM 3": max(values)}}


def best_means(records: side.Records, others: side.Records, scale: str) -> side.Values:
    """Figure 8: the best mean accuracy under FGSM and PGD at 3 and 8, here and in the robustness dataset."""
    theirs = expr.Expression(
        items.paper("nas-robbench-201", scale).items["figure 8"].panels[""][0].options["by"]
    )
    found: side.Values = {}
    here = [
        sum(one[name] for name in COLUMNS_6) / len(COLUMNS_6)
        for one in networks(records, scale)
        if all(name in one for name in COLUMNS_6)
    ]
    there = [
        float(theirs(one)) for one in side.of_first_set(others) if {*theirs.names} <= one["metrics"].keys()
    ]
    for name, values in zip(BEST_MEANS, (here, there), strict=True):
        if values:
            found[name] = {"best mean": max(values)}
    return found


def claims(records: side.Records, scale: str, made: side.Tables) -> list[side.Claim]:
    rows = networks(records, scale)
    paper = items.paper("nas-robbench-201", scale)
    kernels = [name for name in paper.columns if "kernel" in name]
    pairs, shares = itertools.combinations(COLUMNS_1[:3], 2), medians(rows)
    compared = {
        **{f"network {place}": one for place, one in enumerate(rows)},
        **best_by_none(rows),
        **{name: {**row, **shares.get(name, {})} for name, row in with_corruptions(rows).items()},
        **of_kernels(rows, kernels),
        **best_ten(rows),
        "mean robust accuracy": across_sets(records, scale),
        **made["table 2"].ours,
        "Spearman": {f"{one} and {other}": side.correlation(rows, one, other) for one, other in pairs},
        "ranks by clean and by PGD 8": of_rank(rows),
        **extremes(rows),
        **made["best means"].ours,
    }
    printed_rows = of_paper()
    return [
        side.beside(side.tested(words, tests, compared), side.tested(words, tests, printed_rows))
        for words, tests in paper.claims
    ]


def of_paper() -> side.Values:
    """The printed values that claims compare."""
    tables = {number: printed.read(f"{PRINTED}-{number}") for number in (1, 2, 5, 6, 7)}
    pairs = {
        f"{one} and {other}": tables[1][one][other] for one, other in itertools.combinations(COLUMNS_1[:3], 2)
    }
    known = extremes([*tables[5].values(), *tables[7].values()])
    return {**tables[2], **tables[5], **tables[6], "Spearman": pairs, **known, **BEST_MEANS}


def with_corruptions(rows: Sequence[dict[str, Any]]) -> side.Values:
    """Table 6: rank correlations of the accuracy under each corruption with the accuracy under attacks."""
    return {
        name: {column: side.correlation(rows, name, column) for column in COLUMNS_6}
        for name in printed.read(f"{PRINTED}-6")
        if any(name in one for one in rows)
    }


def across(rows: Sequence[dict[str, Any]], others: side.Records, scale: str) -> side.Records:
    """The rows, with the (starred) columns of the robustness dataset for the architectures in it."""
    columns = {f"{name}*": jung.metrics(scale)[name] for name in ("clean", "PGD 8", "FGSM 8")}
    at = side.means(side.of_first_set(others), lambda record: record["arch"]["class"], columns)
    return [{**one, **at.get(one["class"], {})} for one in rows]


def tables(
    records: side.Records, scale: str, others: side.Records | None = None
) -> dict[str, side.PaperTable]:
    """Tables 1, 2, 4, 5, 6 and 7, as far as these records have the necessary metrics. `others` contains
    records of the robustness dataset of NAS-Bench-201, for the second half of table 1."""
    rows = networks(records, scale)
    starred = across(rows, others or [], scale)
    paper = {number: printed.read(f"{PRINTED}-{number}") for number in (1, 2, 4, 5, 6, 7)}
    pairs = list(itertools.combinations(COLUMNS_1 if others else COLUMNS_1[:3], 2))
    best = best_by_none(rows)

    def table(
        number: int, what: str, ours: side.Rows, columns: Sequence[str], **show: Any
    ) -> side.PaperTable:
        return side.PaperTable(f"Table {number}, {what}", paper[number], ours, columns, **show)

    def correlation(column: str, value: float) -> str:
        return f"{value:.3f}"

    def sign(column: str, value: float) -> str:
        return side.percent(value) if column == SHARE else f"{value:g}"

    table_1 = {", ".join(pair): {"Spearman": side.correlation(starred, *pair)} for pair in pairs}
    paper[1] = {
        f"{one}, {other}": {"Spearman": paper[1][one][other]}
        for one, other in itertools.combinations(COLUMNS_1, 2)
    }
    paper[7] = {name: values for name, values in paper[7].items() if name not in paper[2]}
    signs = "signs that gradients are not obstructed: 1 if a sign is present"
    return {
        "table 1": table(1, "rank correlations", table_1, ("Spearman",), show=correlation),
        "table 2": searches(records, scale),
        "table 4": table(4, signs, criteria(rows, best), (*BEST, SHARE), show=sign),
        "table 5": table(5, "by number of none edges", best, COLUMNS),
        "table 6": table(
            6, "rank correlations with attacks", with_corruptions(rows), COLUMNS_6, show=correlation
        ),
        "table 7": table(7, "found without training", without_training(records, scale), COLUMNS_7),
        "best means": side.PaperTable(
            "Best mean accuracy under FGSM and PGD (figure 8)",
            BEST_MEANS,
            best_means(records, others or [], scale),
            ("best mean",),
        ),
    }


def searches(records: side.Records, scale: str) -> side.PaperTable:
    """Table 2; the optimum is the network with the best mean robust accuracy."""
    names = metrics(scale)
    columns = {
        column: names[name] for column, name in zip(reproduce_search.ROBBENCH.columns, COLUMNS_7, strict=True)
    }
    records = sample(records)
    table = reproduce_search.on_records(
        reproduce_search.ROBBENCH, columns, records, scale, "Table 2, results of searches"
    )
    if not table.ours:
        return table
    known = [one for one in side.of_first_set(records) if set(columns.values()) <= one["metrics"].keys()]
    rows = side.means(known, lambda record: record["arch"]["str"], columns | {"AA 8": names["AA 8"]})
    best = max(rows.values(), key=lambda row: sum(row[name] or 0.0 for name in row if name != "Clean"))
    ours = {"optimal": best, **table.ours}
    ours.pop("best there is", None)
    return table._replace(ours=ours)


def criteria(rows: Sequence[dict[str, Any]], best: side.Values) -> side.Values:
    """Table 4: for each order of columns in `SIGNS`, whether the best networks have this order, and the share
    of all networks that have this order."""
    found: side.Values = {}
    for words, columns in SIGNS.items():
        known = [sign for one in rows if (sign := has_sign(one, columns)) is not None]
        found[words] = {
            **{name: has_sign(one, columns) for name, one in best.items()},
            SHARE: sum(known) / len(known) if known else None,
        }
    return found


def has_sign(one: dict[str, Any], columns: Sequence[str]) -> float | None:
    """1 if no column has a higher value than the previous column, otherwise 0; None for a missing column."""
    known = {**one, "zero": 0.0}
    if any(known.get(name) is None for name in columns):
        return None
    return float(all(known[high] >= known[low] for high, low in itertools.pairwise(columns)))


def without_training(records: side.Records, scale: str) -> side.Values:
    """Table 7: the network with the best training-free score, the cells that differentiable searches derived,
    and the cell of DARTS-V1 in NAS-Bench-201."""
    metric_of = metrics(scale)
    columns = {name: metric_of[name] for name in COLUMNS_7}
    found: side.Values = {}
    some = for_figures(side.of_first_set(records))
    for name in ("KNAS", "EigenNAS", "NASWOT"):
        metric = metric_of[name]
        known = [one for one in some if one["metrics"].get(metric) is not None]
        if known:
            first = max(known, key=lambda record: record["metrics"][metric])
            found[name] = {column: first["metrics"].get(other) for column, other in columns.items()}

    def row(record: dict[str, Any]) -> str | None:
        if record["arch"]["str"] == DARTS_CELL and "search" not in record:
            return "DARTS, cell of NAS-Bench-201"
        return DERIVED.get(record.get("search", {}).get("algorithm", ""))

    return found | side.means(side.of_first_set(records), row, columns)
