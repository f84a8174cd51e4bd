"""The Weight-Curvature Index (WCI) and the robust generalisation gaps during adversarial training.

The paper prints curves but no numbers, so our numbers cannot be compared with printed values. They are
Spearman's rho between the index (or the trace in the index) and the robust gaps, test minus train under PGD,
over the measured epochs of each training run and over all runs, with 95 % bootstrap intervals. The epochs of
a training run are not independent, so the intervals are too narrow. The full scale is the paper's setting,
PreActResNet-18 on CIFAR-10. At the scale mini, a small network is trained for 24 epochs on the built-in
digits with radius 32/255, and the learning rate falls after epochs 14 and 20. The report ends with lemmas 1
to 3 and theorem 4, evaluated for the final weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rbtools.papers import items
from rbtools.papers import sidebyside as side
from rbtools.scoring import correlate

INDEX = ("wci", "wci.trace")
GAPS = ("robust_loss_gap", "robust_error_gap")
SHOWN = (*INDEX, "train_robust_loss", "test_robust_loss", *GAPS)
RESAMPLES = 1000
Moments = list[dict[str, float]]


def moments(record: dict[str, Any]) -> Moments:
    """The measurements during training, with one row for each measured epoch."""
    history = record["train"]["history"]
    return [
        {"epoch": epoch + 1, **{name: history[name][epoch] for name in SHOWN}}
        for epoch, value in enumerate(history["wci"])
        if value is not None
    ]


def spearman(rows: Moments) -> Any:
    """Spearman's rho between the index or its trace (rows) and the gaps (columns)."""
    numbers = np.array([[row[name] for name in (*INDEX, *GAPS)] for row in rows], float)
    return correlate.matrix("spearman", (*INDEX, *GAPS), numbers, INDEX, GAPS, bootstrap=RESAMPLES)


def cells(found: Any) -> list[str]:
    texts = []
    for value, low, high in zip(*(one.ravel() for one in (found.value, found.low, found.high)), strict=True):
        interval = "" if np.isnan(low) else f" [{low:.2f}, {high:.2f}]"
        texts.append("-" if np.isnan(value) else f"{value:.2f}{interval}")
    return texts


def follows(words: str, found: Any, gap: int) -> side.Claim:
    """Test the claim that the index is positively correlated with a gap."""
    value, low, high = (float(one[0, gap]) for one in (found.value, found.low, found.high))
    if np.isnan(value) or np.isnan(low):
        return side.Claim(words, None, "too few epochs")
    told = f"rho {value:.2f} [{low:.2f}, {high:.2f}]"
    return side.Claim(words, None if low <= 0 <= high else value > 0, told)


def trainings(records: side.Records) -> dict[str, Moments]:
    """The measurements of each training run by regularisation and, if there are several, by data set."""
    rows: dict[str, Moments] = {}
    several = len({record.get("dataset") for record in records}) > 1
    for record in for_figures(records):
        name = record["train"]["config"]["regularize"]
        name += f" on {record['dataset']}" if several else ""
        rows.setdefault(name, []).extend(moments(record))
    return rows


def pooled(records: side.Records) -> dict[str, Moments]:
    """The measurements of each training run, and of all runs together."""
    rows = trainings(records)
    return {**rows, "all": [row for found in rows.values() for row in found]}


def for_figures(records: side.Records) -> side.Records:
    """The records with the regularisation as a text, by which figures select records."""
    shown = []
    for record in records:
        train = record["train"]
        name = "+".join(train["config"].get("regularize", [])) or "none"
        shown.append({**record, "train": {**train, "config": {**train["config"], "regularize": name}}})
    return shown


def tables(records: side.Records, scale: str) -> dict[str, side.PaperTable]:
    """Returns no tables, because the paper prints no values."""
    return {}


def claims(records: side.Records, scale: str, made: side.Tables) -> list[side.Claim]:
    correlations = {name: spearman(rows) for name, rows in pooled(records).items()}
    return [
        follows(f"{name}: {words}", found, GAPS.index(tests["wci"][0].removeprefix("rises with ")))
        for name, found in correlations.items()
        for words, tests in items.paper("wci", scale).claims
    ]


def report(records: side.Records, scale: str) -> str:
    """A summary of the curves, the correlations, and the verdict on each claim of the paper."""
    rows = trainings(records)
    lines = [f"| training | epoch | {' | '.join(SHOWN)} |", "|---" * (len(SHOWN) + 2) + "|"]
    for name, found in rows.items():
        for row in (found[0], found[len(found) // 2], found[-1]):
            values = " | ".join(f"{row[key]:.4g}" for key in SHOWN)
            lines.append(f"| {name} | {row['epoch']:.0f} | {values} |")
    pairs = [f"{index}, {gap}" for index in INDEX for gap in GAPS]
    lines += ["", f"| Spearman over | n | {' | '.join(pairs)} |", "|---" * (len(pairs) + 2) + "|"]
    for name, some in pooled(records).items():
        lines.append(f"| {name} | {len(some)} | {' | '.join(cells(spearman(some)))} |")
    return "\n".join([*lines, "", side.theory_text(records), side.told(claims(records, scale, {}))])
