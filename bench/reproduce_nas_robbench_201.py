"""NAS-RobBench-201 beside ours: tables 1, 5 and 6, and the paper's claims.

    python bench/reproduce_nas_robbench_201.py --scale mini < records.jsonl

(make reproduce-nas-robbench-201.)

At full scale all 6,466 architectures are trained three times on CIFAR-10. mini and tiny train a few of each
number of none edges on the built-in digits, at distances four times as large (12 and 32 for 3 and 8).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sidebyside as side

# Table 1: Spearman's rank correlation on CIFAR-10.
TABLE_1 = {"clean, PGD 8": 0.985, "clean, FGSM 8": 0.989, "PGD 8, FGSM 8": 0.998}
# Table 5: the best architecture with so many none edges.
COLUMNS = ("clean", "FGSM 3", "Square 3", "PGD 3", "PGD 8", "PGD 16", "PGD 32", "PGD 64")
TABLE_5 = {
    "0": (0.7946, 0.6975, 0.6929, 0.6924, 0.4826, 0.1774, 0.0083, 0.0),
    "1": (0.7928, 0.6933, 0.6884, 0.6874, 0.4798, 0.1744, 0.0077, 0.0),
    "2": (0.7842, 0.6832, 0.6786, 0.6779, 0.4711, 0.1739, 0.0080, 0.0),
    "3": (0.7456, 0.6515, 0.6482, 0.6472, 0.4442, 0.1599, 0.0079, 0.0),
    "4": (0.5320, 0.4560, 0.4427, 0.4528, 0.3191, 0.1393, 0.0193, 0.0010),
}
# Table 6: Spearman of CIFAR-10-C at severity 5 with PGD at 3 and 8.
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


def metrics(scale: str) -> dict[str, str]:
    """Column -> metric of our records."""
    near, far = ("3", "8") if scale == "full" else ("12", "32")
    distances = ("16", "32", "64") if scale == "full" else ("64", "128", "255")
    steps = "3" if scale == "tiny" else "20"
    names = {"clean": "acc", "FGSM 3": f"fgsm.{near}", "FGSM 8": f"fgsm.{far}", "Square 3": f"square.{near}"}
    names |= {"PGD 3": f"pgd20.{near}", "PGD 8": f"pgd20.{far}", "PGD 255": f"pgd{steps}.255"}
    return names | {
        f"PGD {name}": f"pgd{steps}.{eps}" for name, eps in zip((16, 32, 64), distances, strict=True)
    }


def networks(records: list[dict[str, Any]], columns: dict[str, str]) -> list[dict[str, Any]]:
    """Of each architecture the means over its seeds, its number of none edges and its corruptions."""
    groups = defaultdict(list)
    for record in records:
        groups[record["arch"]["str"]].append(record)
    found = []
    for some in groups.values():
        wanted = {**columns, **{name: f"corrupt.{name}.5" for name in TABLE_6}}
        values = side.means(some, lambda _: "all", wanted).get("all", {})
        found.append({**values, "none": some[0]["arch"]["none"]})
    return found


def correlation(rows: Sequence[dict[str, Any]], first: str, second: str) -> float | None:
    """Spearman's rank correlation of two columns; None below three rows or where one does not vary."""
    from scipy import stats

    pairs = [(one[first], one[second]) for one in rows if first in one and second in one]
    if len(pairs) < 3 or any(len(set(values)) < 2 for values in zip(*pairs, strict=True)):
        return None
    return float(stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic)


def best_by_none(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """The architecture with the best mean robust accuracy of each number of none edges."""
    robust = ("FGSM 3", "PGD 3", "FGSM 8", "PGD 8")
    found: dict[str, dict[str, float | None]] = {}
    for none in sorted({one["none"] for one in rows}):
        some = [one for one in rows if one["none"] == none]
        found[str(none)] = max(some, key=lambda one: sum(one.get(name, 0.0) for name in robust))
    return found


def claims(rows: Sequence[dict[str, Any]], best: side.Rows, table_6: side.Rows) -> list[side.Claim]:
    """What the paper says, held against these networks."""
    correlations = {pair: correlation(rows, *pair.split(", ")) for pair in TABLE_1}
    found = [
        side.above(f"Spearman of {pair} is above .9", value, 0.9) for pair, value in correlations.items()
    ]
    for name in ("3", "8"):
        pairs = [(str(i), one.get(f"FGSM {name}"), one.get(f"PGD {name}")) for i, one in enumerate(rows)]
        words = f"FGSM at {name} leaves no less than PGD at {name}"
        found.append(side.all_above(words, pairs, or_equal=True))
    ladder = ("clean", "PGD 3", "PGD 8", "PGD 16", "PGD 32")
    for one, next_ in itertools.pairwise(ladder):
        pairs = [(f"none={none}", row.get(one), row.get(next_)) for none, row in best.items()]
        words = f"accuracy does not rise from {one} to {next_}"
        found.append(side.all_above(words, pairs, or_equal=True))
    levels = sorted(best)
    for fewer, more in itertools.pairwise(levels):
        a, b = best[fewer].get("PGD 8"), best[more].get("PGD 8")
        found.append(side.above(f"the best with {fewer} none edges is above that with {more} (PGD 8)", a, b))
    # A network without a live path says the same of every image, and stays right on one class.
    far = max((float(one["PGD 255"] or 0.0) for one in best.values() if "PGD 255" in one), default=None)
    found.append(side.below("PGD without a bound (255) leaves nothing of the best ones", far, 0.0))
    for name, values in table_6.items():
        sign = TABLE_6[name][0] > 0
        value = values.get("PGD 3")
        words = f"{name} is {'positively' if sign else 'negatively'} correlated with PGD 3"
        found.append(side.above(words, value, 0.0) if sign else side.above(words, 0.0, value))
    return found


def report(records: list[dict[str, Any]], scale: str) -> str:
    """The tables and claims."""
    rows = networks(records, metrics(scale))
    best = best_by_none(rows)
    table_1 = {pair: {"Spearman": correlation(rows, *pair.split(", "))} for pair in TABLE_1}
    table_6 = {
        name: {column: correlation(rows, name, column) for column in ("PGD 3", "PGD 8")}
        for name in TABLE_6
        if any(name in one for one in rows)
    }
    paper_6 = {name: dict(zip(("PGD 3", "PGD 8"), TABLE_6[name], strict=True)) for name in table_6}
    paper_5 = {none: dict(zip(COLUMNS, values, strict=True)) for none, values in TABLE_5.items()}
    paper_1 = {pair: {"Spearman": value} for pair, value in TABLE_1.items()}

    def number(column: str, value: float) -> str:
        return f"{value:.3f}"

    tables = [
        side.table("Table 1, rank correlations", paper_1, table_1, ("Spearman",), number),
        side.table("Table 5, by number of none edges", paper_5, best, COLUMNS),
        side.table("Table 6, rank correlations with PGD", paper_6, table_6, ("PGD 3", "PGD 8"), number),
    ]
    return "\n".join([*tables, side.told(claims(rows, best, table_6))])


if __name__ == "__main__":
    side.main("nas-robbench-201", __doc__, report)
