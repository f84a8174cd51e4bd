"""PRBench beside ours: tables 4, 5, 8, 9, 11 and 12, the composite of figure 6, and the paper's claims.

At full scale the network is ResNet-18 on CIFAR-10, trained and evaluated as the paper's public code does,
which made its numbers, and tables 9 and 11 have the 14 further pairs of data set and network. mini and tiny
put a small network of NAS-Bench-201 on the built-in digits in its place, and another and MNIST's SimpleCNN
for the further pairs; their radii are larger (32/255 for 8/255 and .03, .3 .35 .4 for .08 .10 .12), as digits
are easy: there the differences have no meaning, but the orderings may agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rbtools.papers import prbench_rows
from rbtools.papers import sidebyside as side

PAPER = {"erm": "ERM", "corruption": "Corr_U", "cvar": "CVaR", "at-pr": "AT-PR", "pgd": "PGD"}
PAPER |= {"trades": "TRADES", "mart": "MART", "alp": "ALP", "clp": "CLP", "kl-pgd": "KL-PGD"}
AT = ("PGD", "TRADES", "MART", "ALP", "CLP", "KL-PGD")
RT = ("Corr_U", "CVaR")
FRACTIONS = ("Acc", "PGD20", "CW20", "AA", "PR .03", "PR .08", "PR .12", "ProbAcc .05", "ProbAcc .01")
COLUMNS = (*FRACTIONS, "GE PGD20", "GE PR .08", "s/epoch")
# Table 11: its data sets, and the network of MNIST, which digits have below full scale. The radii that MNIST
# has for the others'.
SETS_11, NETWORK_11 = ("cinic10", "imagenet50", "mnist"), "simplecnn"
MNIST = {"0.03": "0.3", "0.08": "0.35", "0.12": "0.45", "0.1": "0.4"}
MORE = ("PGD10", "PR .10", "ProbAcc .1", "GE PR .03", "GE PR .10", "GE PR .12")
ALL = (*COLUMNS, *MORE)
# Table 4, ResNet-18 on CIFAR-10, in percent, and seconds per epoch.
TABLE_4 = """
ERM 94.85 0 0 0 97.64 76.19 47.07 93.48 89.82 0 3.98 3
Corr_U 94.17 .05 .02 0 99.12 90.92 70.48 97.02 94.9 .04 6.24 3
CVaR 89.91 33.45 0 0 98.67 87.75 68.27 95.49 92.56 1.13 4.56 61
AT-PR 86.35 46.53 47.39 44.01 99.68 98.13 95.46 98.82 98.24 27.43 11.81 160
PGD 83.83 49.46 49.18 46.34 99.63 97.89 94.85 98.73 98.01 25.02 11.01 30
TRADES 83.34 53.15 50.84 48.99 99.55 97.74 94.55 98.68 98.22 16.12 10.22 25
MART 82.26 53.84 49.63 46.94 99.56 97.4 93.93 98.58 98.04 17.4 7.23 22
ALP 73.98 54.08 50.72 48.41 99.27 96.73 93.24 98.29 97.85 8.44 5.93 36
CLP 81.47 53.34 51.05 49.05 99.53 97.61 94.54 98.52 97.88 15.32 7.94 36
KL-PGD 87.55 48.43 47.06 44.77 99.63 97.86 94.72 98.73 98.14 14.57 7.06 27
"""
# The columns of MORE, as the paper's leaderboard has them (wellzline/PRbenchwebsite, prbench_table9.json),
# which lacks AT-PR.
TABLE_4_MORE = """
ERM .01 61.65 95.04 6.24 2.94 2.54
Corr_U .28 82.32 97.78 4.83 4.79 2.31
CVaR 41.79 78.62 96.63 3.9 3.9 2.72
PGD 50.86 96.59 99.05 11.4 11.2 12.03
TRADES 54.09 96.33 98.88 10.29 10.08 10.27
MART 54.83 95.92 98.88 6.84 7.73 8.07
ALP 54.41 95.16 98.55 5.26 5.52 4.44
CLP 54.12 96.29 98.73 8.05 8.29 8.7
KL-PGD 49.4 96.54 99.07 7.28 7.46 8.15
"""
NOISES = ("uniform", "gaussian", "laplace")
RADII = ("PR .03", "PR .08", "PR .10", "PR .12")
NOISE_GE = "GE PR .03"
# Table 5, ResNet-18 on CIFAR-10: for each noise PR at the four radii, and the generalisation error at the
# first. ERM's PR under Gaussian and Laplace noise is the paper's, the rest that of its site
# (prbench_table8.json).
TABLE_5 = """
ERM 97.64 76.19 61.65 47.07 6.24 96.16 61.88 44.2 30.6 6.36 96.04 60.98 43.24 29.79 6.3
Corr_U 99.12 90.92 82.32 70.48 4.83 98.26 82.68 68.23 54.48 5.03 98.27 81.94 67.44 52.12 5.05
Corr_G 99.52 96.89 94.12 90.45 2.94 99.23 92.23 83.42 72.46 5.67 99.22 91.91 81.36 69.29 5.67
Corr_L 99.45 92.12 84.4 75.09 6.49 99.0 90.52 82.02 72.65 5.76 99.02 89.64 79.29 66.42 5.67
PGD 99.63 97.89 96.59 94.85 11.4 99.39 96.68 94.15 91.54 11.24 99.47 96.59 94.34 91.29 11.21
"""
WITH_NOISES = ("ERM", "Corr_U", "Corr_G", "Corr_L", "PGD")
NOISE_COLUMNS = tuple(f"{noise} {column}" for noise in NOISES for column in (*RADII, NOISE_GE))
# Transformers on CIFAR-10 (prbench_table8.json of the paper's site): accuracy, and the columns of table 5.
TRANSFORMERS = """
DeiT-T,ERM 95.92 98.23 87.39 80.72 73.77 5.38 97.27 81.01 71.57 61.47 5.84 97.17 80.70 71.05 60.78 5.82
DeiT-T,Corr_U 95.58 99.82 92.39 86.07 78.07 6.32 99.26 86.22 76.18 64.73 5.36 99.25 85.77 75.51 63.52 5.34
DeiT-T,Corr_G 93.86 99.49 96.98 95.57 93.23 6.76 99.22 93.35 86.74 76.78 5.04 99.23 93.11 85.81 76.26 5.09
DeiT-T,Corr_L 93.90 99.44 96.53 93.30 88.03 6.60 99.25 93.35 86.77 77.29 5.64 99.25 93.11 85.84 77.04 5.72
DeiT-T,PGD 77.80 99.68 98.38 97.47 96.43 6.21 99.56 97.64 96.38 94.71 6.27 99.55 97.55 96.29 93.79 6.07
DeiT-S,ERM 97.28 98.91 92.09 88.76 83.65 7.65 99.38 88.94 82.54 74.64 6.29 99.37 88.86 82.29 73.44 6.20
DeiT-S,Corr_U 96.69 99.42 92.37 88.28 83.06 2.73 99.25 92.62 91.28 90.19 2.91 99.25 92.47 91.28 90.11 3.07
DeiT-S,Corr_G 96.48 99.62 97.61 95.47 92.16 2.69 99.50 95.57 91.38 88.49 2.94 99.50 95.21 90.10 86.44 3.02
DeiT-S,Corr_L 96.51 99.49 95.23 91.69 87.09 4.34 99.32 92.92 88.43 84.02 3.91 99.32 92.74 88.14 83.77 3.89
DeiT-S,PGD 86.16 99.73 98.56 97.75 96.63 12.8 99.82 96.42 94.49 92.49 12.81 99.77 96.33 94.43 92.47 12.81
ViT-S,ERM 95.10 98.13 92.09 88.73 85.34 4.76 98.93 89.03 83.85 80.02 4.12 98.97 89.02 83.83 79.98 4.08
ViT-S,Corr_U 94.76 99.83 94.03 90.19 88.44 4.24 99.28 87.88 78.73 68.68 4.74 99.27 87.16 78.51 68.27 4.73
ViT-S,Corr_G 94.58 99.66 96.74 90.62 88.44 2.85 99.24 94.84 91.12 86.97 4.58 99.22 93.99 90.01 86.12 4.49
ViT-S,Corr_L 94.43 99.44 94.42 91.37 89.23 6.49 99.24 94.84 91.12 86.97 4.37 99.22 94.01 90.44 86.62 4.84
ViT-S,PGD 84.54 99.67 98.74 98.30 97.84 8.07 99.48 97.68 96.84 96.06 8.12 99.56 97.98 96.90 96.27 8.19
ViT-B,ERM 98.30 99.82 92.38 87.54 81.72 1.68 99.48 87.68 80.63 73.52 1.84 99.47 87.38 79.73 71.68 1.53
ViT-B,Corr_U 98.23 99.80 99.18 96.74 93.81 1.57 99.62 95.28 90.67 82.30 1.68 99.62 95.28 90.67 82.21 1.67
ViT-B,Corr_G 97.71 99.57 97.83 95.41 91.43 1.87 99.42 95.56 92.66 84.93 1.88 99.45 95.62 92.57 84.70 1.88
ViT-B,Corr_L 97.95 99.44 96.74 91.89 87.94 2.29 99.42 96.14 91.04 82.61 1.93 99.42 96.21 91.22 82.77 1.91
ViT-B,PGD 87.38 99.70 99.55 99.31 98.90 10.18 99.61 98.93 98.23 96.99 10.23 99.56 98.99 97.86 96.44 10.12
"""
# timm's networks by PRBench's names.
OF_TIMM = {
    "vit_small_patch16_224_2020": "ViT-S",
    "vit_base_patch16_224": "ViT-B",
    "vit_large_patch16_224": "ViT-L",
    "deit_tiny_patch16_224": "DeiT-T",
    "deit_small_patch16_224": "DeiT-S",
}
# Table 12, TRADES with Chen and Lee's filter after m steps: of the paper only its times are at hand, and
# they stand beside ours; the other columns are ours alone.
TABLE_12 = {"TRADES": 25.0, "TRADES m=1": 16.0, "TRADES m=8": 19.0}
# Figure 6: the parts of the composite, and whether more is better.
COMPOSITE = {
    "Acc": True,
    "PGD20": True,
    "PR .08": True,
    "ProbAcc .05": True,
    "GE PGD20": False,
    "GE PR .08": False,
    "s/epoch": False,
}
# The orderings of table 4 as (column, higher, lower).
ORDERINGS = """
PGD20 PGD ERM;PGD20 PGD Corr_U;PGD20 PGD CVaR;PGD20 TRADES PGD;PGD20 MART PGD;PGD20 ALP TRADES;PGD20 CLP PGD
PGD20 PGD KL-PGD;PGD20 PGD AT-PR;Acc ERM PGD;Acc ERM Corr_U;Acc AT-PR PGD;Acc KL-PGD PGD;Acc PGD ALP
PR_.08 Corr_U ERM;PR_.08 PGD Corr_U;PR_.08 AT-PR PGD;GE_PGD20 PGD TRADES;GE_PGD20 PGD ALP;GE_PGD20 AT-PR PGD
GE_PR_.08 PGD Corr_U;s/epoch AT-PR CVaR;s/epoch CVaR PGD;s/epoch PGD ERM
"""


def numbers(text: str) -> dict[str, list[float]]:
    """The rows of a table that is written as names and numbers."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {name: [float(number) for number in row] for name, *row in lines}


def published() -> dict[str, dict[str, float | None]]:
    """Tables 4 and 5 as fractions, in one row for each method."""
    found: dict[str, dict[str, float | None]] = {}
    for name, values in numbers(TABLE_4).items():
        found[name] = dict(zip(COLUMNS, [*(v / 100 for v in values[:-1]), values[-1]], strict=True))
    for name, values in numbers(TABLE_4_MORE).items():
        found[name] |= dict(zip(MORE, [v / 100 for v in values], strict=True))
    for name, values in numbers(TABLE_5).items():
        found.setdefault(name, {}).update(zip(NOISE_COLUMNS, [v / 100 for v in values], strict=True))
    return found


def metrics(scale: str) -> dict[str, str]:
    """Column -> metric of our records."""
    eps, radii = "8", ("0.03", "0.08", "0.1", "0.12")  # .03 in the code, 8/255 in the text
    if scale != "full":
        eps, radii = "32", ("0.12549", "0.3", "0.35", "0.4")
    steps = 2 if scale == "tiny" else 20
    first, middle, third, last = radii
    return {
        "Acc": "acc",
        "PGD20": f"pgd{steps}.{eps}",
        "CW20": f"cw{steps}.{eps}",
        "AA": f"aa.{eps}",
        "PR .03": f"pr.uniform.{first}",
        "PR .08": f"pr.uniform.{middle}",
        "PR .12": f"pr.uniform.{last}",
        "ProbAcc .05": f"probacc.uniform.{first}.0.05",
        "ProbAcc .01": f"probacc.uniform.{first}.0.01",
        "GE PGD20": f"ge.pgd{steps}.{eps}",
        "GE PR .08": f"ge.pr-all.uniform.{middle}",
        "s/epoch": "seconds_per_epoch",
        "PGD10": f"pgd{1 if scale == 'tiny' else 10}.{eps}",
        "PR .10": f"pr.uniform.{third}",
        "ProbAcc .1": f"probacc.uniform.{first}.0.1",
        "GE PR .03": f"ge.pr-all.uniform.{first}",
        "GE PR .10": f"ge.pr-all.uniform.{third}",
        "GE PR .12": f"ge.pr-all.uniform.{last}",
        **{
            f"{noise} {name}": f"pr.{noise}.{radius}"
            for noise in NOISES
            for name, radius in zip(RADII, radii, strict=True)
        },
        **{f"{noise} {NOISE_GE}": f"ge.pr-all.{noise}.{first}" for noise in NOISES},
    }


def row(record: dict[str, Any]) -> str | None:
    """The name that the paper gives to a record's training."""
    train = record.get("train", {})
    name = PAPER.get(train.get("method", ""))
    config = train.get("config", {})
    noise = config.get("noise", "uniform")
    if train.get("method") == "corruption" and noise != "uniform":
        return f"Corr_{noise[0].upper()}"
    # The code decides after step m, counted from 0.
    return name if config.get("filter") is None else f"{name} m={config['warm_steps'] - 1}"


def plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that figures show: one of each method, none with the filter or other noise in training."""
    names = set(PAPER.values())
    return [record for record in records if row(record) in names]


def composite(rows: side.Rows) -> dict[str, dict[str, float | None]]:
    """The mean of the min-max scaled columns of each row that has them all."""
    whole = {name: one for name, one in rows.items() if all(one.get(part) is not None for part in COMPOSITE)}
    scores = dict.fromkeys(whole, 0.0)
    for part, higher in COMPOSITE.items():
        values = {name: float(one[part] or 0.0) for name, one in whole.items()}
        low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
        for name, value in values.items():
            scaled = (value - low) / (high - low) if high > low else 0.5
            scores[name] += (scaled if higher else 1 - scaled) / len(COMPOSITE)
    return {name: {"score": score} for name, score in scores.items()}


def claims(records: list[dict[str, Any]], scale: str) -> list[side.Claim]:
    """The paper's claims on tables 4, 5 and 12 and on figure 6, tested on these records."""
    return claims_of(side.means(of_first_pair(records), row, metrics(scale)))


def claims_of(rows: side.Rows) -> list[side.Claim]:
    """The claims, tested on rows by method and column, published ones or ours."""
    found = [*of_robustness(rows), *of_orderings(rows), *of_generalisation(rows)]
    return [*found, *of_noises(rows), *of_composite(rows), *of_filtering(rows)]


def at(rows: side.Rows, name: str, column: str) -> float | None:
    return rows.get(name, {}).get(column)


def pairs_of(rows: side.Rows, higher: Any, lower: Any, column: str) -> list[tuple[str, Any, Any]]:
    """A column of every method of one group and of every method of another."""
    return [
        (f"{one} and {other}", at(rows, one, column), at(rows, other, column))
        for one in higher
        for other in lower
    ]


def of_robustness(rows: side.Rows) -> list[side.Claim]:
    """Section 5.1: AT methods are robust to both, RT methods to noise, AT-PR is between them at a price."""
    found = [
        side.below(
            f"{name}, an RT method, has near-zero accuracy under AutoAttack", at(rows, name, "AA"), 0.02
        )
        for name in RT
    ]
    for column in ("PR .12", "PR .08", "AA"):
        words = f"all AT methods beat corruption training in {column}"
        words += " at the largest radius" if column == "PR .12" else ""
        found.append(side.all_above(words, pairs_of(rows, AT, ["Corr_U"], column)))
    words = "CVaR masks gradients: PGD-20 leaves .1 more than CW-20"
    found.append(side.above(words, at(rows, "CVaR", "PGD20"), at(rows, "CVaR", "CW20"), 0.1))
    words = "RT methods are more accurate on clean images than AT methods"
    found.append(side.all_above(words, pairs_of(rows, RT, AT, "Acc")))
    for column in ("PR .03", "PR .08", "PR .12"):
        others = pairs_of(rows, ["AT-PR"], (*RT, *AT), column)
        found.append(side.all_above(f"AT-PR has the most {column}", others, or_equal=True))
    for column in ("PGD20", "AA"):
        words = f"AT-PR is more robust than RT methods ({column})"
        found.append(side.all_above(words, pairs_of(rows, ["AT-PR"], RT, column)))
    words = "AT-PR keeps more clean accuracy than AT methods but KL-PGD"
    most = [name for name in AT if name != "KL-PGD"]
    return [*found, side.all_above(words, pairs_of(rows, ["AT-PR"], most, "Acc"))]


def of_orderings(rows: side.Rows) -> list[side.Claim]:
    """The orderings of table 4."""
    found = []
    for text in ORDERINGS.replace("\n", ";").split(";"):
        if text:
            column, higher, lower = text.split()
            column = column.replace("_", " ")
            words = f"{column}: {higher} above {lower}"
            found.append(side.above(words, at(rows, higher, column), at(rows, lower, column)))
    return found


def of_generalisation(rows: side.Rows) -> list[side.Claim]:
    """Section 5.2: RT methods generalise better than AT methods, ALP better than CLP, in every column."""
    found = []
    for column in ("GE PGD20", "GE PR .03", "GE PR .08", "GE PR .10", "GE PR .12"):
        of_at, of_rt = (
            [value for name in group if (value := at(rows, name, column)) is not None] for group in (AT, RT)
        )
        means = [sum(values) / len(values) if values else None for values in (of_at, of_rt)]
        words = f"{column}: the mean of AT methods is above that of RT methods"
        found.append(side.above(words, means[0], means[1]))
        found.append(side.above(f"{column}: CLP above ALP", at(rows, "CLP", column), at(rows, "ALP", column)))
    return found


def of_noises(rows: side.Rows) -> list[side.Claim]:
    """Table 5: training with noise or attacks raises PR under noise of every kind."""
    found = []
    for noise in ("gaussian", "laplace"):
        pairs = [
            (f"{name} {radius}", at(rows, name, f"uniform {radius}"), at(rows, name, f"{noise} {radius}"))
            for name in WITH_NOISES
            for radius in RADII
        ]
        words = f"PR under {noise} noise is below PR under uniform noise"
        found.append(side.all_above(words, pairs, or_equal=True))
    for noise in NOISES:
        column = f"{noise} PR .08"
        pairs = pairs_of(rows, ("Corr_U", "Corr_G", "Corr_L", "PGD"), ["ERM"], column)
        found.append(side.all_above(f"{column}: training with any noise or PGD is above ERM", pairs))
        pairs = pairs_of(rows, ["PGD"], ("Corr_U", "Corr_G", "Corr_L"), column)
        found.append(side.all_above(f"{column}: PGD is above training with any noise", pairs))
        words = f"{column}: training with Gaussian noise above that with uniform noise"
        found.append(side.above(words, at(rows, "Corr_G", column), at(rows, "Corr_U", column)))
    return found


def of_composite(rows: side.Rows) -> list[side.Claim]:
    """Figure 6, equal weights, which has no AT-PR: its medians put ERM, PGD and CVaR below the others."""
    shown = {name: one for name, one in rows.items() if name in PAPER.values() and name != "AT-PR"}
    scores = composite(shown)
    better = ("Corr_U", "TRADES", "MART", "ALP", "CLP", "KL-PGD")
    return [
        side.all_above(
            f"composite score: {worse} is below {', '.join(better)}",
            pairs_of(scores, better, [worse], "score"),
        )
        for worse in ("ERM", "PGD", "CVaR")
    ]


def of_filtering(rows: side.Rows) -> list[side.Claim]:
    """Table 12."""
    pairs = [
        (name, at(rows, "TRADES", "s/epoch"), at(rows, name, "s/epoch"))
        for name in rows
        if name.startswith("TRADES m=")
    ]
    return [side.all_above("filtering makes TRADES faster (table 12)", pairs)]


def show(column: str, value: float) -> str:
    """A cell as the paper prints it."""
    if column == "s/epoch":
        return f"{value:.1f}"
    return side.plain(value) if column == "score" else side.percent(value)


def pair(record: dict[str, Any]) -> tuple[Any, Any]:
    """The data set and the network of a record."""
    return record.get("dataset"), record.get("arch", {}).get("name")


def of_first_pair(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of the data set and network that come first: tables 4, 5 and 12 are of one pair."""
    return [record for record in records if pair(record) == pair(records[0])]


def on_mnist(metric: str) -> str:
    """A metric at the radius and distance that the paper has on MNIST: attacks at .3, noise from .3 on."""
    metric = re.sub(r"(10|20)\.8$", r"\1.76.5", metric)
    noise = r"(uniform|gaussian|laplace)\.(0\.03|0\.08|0\.12|0\.1)"
    return re.sub(noise, lambda found: f"{found[1]}.{MNIST[found[2]]}", metric, count=1)


def transformers() -> dict[str, dict[str, float | None]]:
    """The published rows of transformers as fractions."""
    return {
        name.replace(",", ", "): dict(zip(("Acc", *NOISE_COLUMNS), [v / 100 for v in values], strict=True))
        for name, values in numbers(TRANSFORMERS).items()
    }


def transformer(record: dict[str, Any]) -> str | None:
    """The row of table 8: PRBench's name of one of timm's networks at 32 pixels, and the training."""
    arch = record.get("arch", {})
    name = OF_TIMM.get(str(arch.get("name")).partition(".")[0])
    at_32 = (arch.get("space"), arch.get("side"), arch.get("patch")) == ("timm", 32, 4)
    return f"{name}, {row(record)}" if name and at_32 and row(record) else None


def in_table_11(dataset: Any, network: Any) -> bool:
    """Whether a further pair stands in table 11; the others stand in table 9."""
    return dataset in SETS_11 or network == NETWORK_11


def published_pairs(wanted: Callable[[Any, Any], bool]) -> dict[str, dict[str, float | None]]:
    """The published rows of the further pairs that are wanted, as fractions."""
    lines = prbench_rows.ROWS.strip().splitlines()
    block = len(prbench_rows.METHODS) + 1
    found: dict[str, dict[str, float | None]] = {}
    for at in range(0, len(lines), block):
        dataset, network = lines[at].split()
        if wanted(dataset, network):
            for method, line in zip(prbench_rows.METHODS, lines[at + 1 : at + block], strict=True):
                values = zip(ALL, map(float, line.split()), strict=True)
                found[f"{dataset}, {network}, {method}"] = {
                    column: value if column == "s/epoch" else value / 100 for column, value in values
                }
    return found


def on_others(
    records: list[dict[str, Any]], scale: str, wanted: Callable[[Any, Any], bool]
) -> dict[str, dict[str, float | None]]:
    """The columns of table 4 for the further pairs of data set and network that are wanted."""
    found: dict[str, dict[str, float | None]] = {}
    for record in records:
        dataset, network = pair(record)
        first = (dataset, network) == pair(records[0])
        if first or not wanted(dataset, network) or row(record) is None:
            continue
        if transformer(record) is not None:
            continue
        names = metrics(scale)
        if dataset == "mnist" and scale == "full":
            names = {column: on_mnist(name) for column, name in names.items()}
        values = side.means([record], row, names)
        found |= {f"{dataset}, {network}, {name}": one for name, one in values.items()}
    return found


def by_noise(rows: side.Rows) -> dict[str, dict[str, float | None]]:
    """Table 5: of each method a row for each noise, of PR at four radii and the error of the first."""
    return {
        f"{name}, {noise}": {column: at(rows, name, f"{noise} {column}") for column in (*RADII, NOISE_GE)}
        for name in WITH_NOISES
        for noise in NOISES
        if name in rows
    }


def tables(records: list[dict[str, Any]], scale: str) -> dict[str, side.PaperTable]:
    """Tables 4, 5, 8, 9, 11 and 12, and the composite; 8, 9 and 11 are of other pairs than the others."""
    vits = side.means(records, transformer, metrics(scale))
    further = {}
    for number, wanted in (("table 9", lambda *of: not in_table_11(*of)), ("table 11", in_table_11)):
        ours = on_others(records, scale, wanted)
        title = f"{number.capitalize()}, further pairs"
        further[number] = side.PaperTable(title, published_pairs(wanted), ours, ALL, show)
    records = of_first_pair(records)
    ours, paper = side.means(records, row, metrics(scale)), published()
    methods = {name: one for name, one in ours.items() if name in PAPER.values()}
    mine, theirs = by_noise(ours), by_noise(paper)
    paper = {name: one for name, one in paper.items() if name in PAPER.values()}
    times = {name: {"s/epoch": value} for name, value in TABLE_12.items()}
    filtered = {name: one for name, one in ours.items() if name.startswith("TRADES")}
    columns_8 = [name for name in ALL if name not in (*RADII, NOISE_GE)]
    return further | {
        "table 8": side.PaperTable(
            "Table 8, transformers at 32 pixels", transformers(), vits, (*columns_8, *NOISE_COLUMNS), show
        ),
        "table 4": side.PaperTable("Table 4", paper, methods, ALL, show),
        "table 5": side.PaperTable("Table 5", theirs, mine, (*RADII, NOISE_GE), show),
        "table 12": side.PaperTable("Table 12", times, filtered, ALL, show),
        "composite": side.PaperTable(
            "Composite (figure 6, from the columns of table 4)",
            composite(paper),
            composite(methods),
            ("score",),
            show,
        ),
    }


def report(records: list[dict[str, Any]], scale: str) -> str:
    """The tables and claims."""
    made = tables(records, scale)
    texts = [table.text() for table in made.values() if table.ours]
    without = [name for name in ("table 8", "table 9", "table 11") if not made[name].ours]
    if without:
        texts.append(
            f"Nothing of {' and '.join(without)} is here. SCALE=full trains the transformers of table 8 from"
            " timm's weights (PR_VITS, PR_VIT_S) and the pairs of tables 9 and 11 (PR_PAIRS).\n"
        )
    return "\n".join([*texts, side.theory_text(records), side.told(claims(records, scale))])
