"""PRBench, with our results next to the paper's: tables 4, 5 and 8 to 12, the composite score of figure 6,
and the paper's claims.

At full scale, tables 4, 5 and 12 are about ResNet-18 on CIFAR-10, trained and evaluated as in the paper's
public code, which produced the paper's numbers. The other tables contain 14 further pairs of a data set and a
network. At the scales mini and tiny, a small network of NAS-Bench-201 on the built-in digits replaces
ResNet-18, and the further pairs use another such network and MNIST's SimpleCNN. The radii at mini and tiny
are larger because digits are easy: 32/255 instead of 8/255 and .03, and .3 .35 .4 instead of .08 .10 .12. At
mini and tiny, the differences from the paper have no meaning, but the orderings of methods may agree.

The paper and its web page (`printed/`) have different values, so the tables show both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rbtools.papers import items, packaged
from rbtools.papers import sidebyside as side
from rbtools.papers.estimates import WithInterval
from rbtools.papers.prbench_scores import ANY_AA, WEIGHTINGS, composite, medians, with_intervals
from rbtools.papers.printed import fractions

PAPER = {"erm": "ERM", "corruption": "Corr_U", "cvar": "CVaR", "at-pr": "AT-PR", "pgd": "PGD"}
PAPER |= {"trades": "TRADES", "mart": "MART", "alp": "ALP", "clp": "CLP", "kl-pgd": "KL-PGD"}
WITH_NOISES = ("ERM", "Corr_U", "Corr_G", "Corr_L", "PGD")
OF_TABLE_8 = ("ERM", "Corr_U", "PGD", "TRADES", "MART", "CLP", "KL-PGD")
NOISES = ("uniform", "gaussian", "laplace")
RADII = ("PR .03", "PR .08", "PR .10", "PR .12")
NOISE_GE = "GE PR .03"
# The columns of table 4, and those of tables 5 and 9 after the accuracy.
COLUMNS = (
    *("Acc", "PGD10", "PGD20", "CW20", "AA", *RADII, "ProbAcc .1", "ProbAcc .05", "ProbAcc .01", "GE PGD20"),
    *(f"GE {name}" for name in RADII),
    "s/epoch",
)
NOISE_COLUMNS = (
    *(f"{noise} {name}" for noise in NOISES for name in RADII),
    *(f"{noise} {NOISE_GE}" for noise in NOISES),
)
SHARES = {*COLUMNS, *NOISE_COLUMNS, ANY_AA} - {"s/epoch"}  # of images, and differences of shares
# The data set and network of tables 4, 5 and 12, and those of the other half of table 12.
FIRST, HALF_12 = "cifar10, resnet18, ", "cifar100, resnet18, "
TRADES_12 = "TRADES k=10"  # table 12's TRADES without the filter
# Table 11: its data sets, and the network of MNIST, which is used on digits below full scale.
SETS_11, NETWORK_11 = ("cinic10", "imagenet50", "mnist"), "simplecnn"
# timm's networks by PRBench's names.
OF_TIMM = {
    "vit_small_patch16_224_2020": "ViT-S",
    "vit_base_patch16_224": "ViT-B",
    "vit_large_patch16_224": "ViT-L",
    "deit_tiny_patch16_224": "DeiT-T",
    "deit_small_patch16_224": "DeiT-S",
}
# The numbers of test images for `with_intervals`, of CIFAR-10 and of digits.
IMAGES = {"mini": (355, 50, 355), "tiny": (5, 2, 5)}
IMAGES |= dict.fromkeys(packaged.FULL, (10_000, 10_000, 1_000))


def of_group(rows: side.Rows, prefix: str) -> side.Values:
    """The rows whose names begin with `prefix`, keyed by the rest of their names."""
    return {name.removeprefix(prefix): dict(one) for name, one in rows.items() if name.startswith(prefix)}


def wanted(rows: side.Rows, chosen: Callable[..., bool]) -> side.Values:
    """The rows for which `chosen` is true. The arguments of `chosen` are the parts of a row's name: data set,
    network and method, or only the method."""
    return {name: dict(one) for name, one in rows.items() if chosen(*name.split(", "))}


def printed_rows() -> side.Values:
    """The printed values for ResNet-18 on CIFAR-10 in tables 4, 5 and 12, with one row for each method."""
    rows = fractions("prbench-table-4")
    for name, values in fractions("prbench-table-5").items():
        rows[name] = {**values, **rows.get(name, {})}
    filtered = of_group(fractions("prbench-table-12"), "cifar10, ")
    return {**filtered, TRADES_12: filtered["TRADES"], **rows}


def metrics(scale: str, dataset: object = None) -> dict[str, str]:
    first = "0.0313725" if scale == "text" else "0.03"  # 8/255 in the text, .03 in the code
    eps, radii = "8", (first, "0.08", "0.1", "0.12")
    if scale not in packaged.FULL:
        eps, radii = "32", ("0.12549", "0.3", "0.35", "0.4")
    elif dataset == "mnist":
        eps, radii = "76.5", ("0.3", "0.35", "0.4", "0.45")
    ten, twenty = ("1", "2") if scale == "tiny" else ("10", "20")
    # Below full scale only some attacks of AutoAttack run, and the name of the metric contains their names.
    aa = {"mini": "ensemble-apgd-ce-apgd-t", "tiny": "ensemble-apgd-ce"}.get(scale, "aa")
    at = dict(zip(RADII, radii, strict=True))
    named = {"Acc": "acc", "PGD10": f"pgd{ten}.{eps}", "PGD20": f"pgd{twenty}.{eps}"}
    named |= {"CW20": f"cw{twenty}.{eps}", "AA": f"{aa}.{eps}", "GE PGD20": f"ge.pgd{twenty}.{eps}"}
    named |= {f"ProbAcc .{rho}": f"probacc.uniform.{radii[0]}.0.{rho}" for rho in ("1", "05", "01")}
    named |= {name: f"pr.uniform.{radius}" for name, radius in at.items()}
    named |= {f"GE {name}": f"ge.pr-all.uniform.{radius}" for name, radius in at.items()}
    for noise in NOISES:
        named |= {f"{noise} {name}": f"pr.{noise}.{radius}" for name, radius in at.items()}
        named[f"{noise} {NOISE_GE}"] = f"ge.pr-all.{noise}.{radii[0]}"
    return {**named, "s/epoch": "seconds_per_epoch", "passes": "passes"}


def row(record: dict[str, Any]) -> str | None:
    """The paper's name for a record's training method."""
    train = record.get("train", {})
    name = PAPER.get(train.get("method", ""))
    config = train.get("config", {})
    noise = config.get("noise", "uniform")
    if train.get("method") == "corruption" and noise != "uniform":
        return f"Corr_{noise[0].upper()}"
    # The code decides after step m, counted from 0.
    each = " by image" if config.get("filter_rule") == "example" else ""
    return name if config.get("filter") is None else f"{name} m={config['warm_steps'] - 1}{each}"


def network(record: dict[str, Any]) -> str:
    """A record's network; timm's networks for 32 pixels and patches of size 4 have PRBench's names."""
    arch = record.get("arch", {})
    name = str(arch.get("name"))
    at_32 = (arch.get("space"), arch.get("side"), arch.get("patch")) == ("timm", 32, 4)
    return OF_TIMM.get(name.partition(".")[0], name) if at_32 else name


def pair(record: dict[str, Any]) -> str:
    return f"{record.get('dataset')}, {network(record)}, "


def first_pair(records: side.Records) -> str:
    """The data set and the network of tables 4, 5 and 12, which are taken from the first record."""
    return pair(records[0]) if records else ""


def passes(record: dict[str, Any]) -> dict[str, float]:
    """The number of forward passes for each image in one step of the training."""
    forward = record.get("train", {}).get("passes", {}).get("forward")
    return {} if forward is None else {"passes": forward}


def rows_of(records: side.Records, scale: str) -> side.Values:
    """The values of all tables by column, for each data set, network and method."""
    found: side.Values = {}
    for dataset in dict.fromkeys(record.get("dataset") for record in records):
        some = [
            {**record, "metrics": record.get("metrics", {}) | passes(record)}
            for record in records
            if record.get("dataset") == dataset and row(record)
        ]
        found |= side.means(some, lambda record: f"{pair(record)}{row(record)}", metrics(scale, dataset))
    return found


def for_figures(records: side.Records) -> side.Records:
    """The records that figures show, without networks that were trained with the filter. If the training
    noise is not uniform, its name is added to the method's name. For figure 2a, the metrics at the distance
    that each data set uses have common names, `aa` and `pr.08`."""
    found = [record for record in records if row(record) in {*PAPER.values(), *WITH_NOISES}]
    for at_place, record in enumerate(found):
        names = [metrics(scale, record.get("dataset")) for scale in ("full", "mini", "tiny")]
        common = {
            name: record["metrics"][one[column]]
            for one in names
            for name, column in (("aa", "AA"), ("pr.08", "PR .08"))
            if one[column] in record.get("metrics", {})
        }
        record = found[at_place] = {**record, "metrics": {**record.get("metrics", {}), **common}}
        if row(record) in ("Corr_G", "Corr_L"):
            train = record["train"]
            method = f"{train['method']} {train['config']['noise']}"
            found[at_place] = {**record, "train": {**train, "method": method}}
    return found


def claims(records: side.Records, scale: str, made: side.Tables) -> list[side.Claim]:
    """The claims on tables 4, 5 and 12 use the first pair of data set and network, and the claims on figure 6
    use medians over all pairs."""
    rows = rows_of(records, scale)
    pairs = dict.fromkeys(map(pair, records))
    mine = claims_of(
        of_group(rows, first_pair(records)), [of_group(rows, one) for one in pairs], IMAGES[scale]
    )
    return list(map(side.beside, mine, printed_claims()))


def claims_of(
    rows: side.Rows, pairs: Sequence[side.Rows] = (), images: tuple[int, int, int] | None = None
) -> list[side.Claim]:
    """The claims, tested on printed values or on our values, with methods in rows. `pairs` contains the rows
    of each pair of a data set and a network, by default of a single pair. With `images`, differences within
    the sampling error leave a claim undecided."""
    pairs = pairs or [rows]
    # As in figure 6, AT-PR is omitted.
    shown = {*PAPER.values()} - {"AT-PR"}
    scores, spread = medians([{name: rows[name] for name in rows if name in shown} for rows in pairs])
    # The time is measured in one run only, so the number of passes is used if it is known.
    by = "passes" if any(at(rows, name, "passes") is not None for name in rows) else "s/epoch"
    compared: side.Values = {}
    for name in dict.fromkeys([*rows, *scores]):
        under = [value for one in pairs if (value := at(one, name, "AA")) is not None]
        more = {"cost": at(rows, name, by), ANY_AA: max(under, default=None)}
        compared[name] = {**rows.get(name, {}), **scores.get(name, {}), **more}
    # The paper's table 12 has another run of TRADES than table 4.
    if "TRADES" in rows:
        compared.setdefault(TRADES_12, compared["TRADES"])
    if images is not None:
        for name, row in compared.items():
            for column, half in spread.get(name, {}).items():
                if half is not None and (value := row[column]) is not None:
                    row[column] = WithInterval(value, value - half, value + half)
            row.update(with_intervals(row, images, SHARES))
    return [side.tested(words, tests, compared) for words, tests in items.paper("prbench", "full").claims]


def printed_claims(images: tuple[int, int, int] | None = None) -> list[side.Claim]:
    """The claims, tested on the printed tables; claims over all pairs are tested on the rows of the site."""
    board = fractions("site-prbench-leaderboard")
    pairs = dict.fromkeys(f"{name.rpartition(', ')[0]}, " for name in board)
    return claims_of(printed_rows(), [of_group(board, one) for one in pairs], images)


def at(rows: side.Rows, name: str, column: str) -> float | None:
    return rows.get(name, {}).get(column)


def show(column: str, value: float) -> str:
    if column in ("s/epoch", "passes"):
        return f"{value:.1f}"
    return side.rounded(value) if column in WEIGHTINGS else side.percent(value)


def by_noise(rows: side.Rows) -> side.Values:
    """Table 5: PR at four radii and the generalisation error at the first radius, by method and noise."""
    columns = ("Acc", *RADII, NOISE_GE)
    return {
        f"{name}, {noise}": {
            column: at(rows, name, column if column == "Acc" else f"{noise} {column}") for column in columns
        }
        for name in WITH_NOISES
        for noise in NOISES
        if name in rows
    }


def in_table_8(data: str, of: str, method: str) -> bool:
    return of in OF_TIMM.values() and method in OF_TABLE_8


def in_table_9(data: str, of: str, method: str) -> bool:
    return method in WITH_NOISES and data not in ("cinic10", "imagenet50")


def in_table_10(data: str, of: str, method: str) -> bool:
    apart = of in OF_TIMM.values() or in_table_11(data, of, method)
    return method in PAPER.values() and not apart


def in_table_11(data: str, of: str, method: str) -> bool:
    return data in SETS_11 or of == NETWORK_11


def in_table_12(method: str) -> bool:
    return method.startswith(("ERM", "Corr_U", "TRADES"))


def table(
    title: str, printed: side.Rows, mine: side.Rows, columns: Sequence[str], *site: side.Rows
) -> side.PaperTable:
    return side.PaperTable(title, printed, mine, columns, show, *site)


def tables(records: side.Records, scale: str) -> dict[str, side.PaperTable]:
    """Tables 4, 5 and 8 to 12, and the composite score. Table 10 has only values from the web page."""
    ours = rows_of(records, scale)
    first = first_pair(records)
    here = of_group(ours, first)
    # Below full scale the first pair is not one of the paper's, and only the others replace further pairs.
    further = {name: one for name, one in ours.items() if first == FIRST or not name.startswith(first)}
    methods = wanted(here, lambda method: method in PAPER.values())
    half_12 = wanted(of_group(ours, HALF_12), in_table_12)
    filtered = wanted(here, in_table_12) | {f"cifar100, {name}": one for name, one in half_12.items()}
    printed_12 = fractions("prbench-table-12")
    board, noises = fractions("site-prbench-leaderboard"), fractions("site-prbench-noises")
    on_8 = of_group(wanted(noises, in_table_8), "cifar10, ")
    on_8 = {name: {key.removeprefix("uniform "): one[key] for key in one} for name, one in on_8.items()}
    return {
        "table 4": table("Table 4", fractions("prbench-table-4"), methods, COLUMNS, of_group(board, FIRST)),
        "table 5": table(
            "Table 5",
            by_noise(fractions("prbench-table-5")),
            by_noise(here),
            ("Acc", *RADII, NOISE_GE),
            by_noise(of_group(noises, FIRST)),
        ),
        "table 8": table(
            "Table 8, transformers at 32 pixels",
            fractions("prbench-table-8"),
            of_group(wanted(ours, in_table_8), "cifar10, "),
            COLUMNS,
            on_8,
        ),
        "table 9": table(
            "Table 9, three noises",
            fractions("prbench-table-9"),
            wanted(further, in_table_9),
            ("Acc", *NOISE_COLUMNS),
            noises,
        ),
        "table 10": table(
            "Table 10, further pairs", {}, wanted(further, in_table_10), COLUMNS, wanted(board, in_table_10)
        ),
        "table 11": table(
            "Table 11, CINIC-10, ImageNet-50 and MNIST",
            fractions("prbench-table-11"),
            wanted(further, in_table_11),
            COLUMNS,
            wanted(board, in_table_11),
        ),
        "table 12": table(
            "Table 12",
            {name.removeprefix("cifar10, "): one for name, one in printed_12.items()},
            filtered,
            [*(column for column in COLUMNS if column != "AA"), "passes"],
        ),
        "composite": table(
            "Composite (figure 6, from the columns of table 4)",
            composite(fractions("prbench-table-4")),
            composite(methods),
            tuple(WEIGHTINGS),
        ),
    }


def report(records: side.Records, scale: str) -> str:
    """The tables, the claims on our records, and the number of claims that hold for the printed tables."""
    made = tables(records, scale)
    texts = [table.text() for table in made.values() if table.ours]
    further = [f"table {number}" for number in (8, 9, 10, 11)]
    without = [name for name in further if not made[name].ours]
    if without:
        texts.append(
            f"The records have no results for {' and '.join(without)}. SCALE=full trains the transformers of"
            " table 8 from timm's weights (PR_VITS, PR_VIT_S) and the pairs of tables 9 to 11 (PR_PAIRS).\n"
        )
    texts += [side.theory_text(records), side.told(claims(records, scale, made))]
    judged = printed_claims()
    failed = [f"{claim.words} ({claim.found})" for claim in judged if not claim.holds]
    sure = sum(claim.holds is not None for claim in printed_claims(IMAGES["full"]))
    said = (
        f"{len(judged) - len(failed)} of {len(judged)} claims hold for the printed tables; {sure} of them are"
        " decided beyond the sampling error."
    )
    return "\n".join([*texts, said, *(f"- not: {one}" for one in failed)])
