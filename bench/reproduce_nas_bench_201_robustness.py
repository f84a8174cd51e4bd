"""The robustness dataset of NAS-Bench-201 (Jung et al. 2023) beside ours: its table 1, and its claims.

    python bench/reproduce_nas_bench_201_robustness.py --scale mini < records.jsonl

(make reproduce-nas-bench-201-robustness). At full scale the published weights of all 6,466 architectures
are evaluated on CIFAR-10. mini and tiny train a few small networks without attacks on the built-in digits; as
these are easy, a distance of 16/255 stands for the paper's 1/255.
"""

from __future__ import annotations

from typing import Any

import sidebyside as side
from reproduce_nas_robbench_201 import correlation

COLUMNS = ("clean", "FGSM", "PGD", "APGD", "Square", "CIFAR-10-C")
# Table 1, each column its own architecture: the best that there is at eps 1, in percent.
OPTIMUM = (94.68, 69.24, 58.85, 54.02, 73.61, 58.55)
# What the best on clean images (found by local search) comes to in the other columns.
ON_CLEAN = (94.65, 63.95, 41.17, 18.74, 69.59, 56.90)
ON_FGSM = (93.86, 69.10, 48.27, 23.18, 69.47, 56.57)
# Spearman between columns of the dataset at eps 8, as NAS-RobBench-201's table 1 has them.
CORRELATIONS = {"clean, PGD 8": 0.322, "clean, FGSM 8": 0.891, "PGD 8, FGSM 8": 0.487}
# An architecture of the published files, at full scale: clean, and PGD at 1.
KNOWN = 13433, {"clean": 0.893, "PGD": 0.336}


def metrics(scale: str) -> dict[str, str]:
    """Column -> metric of our records."""
    near, far = ("1", "8") if scale == "full" else ("16", "32")
    return {
        "clean": "acc",
        "FGSM": f"fgsm.{near}",
        "PGD": f"pgd40.{near}",
        "APGD": f"apgd-ce.{near}",
        "Square": f"square.{near}",
        "CIFAR-10-C": "corrupt.mean",
        "FGSM 8": f"fgsm.{far}",
        "PGD 8": f"pgd40.{far}",
    }


def networks(records: list[dict[str, Any]], scale: str) -> dict[str, dict[str, float | None]]:
    """Architecture -> its columns; without all severities the mean over corruptions is of those there are."""
    for record in records:
        some = [v for k, v in record["metrics"].items() if k.startswith("corrupt.") and "mean" not in k]
        if some:
            record["metrics"].setdefault("corrupt.mean", sum(some) / len(some))
    return side.means(records, lambda record: record["arch"]["name"], metrics(scale))


def chosen_by(rows: side.Rows, column: str) -> dict[str, float | None]:
    """The row with the most of a column."""
    some = [row for row in rows.values() if row.get(column) is not None]
    return dict(max(some, key=lambda row: row[column] or 0.0)) if some else {}


def optimum(rows: side.Rows) -> dict[str, float | None]:
    """The best of each column."""
    return {column: chosen_by(rows, column).get(column) for column in COLUMNS}


def claims(records: list[dict[str, Any]], scale: str) -> list[side.Claim]:
    """What the paper says, held against these networks."""
    rows = networks(records, scale)
    best, clean = optimum(rows), chosen_by(rows, "clean")
    listed = list(rows.values())
    order = [
        ("Square", "FGSM", "the best under Square is above the best under FGSM"),
        ("FGSM", "PGD", "the best under FGSM is above the best under PGD"),
        ("PGD", "APGD", "the best under PGD is above the best under APGD"),
        ("clean", "CIFAR-10-C", "corruptions cost accuracy also where it is best"),
    ]
    found = [side.above(words, best[a], best[b]) for a, b, words in order]
    for column in ("FGSM", "PGD", "APGD"):
        words = f"the best on clean images is not the most robust ({column})"
        found.append(side.above(words, best[column], clean.get(column)))
    pgd, fgsm = (correlation(listed, "clean", column) for column in ("PGD 8", "FGSM 8"))
    found.append(side.above("clean accuracy tells more of FGSM than of PGD at 8 (Spearman)", fgsm, pgd))
    gap = {column: _gap(best[column], clean.get(column)) for column in ("FGSM", "PGD", "APGD")}
    found.append(
        side.above("choosing by clean accuracy loses more under PGD than under FGSM", gap["PGD"], gap["FGSM"])
    )
    found.append(side.above("and more under APGD than under PGD", gap["APGD"], gap["PGD"]))
    return found


def _gap(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else high - low


def tables(records: list[dict[str, Any]], scale: str) -> dict[str, side.PaperTable]:
    """Table 1, the correlations of these columns that another paper gives, and one known architecture."""
    rows = networks(records, scale)
    names = ("optimum", "best on clean", "best on FGSM")
    paper = {
        name: dict(zip(COLUMNS, [value / 100 for value in values], strict=True))
        for name, values in zip(names, (OPTIMUM, ON_CLEAN, ON_FGSM), strict=True)
    }
    ours = dict(zip(names, (optimum(rows), chosen_by(rows, "clean"), chosen_by(rows, "FGSM")), strict=True))
    listed = list(rows.values())
    correlations = {pair: {"Spearman": correlation(listed, *pair.split(", "))} for pair in CORRELATIONS}
    published = {pair: {"Spearman": value} for pair, value in CORRELATIONS.items()}
    made = {
        "table 1": side.PaperTable("Table 1 (eps 1)", paper, ours, COLUMNS),
        "correlations": side.PaperTable(
            "Rank correlations of the dataset (NAS-RobBench-201, table 1, starred)",
            published,
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


def report(records: list[dict[str, Any]], scale: str) -> str:
    """The tables and claims."""
    texts = [table.text() for table in tables(records, scale).values()]
    return "\n".join([*texts, side.told(claims(records, scale))])


if __name__ == "__main__":
    side.main("nas-bench-201-robustness", __doc__, report, published=True)
