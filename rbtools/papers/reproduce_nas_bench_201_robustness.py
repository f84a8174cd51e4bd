"""The robustness dataset of NAS-Bench-201 (Jung et al. 2023), with our results next to the paper's: table 1,
and the paper's claims.

At full scale, the published weights of all 6,466 architectures are evaluated on CIFAR-10, CIFAR-100 and
ImageNet16-120, and under corruptions on CIFAR-10-C and CIFAR-100-C. At the scales mini and tiny, a few small
networks are trained without attacks on the built-in digits. The digits are easy, so a distance of 16/255
replaces the paper's 1/255.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rbtools.formats import FORMATS, ConversionReport, Unit
from rbtools.papers import estimates, items, printed, reproduce_search
from rbtools.papers import sidebyside as side
from rbtools.records import metric_name
from rbtools.spaces import nasbench201

COLUMNS = ("clean", "FGSM", "PGD", "APGD", "Square", "CIFAR-10-C")
ATTACKS_AT_NEAR = COLUMNS[1:5]
# Spearman's correlations between columns of the dataset at eps 8, from NAS-RobBench-201's table 1.
CORRELATIONS = {"clean, PGD 8": 0.322, "clean, FGSM 8": 0.891, "PGD 8, FGSM 8": 0.487}
# Mean accuracy under attacks of the worst and the best network with 18 kernel parameters (section 4.3), and
# with any equal number of parameters (abstract). The mean is over all attacks and distances.
SPREADS = {"18 kernel parameters": (0.21, 0.40), "one number of parameters": (0.20, 0.41)}
ATTACKS = ("fgsm", "pgd40", "apgd-ce", "square")
# Published values of one architecture, at full scale: clean accuracy, and accuracy under PGD at 1.
KNOWN = 13433, {"clean": 0.893, "PGD": 0.336}


def metrics(scale: str) -> Mapping[str, str]:
    return items.paper("robustness-dataset", scale).columns


def networks(records: side.Records, scale: str) -> side.Values:
    """Maps each architecture to its values by column. The mean over corruptions omits missing severities."""
    for record in side.of_first_set(records):
        names = [name for name in record["metrics"] if metric_name.parse(name).over == "severity"]
        some = [record["metrics"][name] for name in names]
        if some:
            record["metrics"].setdefault("corrupt.mean", sum(some) / len(some))
    return side.means(side.of_first_set(records), lambda record: record["arch"]["name"], metrics(scale))


def under_attack(record: dict[str, Any]) -> float | None:
    """The mean accuracy over the paper's attacks and all their distances."""
    values = [value for name, value in record["metrics"].items() if name.partition(".")[0] in ATTACKS]
    return sum(values) / len(values) if values else None


def under_corruptions(record: dict[str, Any]) -> float | None:
    """The mean accuracy over corruptions, which `networks` adds to a record."""
    value: float | None = record["metrics"].get("corrupt.mean")
    return value


def spreads(records: side.Records) -> side.Values:
    """The worst and the best mean accuracy under attack of two groups: all networks with 18 kernel
    parameters, and the networks with the number of parameters for which the worst and the best differ
    most."""
    known = [(one, value) for one in side.of_first_set(records) if (value := under_attack(one)) is not None]
    groups: dict[int, list[float]] = {}
    for record, value in known:
        groups.setdefault(record["arch"]["params"], []).append(value)
    rows = {
        "18 kernel parameters": [v for one, v in known if one["arch"].get("live_kernel_params") == 18],
        "one number of parameters": max(groups.values(), key=lambda some: max(some) - min(some), default=[]),
    }
    return {
        name: {"lowest": min(some), "highest": max(some), "networks": float(len(some))}
        for name, some in rows.items()
        if len(some) > 1
    }


def operations(best: Sequence[nasbench201.Ops]) -> side.Values:
    """For each edge and operation, the number of cells that have this operation on this edge."""
    return {
        f"edge {edge + 1}": {
            op: float(sum(cell[edge] == at for cell in best)) for at, op in enumerate(nasbench201.OPS)
        }
        for edge in range(len(nasbench201.EDGES))
    }


def best_twenty(
    records: side.Records,
    by: Callable[[dict[str, Any]], float | None] = under_attack,
    ending: str = "",
) -> side.Values:
    """Figures 7 and 29: the operations of the twenty best networks (by default under attack) with 18 kernel
    parameters, and how many of these networks stack convolutions; {} for twenty networks or fewer. The names
    of rows end with `ending`."""
    some = [one for one in side.of_first_set(records) if one["arch"].get("live_kernel_params") == 18]
    known = [(value, one["arch"]) for one in some if (value := by(one)) is not None]
    if len(known) <= 20:
        return {}
    known.sort(key=lambda pair: pair[0], reverse=True)
    cells = [nasbench201.ops_of(arch) for _, arch in known[:20]]
    convolutions = {nasbench201.CONV1, nasbench201.CONV3}
    stacked = sum(
        cell[0] in convolutions and not convolutions.isdisjoint((cell[2], cell[4])) for cell in cells
    )
    rows: side.Values = {**operations(cells), "twenty best": {"with stacked convolutions": float(stacked)}}
    return {f"{name}{ending}": row for name, row in rows.items()}


def changes(records: side.Records, scale: str) -> float | None:
    """Figure 26: on how many edges the best network on clean images and the best network under corruptions
    have different operations."""
    names = [metrics(scale)[column] for column in ("clean", "CIFAR-10-C")]
    known = [one for one in side.of_first_set(records) if set(names) <= one["metrics"].keys()]
    if not known:
        return None
    best = [max(known, key=lambda one: one["metrics"][name])["arch"] for name in names]
    return float(nasbench201.edit_distance(*map(nasbench201.ops_of, best)))


def between_sets(records: side.Records, scale: str) -> side.Row:
    """Figure 17: for each attack, Kendall's tau between the accuracies on two data sets, averaged over all
    pairs of data sets."""
    by_class: dict[int, dict[str, Any]] = {}
    for record in records:
        by_class.setdefault(record["arch"].get("class"), {})[record.get("dataset", "")] = record["metrics"]
    pairs = list(itertools.combinations(dict.fromkeys(record.get("dataset", "") for record in records), 2))
    found: side.Row = {}
    for column in ATTACKS_AT_NEAR:
        name = metrics(scale)[column]
        joined = [
            {dataset: values[name] for dataset, values in one.items() if name in values}
            for one in by_class.values()
        ]
        values = [side.correlation(joined, *pair, measure="kendalltau") for pair in pairs]
        known = [value for value in values if value is not None]
        found[column] = sum(known) / len(known) if known else None
    return found


def by_distance(records: side.Records, scale: str, measure: str) -> side.Row:
    """Figure 6: the absolute value of Kendall's tau between a measure and the accuracy under attacks."""
    rows, names = [one["metrics"] for one in side.of_first_set(records)], metrics(scale)
    found = {
        column: side.correlation(rows, names[measure], names[column], measure="kendalltau")
        for column in ("FGSM", "PGD", "APGD", "PGD 8", "APGD 8")
    }
    return {column: None if value is None else abs(value) for column, value in found.items()}


def of_classes(records: side.Records) -> dict[int, side.Row]:
    """The kernel parameters of each cell, and its clean accuracy and means under attack and corruptions."""
    return {
        one["arch"]["class"]: {
            "kernel parameters": one["arch"].get("live_kernel_params"),
            "clean": one["metrics"].get("acc"),
            "under attack": under_attack(one),
            "under corruptions": under_corruptions(one),
        }
        for one in side.of_first_set(records)
        if "class" in one["arch"]
    }


def around_best(rows: Mapping[int, side.Row]) -> side.Values:
    """Figure 30: #13714, its neighbours, and how many of these trade clean accuracy for robust accuracy. A
    count of 0 is left out if some neighbours are missing."""
    index, cells = 13714, nasbench201.cells()
    found: side.Values = {}
    for place, other in enumerate(nasbench201.neighbours(index)):
        edge = place // (len(nasbench201.OPS) - 1)
        if (row := rows.get(nasbench201.classes()[other])) is not None:
            found[f"edge {edge + 1} to {nasbench201.OPS[cells[other][edge]]}"] = row
    best = rows.get(index)
    if best is None or not found:
        return {}
    traded = [
        row
        for row in found.values()
        if (_gap(row["under attack"], best["under attack"]) or 0.0) > 0.0
        and (_gap(best["clean"], row["clean"]) or 0.0) > 0.0
    ]
    result = {f"#{index}": best, **found}
    if traded or len(found) == len(nasbench201.neighbours(index)):
        result["neighbours"] = {"with more under attack and less clean": float(len(traded))}
    return result


def between_corruptions(records: side.Records) -> side.Row:
    """Figure 5: the median of |tau|, Kendall's rank correlation of the accuracies under two corruptions of
    severity 3, over all pairs of corruptions, with a bootstrap interval over the networks."""
    import numpy as np

    from rbtools.scoring import correlate

    rows = [one["metrics"] for one in side.of_first_set(records)]
    names = sorted({name for row in rows for name in row if re.fullmatch(r"corrupt\..*\.3", name)})
    numbers = np.array([correlate.floats([row.get(name) for name in names]) for row in rows], float)
    if len(names) < 2:
        return {}
    first, second = np.triu_indices(len(names), 1)

    def of(some: np.ndarray) -> float:
        tau = correlate.matrix("kendall", names, numbers[some], names, names).value
        known = np.abs(tau[first, second])
        return float(np.median(known[~np.isnan(known)])) if not np.isnan(known).all() else math.nan

    value = of(np.arange(len(rows)))
    if math.isnan(value):
        return {}
    # More than a thousand networks hardly change the interval, whose length is then about that of a thousand.
    draws = np.random.default_rng(0).integers(len(rows), size=(40, min(len(rows), 1000)))
    low, high = np.nanquantile([*map(of, draws), value], [0.025, 0.975])
    return {"median |tau|": estimates.WithInterval(value, float(low), float(high))}


def of_confidence(records: side.Records) -> side.Values:
    """Figures 14 and 15, means over networks: how confidences under FGSM depend on its distance (Kendall's
    tau, for class 0 including clean images), and how much the confidence in wrong predictions rises up to the
    distance at which it is highest and falls beyond. This distance is chosen on half of the networks and used
    for the others."""
    import numpy as np

    shown = [one["confidences"] for one in side.of_first_set(records) if "confidences" in one]
    names = sorted({*shown[0]} if shown else (), key=lambda name: float(name.partition(".")[2] or 0))
    known = [one for one in shown if one.keys() == {*names} and None not in itertools.chain(*one.values())]
    if len(known) < 6 or len(names) < 4:
        return {}
    steps: side.Row = {}
    for column, part, some in ("where correct", 0, names[1:]), ("of class 0 on its images", 2, names):
        numbers = np.array([[one[name][part] for name in some] for one in known])
        nearer, farther = np.triu_indices(len(some), 1)
        signs = np.sign(numbers[:, farther] - numbers[:, nearer])
        untied = np.abs(signs).sum(1)
        steps[column] = estimates.mean(signs[untied > 0].sum(1) / np.sqrt(len(nearer) * untied[untied > 0]))
    wrong = [[one[name][1] for name in names[1:]] for one in known]
    peak = max(range(len(names) - 1), key=lambda place: sum(one[place] for one in wrong[::2]))
    gaps = {"rise": 0, "fall": -1}
    return {
        "confidence over the distance": steps,
        "confidence where wrong": {
            name: estimates.mean([one[peak] - one[end] for one in wrong[1::2]]) for name, end in gaps.items()
        },
    }


def chosen_by(rows: side.Rows, column: str) -> side.Row:
    """The row with the largest value in a column."""
    some = [row for row in rows.values() if row.get(column) is not None]
    return dict(max(some, key=lambda row: row[column] or 0.0)) if some else {}


def claims(records: side.Records, scale: str, made: side.Tables) -> list[side.Claim]:
    rows = networks(records, scale)
    best = {column: chosen_by(rows, column).get(column) for column in COLUMNS}
    clean = chosen_by(rows, "clean")
    listed, of_all = list(rows.values()), of_classes(records)
    compared: side.Rows = {
        "best": best,
        "best on clean": clean,
        "Spearman": {name: side.correlation(listed, "clean", name) for name in ("FGSM 8", "PGD 8")},
        "loss": {name: _gap(high, clean.get(name)) for name, high in best.items()},
        **spreads(records),
        **best_twenty(records),
        "best networks": {"changes of operations": changes(records, scale)},
        "between data sets": between_sets(records, scale),
        **{name: by_distance(records, scale, name) for name in ("Jacobian", "Hessian")},
        **(made["table 1"].ours if "table 1" in made else {}),
        **best_twenty(records, under_corruptions, " by corruptions"),
        "kernel parameters": {
            **estimates.correlations(
                [*of_all.values()], "kernel parameters", ("under attack", "under corruptions")
            )
        },
        **around_best(of_all),
        "between corruptions": between_corruptions(records),
        **of_confidence(records),
    }
    paper = items.paper("robustness-dataset", scale)
    printed_rows = of_paper()
    return [
        side.beside(side.tested(words, tests, compared), side.tested(words, tests, printed_rows))
        for words, tests in paper.claims
    ]


def of_paper() -> side.Values:
    """The printed values that claims compare."""
    rows = reproduce_search.printed_values(reproduce_search.JUNG)
    best = {**rows["best there is"], "clean": rows["best there is"]["Clean"]}
    return {**rows, "best": best, **ranges()}


def ranges() -> side.Values:
    return {name: {"lowest": low, "highest": high} for name, (low, high) in SPREADS.items()}


def _gap(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else high - low


def tables(records: side.Records, scale: str) -> dict[str, side.PaperTable | side.Excerpt]:
    """Table 1, the excerpts in figures 10 to 12, the claims with numbers, the correlations that another paper
    reports for these columns, and the values of one known architecture."""
    rows = networks(records, scale)
    listed = list(rows.values())
    correlations = {pair: {"Spearman": side.correlation(listed, *pair.split(", "))} for pair in CORRELATIONS}
    printed = {pair: {"Spearman": value} for pair, value in CORRELATIONS.items()}
    made: dict[str, side.PaperTable | side.Excerpt] = {
        "table 1": searches(records, scale),
        **excerpts(side.of_first_set(records)),
        "spreads": side.PaperTable(
            "Mean accuracy under attack (section 4.3, abstract)",
            ranges(),
            spreads(records),
            ("lowest", "highest", "networks"),
            lambda column, value: f"{value:.0f}" if column == "networks" else side.percent(value),
        ),
        "correlations": side.PaperTable(
            "Rank correlations of the dataset (NAS-RobBench-201, table 1, starred)",
            printed,
            correlations,
            ("Spearman",),
            lambda column, value: f"{value:.3f}",
        ),
    }
    number, known = KNOWN
    if scale == "full":
        mine = {f"#{number}": rows.get(f"nb201-{number}", {})}
        made["known"] = side.PaperTable("One architecture", {f"#{number}": known}, mine, ("clean", "PGD"))
    return made


def excerpts(records: side.Records) -> dict[str, side.PaperTable | side.Excerpt]:
    """The excerpts in figures 10 to 12. Ours are from files that rb-convert writes for architecture #0, or
    else for the first record."""
    if not records:
        return {name: side.PaperTable(name, {}, {}, ()) for name in ("figure 10", "figure 11", "figure 12")}
    written = FORMATS.build("jung2023")
    shown_first = next((one for one in records if one["arch"].get("index") == 0), records[0])
    documents = written.documents([Unit("", written.unit(shown_first))], ConversionReport())
    files = {one.path.rpartition("/")[2]: json.loads(one.content) for one in documents}
    meta = files["meta.json"]
    shown = {**meta, "ids": {index: meta["ids"][index] for index in ("21", "1832")}}
    made: dict[str, side.PaperTable | side.Excerpt] = {
        "figure 10": side.Excerpt("Excerpt of meta.json", _json(shown)),
        "figure 11": _accuracies(files),
    }
    if "clean_confidence.json" in files:
        shown = _without_numbers(files["clean_confidence.json"])
        made["figure 12"] = side.Excerpt("Excerpt of clean_confidence.json", _json(shown))
    return made


def _accuracies(files: Mapping[str, Any]) -> side.PaperTable:
    """Figure 11: the accuracy of one architecture on clean images and under PGD."""
    ours: side.Values = {}
    distances = [f"PGD {distance:g}" for distance in files["meta.json"]["epsilons"].get("pgd@Linf", ())]
    for name, key, columns in (("clean", "clean", ["clean"]), ("pgd@Linf", "pgd@Linf", distances)):
        for of_set in files.get(f"{name}_accuracy.json", {}).values():
            for index, value in of_set[key]["accuracy"].items():
                values = value if isinstance(value, list) else [value]
                ours.setdefault(f"#{index}", {}).update(zip(columns, values, strict=True))
    paper = printed.read("jung2023-figure-11")
    columns = list(dict.fromkeys([*paper["#0"], *(column for row in ours.values() for column in row)]))
    return side.PaperTable(
        "Excerpts of clean_accuracy.json and pgd_accuracy.json",
        paper,
        ours,
        columns,
        lambda column, value: f"{value:.3f}",
    )


def _without_numbers(value: Any) -> Any:
    """A JSON value in which a single mark replaces the numbers of each list, as in the paper."""
    if isinstance(value, dict):
        return {key: _without_numbers(one) for key, one in value.items()}
    return f"[{_without_numbers(value[0])}]" if isinstance(value, list) and value else "…"


def _json(value: Any) -> str:
    """A JSON text with one line for each field; lists are on one line, and marks have no quotes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)
    return re.sub(r'"(\[*…\]*)"', r"\1", text)


def searches(records: side.Records, scale: str) -> side.PaperTable:
    """Table 1: the mean result over the runs of each search, and the best value of each column."""
    networks(records, scale)  # this adds the mean over corruptions
    names = metrics(scale)
    columns = {column: names[column.replace("Clean", "clean")] for column in reproduce_search.JUNG.columns}
    return reproduce_search.on_records(reproduce_search.JUNG, columns, records, scale, "Table 1 (eps 1)")
