"""NAS-RobBench-201 beside ours: tables 1 and 4 to 7, and the paper's claims.

At full scale all 6,466 architectures are trained three times on CIFAR-10. mini and tiny train a few of each
number of none edges on the built-in digits, at distances four times as large (12 and 32 for 3 and 8).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rbtools.papers import reproduce_nas_bench_201_robustness as jung
from rbtools.papers import reproduce_search
from rbtools.papers import sidebyside as side

SETS = (*side.IMAGES, "cifar10-c", "cifar100-c")  # data sets of the full scale
# Table 1: Spearman's rank correlation on CIFAR-10; with a star the robustness dataset of NAS-Bench-201. These
# nine of its fifteen metrics are available.
COLUMNS_1 = ("clean", "PGD 8", "FGSM 8", "clean*", "PGD 8*", "FGSM 8*")
TABLE_1 = {
    "clean, PGD 8": 0.985,
    "clean, FGSM 8": 0.989,
    "PGD 8, FGSM 8": 0.998,
    "clean, clean*": 0.977,
    "PGD 8, PGD 8*": 0.382,
    "FGSM 8, FGSM 8*": 0.931,
    "clean*, PGD 8*": 0.322,
    "clean*, FGSM 8*": 0.891,
    "PGD 8*, FGSM 8*": 0.487,
}
# Table 5: the best architecture by its number of none edges.
COLUMNS = (
    *("clean", "FGSM 3", "Square 3", "PGD 3", "PGD 8", "PGD 16", "PGD 32", "PGD 64"),
    *("PGD 128", "PGD 255"),  # 0 in every row
)
TABLE_5 = {
    "0": (0.7946, 0.6975, 0.6929, 0.6924, 0.4826, 0.1774, 0.0083, 0.0),
    "1": (0.7928, 0.6933, 0.6884, 0.6874, 0.4798, 0.1744, 0.0077, 0.0),
    "2": (0.7842, 0.6832, 0.6786, 0.6779, 0.4711, 0.1739, 0.0080, 0.0),
    "3": (0.7456, 0.6515, 0.6482, 0.6472, 0.4442, 0.1599, 0.0079, 0.0),
    "4": (0.5320, 0.4560, 0.4427, 0.4528, 0.3191, 0.1393, 0.0193, 0.0010),
}
# Table 6: Spearman of CIFAR-10-C at severity 5 with PGD at 3 and 8; that with FGSM is within .004 of it.
COLUMNS_6 = ("PGD 3", "PGD 8", "FGSM 3", "FGSM 8")
TABLE_6 = {
    "shot_noise": (0.984, 0.965),
    "motion_blur": (0.990, 0.980),
    "snow": (0.995, 0.989),
    "pixelate": (0.996, 0.984),
    "gaussian_noise": (0.981, 0.961),
    "defocus_blur": (0.993, 0.983),
    "brightness": (0.993, 0.984),
    "fog": (0.916, 0.918),
    "zoom_blur": (0.992, 0.978),
    "frost": (0.991, 0.985),
    "glass_blur": (0.993, 0.981),
    "impulse_noise": (0.947, 0.936),
    "contrast": (-0.555, -0.574),
    "jpeg_compression": (0.996, 0.984),
    "elastic_transform": (0.995, 0.984),
}
# Table 7: the results of searches without training, in thousandths.
COLUMNS_7 = ("clean", "FGSM 3", "PGD 3", "FGSM 8", "PGD 8")
TABLE_7 = {
    "KNAS": (767, 675, 670, 521, 472),
    "EigenNAS": (766, 674, 668, 520, 471),
    "NASWOT": (766, 674, 668, 520, 471),
    "NASI": (666, 571, 567, 410, 379),
    "AdvRush": (587, 492, 489, 352, 330),
    "DARTS": (332, 286, 285, 215, 213),
}
# The names in `rb-search` of the searches of table 7 that derive a cell from a supernet. The paper prints no
# cell.
DERIVED = {"nasi": "NASI", "advrush": "AdvRush", "darts": "DARTS"}
# The cell that DARTS-V1 derived on CIFAR-10 in NAS-Bench-201's own three runs (D-X-Y/AutoDL-Projects,
# exps/algos-v2/README.md): skip connections alone.
DARTS_CELL = "|skip_connect~0|+|skip_connect~0|skip_connect~1|+|skip_connect~0|skip_connect~1|skip_connect~2|"


def metrics(scale: str) -> dict[str, str]:
    """Column -> metric of our records."""
    near, far = ("3", "8") if scale == "full" else ("12", "32")
    distances = ("16", "32", "64") if scale == "full" else ("64", "128", "255")
    steps = "3" if scale == "tiny" else "20"
    names = {"clean": "acc", "FGSM 3": f"fgsm.{near}", "FGSM 8": f"fgsm.{far}", "Square 3": f"square.{near}"}
    names |= {"PGD 3": f"pgd20.{near}", "PGD 8": f"pgd20.{far}", "PGD 255": f"pgd{steps}.255"}
    if scale == "full":
        names["PGD 128"] = "pgd20.128"
    return names | {
        f"PGD {name}": f"pgd{steps}.{eps}" for name, eps in zip((16, 32, 64), distances, strict=True)
    }


def plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that figures show: those of the sample, not what a search derived for table 7."""
    return [record for record in records if "search" not in record]


def kernels(scale: str) -> dict[str, str]:
    """The tangent kernels of figure 5 that section 4.3 compares -> metric of our records."""
    far = "8" if scale == "full" else "32"
    names = {f"{which} kernel": f"ntk.{which}.fro.pgd.{far}" for which in ("robust", "twice")}
    return {"clean kernel": "ntk.clean.fro", **names}


def networks(records: list[dict[str, Any]], scale: str) -> list[dict[str, Any]]:
    """Of each architecture the means over its seeds, and its number of none edges."""
    groups = defaultdict(list)
    for record in side.of_first_set(plain(records)):
        groups[record["arch"]["str"]].append(record)
    found = []
    for some in groups.values():
        wanted = {**metrics(scale), **kernels(scale), **{name: f"corrupt.{name}.5" for name in TABLE_6}}
        values = side.means(some, lambda _: "all", wanted).get("all", {})
        arch = some[0]["arch"]
        found.append({**values, "none": arch["none"], "class": arch["class"]})
    return found


def best_by_none(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """The architecture with the best mean robust accuracy of each number of none edges."""
    robust = ("FGSM 3", "PGD 3", "FGSM 8", "PGD 8")
    found: dict[str, dict[str, float | None]] = {}
    for none in sorted({one["none"] for one in rows}):
        some = [one for one in rows if one["none"] == none]
        found[str(none)] = max(some, key=lambda one: sum(one.get(name) or 0.0 for name in robust))
    return found


def claims(records: list[dict[str, Any]], scale: str) -> list[side.Claim]:
    """The paper's claims, tested on these networks."""
    rows = networks(records, scale)
    best, table_6 = best_by_none(rows), with_corruptions(rows)
    correlations = {pair: side.correlation(rows, *pair.split(", ")) for pair in list(TABLE_1)[:3]}
    found = [
        side.above(f"Spearman of {pair} is above .9", value, 0.9) for pair, value in correlations.items()
    ]
    for name in ("3", "8"):
        attacked = [(str(i), one.get(f"FGSM {name}"), one.get(f"PGD {name}")) for i, one in enumerate(rows)]
        words = f"FGSM at {name} leaves no less than PGD at {name}"
        found.append(side.all_above(words, attacked, or_equal=True))
    ladder = ("clean", "PGD 3", "PGD 8", "PGD 16", "PGD 32")
    for one, next_ in itertools.pairwise(ladder):
        pairs = [(f"none={none}", row.get(one), row.get(next_)) for none, row in best.items()]
        words = f"accuracy does not rise from {one} to {next_}"
        found.append(side.all_above(words, pairs, or_equal=True))
    for fewer, more in itertools.pairwise(sorted(best)):
        a, b = best[fewer].get("PGD 8"), best[more].get("PGD 8")
        found.append(side.above(f"the best with {fewer} none edges is above that with {more} (PGD 8)", a, b))
    # A network without a live path predicts the same class for every image, which attacks cannot change.
    far = max((float(one["PGD 255"] or 0.0) for one in best.values() if "PGD 255" in one), default=None)
    found.append(side.below("PGD without a bound (255) leaves nothing of the best ones", far, 0.0))
    for name, values in table_6.items():
        sign = TABLE_6[name][0] > 0
        value = values.get("PGD 3")
        words = f"{name} is {'positively' if sign else 'negatively'} correlated with PGD 3"
        found.append(side.above(words, value, 0.0) if sign else side.above(words, 0.0, value))
    of_kernels = {name: side.correlation(rows, name, "PGD 8") for name in kernels(scale)}
    for name in ("robust", "twice"):
        words = f"the {name} kernel is correlated more with PGD 8 than the clean one (section 4.3)"
        found.append(side.above(words, of_kernels[f"{name} kernel"], of_kernels["clean kernel"]))
    return found


def with_corruptions(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Table 6: rank correlations of accuracy under each corruption with that under attacks."""
    return {
        name: {column: side.correlation(rows, name, column) for column in COLUMNS_6}
        for name in TABLE_6
        if any(name in one for one in rows)
    }


def across(rows: Sequence[dict[str, Any]], others: list[dict[str, Any]], scale: str) -> list[dict[str, Any]]:
    """The rows, with the robustness dataset's columns (starred) where it has the architecture."""
    columns = jung.metrics(scale)
    at: dict[int, dict[str, Any]] = {}
    for record in side.of_first_set(others):
        values = {f"{name}*": record["metrics"].get(columns[name]) for name in ("clean", "PGD 8", "FGSM 8")}
        at[record["arch"]["class"]] = {name: value for name, value in values.items() if value is not None}
    return [{**one, **at.get(one["class"], {})} for one in rows]


def tables(
    records: list[dict[str, Any]], scale: str, others: list[dict[str, Any]] | None = None
) -> dict[str, side.PaperTable]:
    """Tables 1, 4, 5, 6 and 7, if these records have the necessary metrics.

    others: records of the robustness dataset of NAS-Bench-201, for the other half of table 1.
    """
    rows = networks(records, scale)
    pairs = (
        [", ".join(pair) for pair in itertools.combinations(COLUMNS_1, 2)] if others else list(TABLE_1)[:3]
    )
    starred = across(rows, others or [], scale)
    table_1 = {pair: {"Spearman": side.correlation(starred, *pair.split(", "))} for pair in pairs}
    paper_6 = {name: dict(zip(COLUMNS_6[:2], values, strict=True)) for name, values in TABLE_6.items()}
    paper_5 = {none: dict(zip(COLUMNS, (*values, 0.0, 0.0), strict=True)) for none, values in TABLE_5.items()}
    paper_1 = {pair: {"Spearman": value} for pair, value in TABLE_1.items()}
    paper_7 = {
        name: dict(zip(COLUMNS_7, [value / 1000 for value in values], strict=True))
        for name, values in TABLE_7.items()
    }

    def number(column: str, value: float) -> str:
        return f"{value:.3f}"

    return {
        "table 1": side.PaperTable("Table 1, rank correlations", paper_1, table_1, ("Spearman",), number),
        "table 4": side.PaperTable(
            "Table 4, share of networks for which a criterion holds", {}, criteria(rows), ("share",)
        ),
        "table 5": side.PaperTable("Table 5, by number of none edges", paper_5, best_by_none(rows), COLUMNS),
        "table 6": side.PaperTable(
            "Table 6, rank correlations with attacks", paper_6, with_corruptions(rows), COLUMNS_6, number
        ),
        "table 7": side.PaperTable(
            "Table 7, found without training", paper_7, without_training(records, scale), COLUMNS_7
        ),
    }


def searches(records: list[dict[str, Any]], scale: str) -> side.PaperTable:
    """NAS-RobBench-201's table 2 on the records of its reproduction; the optimum has the best mean robust
    accuracy."""
    names = metrics(scale)
    columns = {
        column: names[name] for column, name in zip(reproduce_search.ROBBENCH.columns, COLUMNS_7, strict=True)
    }
    records = plain(records)
    table = reproduce_search.on_records(
        reproduce_search.ROBBENCH, columns, records, scale, "Table 2, what searches find"
    )
    if not table.ours:
        return table
    robust = [metric for column, metric in columns.items() if column != "Clean"]
    known = [one for one in side.of_first_set(records) if set(robust) <= one["metrics"].keys()]
    best = max(known, key=lambda record: sum(record["metrics"][metric] for metric in robust))
    ours = {
        "optimal": reproduce_search.columns_of(
            reproduce_search.ROBBENCH._replace(columns=columns), best["metrics"]
        ),
        **table.ours,
    }
    ours.pop("best there is", None)
    return table._replace(ours=ours)


def criteria(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Table 4: the number of networks that pass each of four tests for masked gradients."""
    signs = {
        "a) FGSM leaves no less than PGD (3)": ("FGSM 3", "PGD 3"),
        "b) Square leaves no less than PGD (3)": ("Square 3", "PGD 3"),
        "c) without a bound nothing is left (PGD 255)": ("zero", "PGD 255"),
        "d) accuracy falls with the distance": ("PGD 3", "PGD 8", "PGD 16", "PGD 32"),
    }
    found: dict[str, dict[str, float | None]] = {}
    for words, columns in signs.items():
        known = [{**one, "zero": 0.0} for one in rows]
        known = [one for one in known if all(one.get(name) is not None for name in columns)]
        holds = [all(one[high] >= one[low] for high, low in itertools.pairwise(columns)) for one in known]
        found[words] = {"share": sum(holds) / len(holds) if holds else None}
    return found


def without_training(records: list[dict[str, Any]], scale: str) -> dict[str, dict[str, float | None]]:
    """Table 7: of the networks at hand the one that a score of fresh weights puts first, what differentiable
    searches derived, and the cell of NAS-Bench-201's own DARTS-V1."""
    columns = {name: metric for name, metric in metrics(scale).items() if name in COLUMNS_7}
    far = "8" if scale == "full" else "32"
    found: dict[str, dict[str, float | None]] = {}
    scores = {
        "KNAS": f"ntk.robust.fro.pgd.{far}",
        "EigenNAS": f"ntk.robust.trace.pgd.{far}",
        "NASWOT": "naswot",
    }
    sample = side.of_first_set(plain(records))
    for name, metric in scores.items():
        known = [one for one in sample if one["metrics"].get(metric) is not None]
        if known:
            first = max(known, key=lambda record: record["metrics"][metric])
            found[name] = {column: first["metrics"].get(other) for column, other in columns.items()}

    def row(record: dict[str, Any]) -> str | None:
        if record["arch"]["str"] == DARTS_CELL and "search" not in record:
            return "DARTS, cell of NAS-Bench-201"
        return DERIVED.get(record.get("search", {}).get("algorithm", ""))

    return found | side.means(side.of_first_set(records), row, columns)
