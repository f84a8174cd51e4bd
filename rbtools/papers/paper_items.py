"""Every numbered figure and table of four papers: the commands that make it here, or the reason why none
does.

A panel is a command line of pipes with {records} for the file of records, {out} for "-o FILE" and the width,
{to} for both, and the words of `WORDS`, which differ between the scales. `lacks` describes the contents that
are missing at the mini scale. Captions are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Item(NamedTuple):
    """A numbered figure or table: its panels by letter, or the key of its table, or the reason for neither.

    of: the reproduction whose records are drawn, where it is another paper's. maker: the command for the
    records of a table, if it is not the reproduction. note: the page's remark on it at every scale. columns:
    panels in a row. axes: what the paper's item has along its axes, or as rows and columns. verdict: "as in
    the paper", or what differs and why.
    """

    caption: str
    panels: Mapping[str, str] = {}
    table: str = ""
    reason: str = ""
    lacks: str = ""
    of: str = ""
    maker: str = ""
    note: str = ""
    columns: int = 2
    axes: str = ""
    verdict: str = ""


class Paper(NamedTuple):
    """A paper: its title, the reproduction (reproduce_NAME.py) that has its records, its items by number."""

    title: str
    records: str
    items: Mapping[str, Item]


# Words that differ between scales; {near} and {far} are the distances that replace the paper's.
WORDS: dict[str, dict[str, str]] = {
    "mini": {
        "near": "12",
        "far": "32",
        "one": "16",
        "three": "16",
        "eight": "32",
        "eps": "32",
        "steps": "20",
        "gamma": "0.12549",
        "aa": "ensemble-apgd-ce-apgd-t.32",
        "first": "probacc.uniform.0.12549.*",
        "middle": "0.3",
        "one_set": "",
        "and_set": "",
        "pair": "arch.name == 'nb201-13714'",
        "score": "--metric acc,pgd20.32,pr.uniform.0.3,probacc.uniform.0.12549.0.05,ge.pgd20.32:lower,"
        "ge.pr-all.uniform.0.3:lower,seconds_per_epoch:lower",
        "severity": "3",
    },
    "full": {
        "near": "3",
        "far": "8",
        "one": "1",
        "three": "3",
        "eight": "8",
        "eps": "8",
        "steps": "20",
        "gamma": "0.03",
        "aa": "aa.8",
        "first": "probacc.uniform.0.03.*,probacc.uniform.0.3.*",  # MNIST's
        "middle": "0.08",
        "one_set": "--where \"dataset == 'cifar10'\"",
        "and_set": " and dataset == 'cifar10'",
        "pair": "dataset == 'cifar10' and arch.name == 'resnet18'",
        "score": "--preset prbench-code",
        "severity": "3",
    },
}
WORDS["tiny"] = {
    **{word: text.replace("pgd20", "pgd2") for word, text in WORDS["mini"].items()},
    "steps": "2",
    "three": "8",
    "aa": "ensemble-apgd-ce.32",
    "pair": "arch.name == 'nb201-11472'",
}

_SETS = "the paper has CIFAR-10, CIFAR-100 and ImageNet16-120"
_FEW = "16 small networks on digits for the paper's 6,466"
_ROBUST = "mean(fgsm.{near},fgsm.{far},pgd20.{near},pgd20.{far})"
_ACCURACIES = "acc,fgsm.{near},fgsm.{far},pgd20.{near},pgd20.{far}"
_SAME = "as in the paper"
_CELLS = "x: the six edges; y: networks, the best first; colour: operation"


def _kernels(*attacks: str) -> str:
    """The clean kernel, and those on images attacked once and twice at both distances."""
    names = [
        f"ntk.{kernel}.fro.{attack}.{{{eps}}}"
        for attack in attacks
        for kernel in ("robust", "twice")
        for eps in ("near", "far")
    ]
    return ",".join(["ntk.clean.fro", *names])


NAS_ROBBENCH = Paper(
    "NAS-RobBench-201",
    "nas-robbench-201",
    {
        "figure 1": Item(
            "The cell of NAS-Bench-201 and the network that it is stacked to.",
            {
                "a": "rb-plot cells --view network --top 1 --by pgd20.{far} {one_set} {to}",
                "b": "rb-plot cells --view graph --top 1 --by pgd20.{far} {one_set} {to}",
            },
            axes="a cell of 4 nodes and 6 edges, the five operations, the network of its copies",
            verdict="the cell is that of the best network; the five operations are named in figure 4",
        ),
        "figure 2": Item(
            "Clean and robust accuracy over all networks; the line is guessing.",
            {"": f"rb-plot box --facet dataset --metric {_ACCURACIES} {{to}}"},
            lacks=_SETS,
            axes="x: clean, FGSM 3 and 8, PGD 3 and 8; y: accuracy; panels: data sets; line: guessing",
            verdict=_SAME,
        ),
        "figure 3": Item(
            "Distribution of accuracies; robust ones in the order of the clean; ranks on other data sets.",
            {
                "a": f"rb-plot hist --metric {_ACCURACIES} {{one_set}} {{to}}",
                "b": f"rb-plot ranks --by acc --metric {_ACCURACIES} {{one_set}} {{to}}",
                "c": f"rb-plot ranks --join arch.class --metric '{_ROBUST}' {{to}}",
            },
            lacks=_SETS + "; ranks across them need records of two or more",
            axes="a x: accuracy, y: networks, colour: metric; b x: networks in the order of an accuracy, y:"
            " accuracy or rank, colour: metric; c x: rank of the mean robust accuracy on CIFAR-10, y: rank"
            " there and on CIFAR-100 and ImageNet16-120",
            verdict="a and c as in the paper; whether b has ranks or accuracies on y the text does not say:"
            " here accuracies in the order of the clean one",
        ),
        "figure 4": Item(
            "Operations on each edge of the ten networks with the best mean robust accuracy.",
            {"": f"rb-plot cells --view grid --top 10 --by '{_ROBUST}' {{one_set}} {{to}}"},
            lacks=_FEW,
            axes=_CELLS,
            verdict="the mean is of FGSM and PGD at 3 and 8, which figure 8's caption names; section 3.1"
            " names AutoAttack too",
        ),
        "figure 5": Item(
            "Rank correlation of five tangent kernels at initialisation with clean and robust accuracy.",
            {"": f"rb-plot heatmap --rows {_ACCURACIES} --cols {_kernels('pgd')} {{one_set}} {{to}}"},
            lacks=_FEW,
            axes="x: clean kernel, robust and twice robust kernels of PGD at 3 and 8; y: clean, FGSM 3 and 8,"
            " PGD 3 and 8; colour: Spearman's rho",
            verdict=_SAME,
        ),
        "figure 6": Item(
            "The same of kernels on images perturbed by FGSM and PGD at both distances.",
            {"": f"rb-plot heatmap --rows {_ACCURACIES} --cols {_kernels('fgsm', 'pgd')} {{one_set}} {{to}}"},
            lacks=_FEW,
            axes="x: clean kernel, robust and twice robust kernels of FGSM and PGD at 3 and 8; y: clean, FGSM"
            " 3 and 8, PGD 3 and 8; colour: Spearman's rho",
            verdict="as in the paper, whose text speaks of ten kernels and lists these nine",
        ),
        "figure 7": Item(
            "Accuracy under common corruptions at severity 1 and 5.",
            {"": "rb-plot box --metric 'corrupt.*.1,corrupt.*.5' {one_set} {to}"},
            lacks="four corruptions of the 15",
            axes="x: the 15 corruptions at severity 1 and 5; y: accuracy; line: guessing",
            verdict="as in the paper; severities 2 to 4, with which it counts 75 metrics, are in none of its"
            " figures and tables and are not run",
        ),
        "figure 8": Item(
            "Operations on each edge of the ten best networks of the robustness dataset of NAS-Bench-201.",
            {
                "": "rb-plot cells --view grid --top 10"
                " --by 'mean(fgsm.{three},fgsm.{eight},pgd40.{three},pgd40.{eight})' {one_set} {to}"
            },
            of="nas-bench-201-robustness",
            lacks=_FEW,
            axes=_CELLS,
            verdict=_SAME,
        ),
        "table 1": Item(
            "Rank correlations of clean and robust accuracies, here and in the robustness dataset (starred).",
            table="table 1",
            axes="rows: the 15 pairs of clean, PGD 8, FGSM 8, clean*, PGD 8* and FGSM 8*; columns: Spearman",
            verdict="as in the paper, whose table is the symmetric matrix: a row here is one of its pairs",
        ),
        "table 2": Item(
            "What searches by one metric find; the optimum has the best mean robust accuracy.",
            table="table 2",
            lacks="ten runs of ten queries, all of which evolution and local search too make at random, so"
            " that the three are alike; a table of 16 networks has hardly a neighbour of one",
            axes="rows: the optimum, and three searches by clean, FGSM 8 and PGD 8;"
            " columns: Clean, FGSM3, PGD3, FGSM8, PGD8",
            verdict=_SAME,
        ),
        "table 3": Item(
            "Symbols of the theory.",
            reason="It is a list of symbols and has no data.",
            axes="symbols and their meaning",
            verdict="not made: no data",
        ),
        "table 4": Item(
            "Five signs that gradients are not obstructed.",
            table="table 4",
            lacks="Square is of 100 images, PGD of all",
            note="The paper says in words which of its five best networks has which sign; the numbers behind"
            " a and b are those of its table 5, at 3. All five signs of one network with the images are"
            " rb-attack check",
            axes="rows: the five signs, a, b and e at 3 and 8; columns:"
            " none=0, none=1, none=2, none=3, none=4, share of all",
            verdict="the paper's table names the signs alone; its text has them of the networks of table 5,"
            " ours of all networks too; e compares shares of images, as a and b do",
        ),
        "table 5": Item(
            "The best network of each number of none edges under attacks of growing distance.",
            table="table 5",
            axes="rows: none edges; columns: clean, FGSM 3, Square 3, PGD 3, PGD 8, PGD 16, PGD 32, PGD 64,"
            " PGD 128, PGD 255",
            verdict=_SAME,
        ),
        "table 6": Item(
            "Rank correlation of accuracy under corruptions (severity 5) and attacks.",
            table="table 6",
            lacks="four corruptions of the 15",
            axes="rows: 15 corruptions; columns: PGD 3, FGSM 3, PGD 8, FGSM 8",
            verdict=_SAME,
        ),
        "table 7": Item(
            "What scores without training and differentiable searches find.",
            table="table 7",
            note="The paper repeats its table 2 in the first ten rows; they are left out here. The cells that"
            " NASI, AdvRush and DARTS derived are not printed, so these searches are run"
            " again; one cell is known, that of DARTS-V1 in NAS-Bench-201 (skip connections alone, #1835): it"
            " has a row of its own",
            lacks="short searches of small supernets on digits",
            axes="rows: KNAS, EigenNAS, NASI, NASWOT, AdvRush, DARTS; columns: clean, FGSM 3, PGD 3, FGSM 8,"
            " PGD 8",
            verdict="the cells of NASI, AdvRush and DARTS are those of searches of ours",
        ),
    },
)

_BOUNDS = "rows: networks; columns: clean bound, clean error, robust bound, robust error"
_CONSTANTS = (
    "the paper prints no values; constants are left out, as in its O; widths are finite, and the error is of"
    " one iterate drawn"
)
_DIGITS = "two classes of digits and small networks"
THEORY = Paper(
    "the theory of NAS-RobBench-201",
    "theory",
    {
        "theorem 1": Item(
            "Bounds of the expected clean and robust error of fully connected residual networks.",
            table="theorem 1",
            lacks=_DIGITS,
            axes=_BOUNDS,
            verdict=_CONSTANTS,
        ),
        "theorem 2": Item(
            "Lower bounds of the smallest eigenvalue of the clean and the robust kernel.",
            table="theorem 2",
            lacks=_DIGITS,
            axes="rows: networks; columns: clean bound, clean kernel, robust bound, robust kernel",
            verdict="the paper prints no values; the kernels here are of networks of finite width",
        ),
        "corollary 1": Item(
            "The bounds of theorem 1 for convolutional residual networks.",
            table="corollary 1",
            lacks=_DIGITS,
            axes=_BOUNDS,
            verdict=_CONSTANTS
            + "; filters are two-dimensional, kappa x kappa, where the paper's slide over a row"
            " of p pixels",
        ),
        "algorithm 1": Item(
            "Stochastic gradient descent on clean and adversarial loss, an image a step.",
            table="algorithm 1",
            lacks=_DIGITS,
            axes="rows: networks; columns: step size, iterations, iterate drawn",
            verdict="as in the paper, with the step size of theorem 1 for corollary 1 too; beta is .5, rho .1"
            " and nu / (sqrt(C) e^C) 1, which the paper leaves open",
        ),
    },
)

_METHODS = "10 methods on one small network and digits; the paper has 15 pairs of data set and network"
_PAIRS = (
    "make reproduce-prbench with PR_PAIRS='SET/NETWORK ...' trains them, SCALE=full all 14 further pairs; the"
    " paper's values stand alone."
)
_FOUR = "four methods on digits; the paper has nine, and CIFAR-10, CIFAR-100, Tiny-ImageNet and SVHN"
_AS_PRINTED = "as in the paper"
_OF_CODE = "the radius of ProbAcc and the first of PR is .03 as in the paper's code, which made its numbers"
_SITE = "where the paper's site has other values than the printed table, both stand there, named"
# Figures but 2d show corruption training with uniform noise alone, and 3 to 5 no transformers.
_NOISES = "'corruption gaussian','corruption laplace'"
_UNIFORM = f"train.method not in [{_NOISES}]"
_OF_PAIR = f'--where "{{pair}} and {_UNIFORM}" {{to}}'
_CONVOLUTIONAL = f"--facet dataset,arch.name --where \"{_UNIFORM} and arch.space != 'timm'\" {{to}}"
_COMPOSITE = (
    "rb-plot box {score} --within dataset,arch.name --missing renormalise"
    f" --where \"{_UNIFORM} and train.method != 'at-pr'\""
)
_SCORE_AXES = "y: composite score of acc, PGD-20, PR at .08, ProbAcc .05, GE of PGD-20 and of PR at .08, time"
_FACETS = "a panel a data set and network, a line a method"
_SCORE_VERDICT = (
    "as in the paper, but the score is a mean between 0 and 1 where the paper has the sum of seven"
)
PRBENCH = Paper(
    "PRBench",
    "prbench",
    {
        "figure 1": Item(
            "The two kinds of robustness.",
            reason="A drawing without data.",
            verdict="A drawing without data.",
        ),
        "figure 2": Item(
            "Adversarial against probabilistic robustness, composite scores, PR over the radius of uniform"
            " and of Laplace noise, ProbAcc over the tolerated rate, generalisation error over the radius.",
            {
                "a": "rb-plot scatter --x {aa} --y pr.uniform.{middle} --colour train.method"
                f' --where "{_UNIFORM}" {{to}}',
                "b": f"{_COMPOSITE} --weightings equal {{to}}",
                "c": f"rb-plot curves --metric 'pr.uniform.*' {_OF_PAIR}",
                "d": "rb-plot curves --metric 'pr.laplace.*' --where \"{pair} and train.method in"
                f" ['corruption',{_NOISES},'pgd']\" {{to}}",
                "e": f"rb-plot curves --over rho --metric 'probacc.uniform.{{gamma}}.*' {_OF_PAIR}",
                "f": f"rb-plot curves --metric 'ge.pr-all.uniform.*' {_OF_PAIR}",
            },
            lacks=f"{_METHODS}; AutoAttack is its APGD-CE and APGD-T on 50 images",
            axes="a: x accuracy under AutoAttack, y PR of uniform noise at .08, colour the method, all data"
            f" sets; b: x method, {_SCORE_AXES}, all pairs, equal weights; c: x radius, y PR of uniform"
            " noise; d: x radius, y PR of Laplace noise, corruption and PGD training; e: x rho, y ProbAcc at"
            " .03; f: x radius, y GE of PR of uniform noise; c to f: ResNet-18 on CIFAR-10, a line a method",
            verdict="as in the paper, but that a lacks MNIST, which is attacked at .3 and has noise of .35,"
            f" and that b has a mean between 0 and 1 for the sum of seven; {_OF_CODE}",
        ),
        "figure 3": Item(
            "PR of uniform noise over its radius, a panel for each data set and network.",
            {"": f"rb-plot curves --metric 'pr.uniform.*' {_CONVOLUTIONAL}"},
            lacks=_METHODS,
            axes=f"x: radius; y: PR of uniform noise; {_FACETS}",
            verdict=_AS_PRINTED,
        ),
        "figure 4": Item(
            "ProbAcc over the tolerated rate, a panel for each data set and network.",
            {"": f"rb-plot curves --over rho --metric '{{first}}' {_CONVOLUTIONAL}"},
            lacks=_METHODS,
            axes=f"x: rho; y: ProbAcc at .03; {_FACETS}",
            verdict=f"as in the paper, whose caption lacks MNIST's SimpleCNN, which is here; {_OF_CODE}",
        ),
        "figure 5": Item(
            "Generalisation error of PR over the radius, a panel for each data set and network.",
            {"": f"rb-plot curves --metric 'ge.pr-all.uniform.*' {_CONVOLUTIONAL}"},
            lacks=_METHODS,
            axes=f"x: radius; y: GE of PR of uniform noise; {_FACETS}",
            verdict="as in the paper; PR is over all images there, as in the paper's code",
        ),
        "figure 6": Item(
            "Composite scores of the methods under six weightings of the metrics.",
            {"": f"{_COMPOSITE} --weightings prbench {{to}}"},
            lacks=_METHODS,
            axes=f"x: method; {_SCORE_AXES}; a panel a weighting; all pairs",
            verdict=_SCORE_VERDICT,
        ),
        "table 1": Item(
            "Abbreviations.", reason="Words without data.", verdict="Words without data: nothing to measure."
        ),
        "table 2": Item(
            "Training methods and their losses.",
            reason="Formulas without data: rb-train --help.",
            verdict="Formulas without data: the methods are rb-train's.",
        ),
        "table 3": Item(
            "Definitions of the metrics.",
            reason="Formulas without data: rb-pr and rb-ge --help.",
            verdict="Formulas without data: the metrics are those of rb-attack, rb-pr and rb-ge.",
        ),
        "table 4": Item(
            "All metrics of ResNet-18 on CIFAR-10 by method.",
            table="table 4",
            note=f"CVaR draws 10 perturbations, as the paper's code does; its text says 20 (rb-train --preset"
            f" prbench). Of AT-PR only the printed values are there; {_SITE}",
            lacks=f"{_METHODS}; AA is of AutoAttack's APGD-CE and APGD-T on 50 images",
            axes="rows: 10 methods; columns: Acc, PGD10, PGD20, CW20, AA, PR at 4 radii, ProbAcc at 3"
            " rates, GE of PGD20 and of PR at 4 radii, seconds an epoch",
            verdict=f"{_AS_PRINTED}; {_OF_CODE}",
        ),
        "table 5": Item(
            "PR under uniform, Gaussian and Laplace noise, and its generalisation error at the first radius.",
            table="table 5",
            note=_SITE,
            lacks=_METHODS,
            axes="rows: ERM, Corr_U, Corr_G, Corr_L, PGD; columns: Acc, PR at 4 radii of each of three"
            " noises, GE of PR at .03 of each noise",
            verdict="as in the paper, with a row for each noise in place of columns",
        ),
        "table 6": Item(
            "Networks.",
            reason="A list: rb-arch --space zoo has them with their parameters.",
            verdict="A list: the networks are those of rb-arch.",
        ),
        "table 7": Item(
            "Data sets.",
            reason="A list: rb-train --dataset names them.",
            verdict="A list: the data sets are those of rb-train.",
        ),
        "table 8": Item(
            "Vision transformers from ImageNet's weights, at 32 pixels with patches of 4.",
            table="table 8",
            note=f"ViT-L starts from timm's weights augreg_in21k_ft_in1k; the site has PR of four"
            f" networks. {_SITE}",
            maker="make reproduce-prbench SCALE=full trains DeiT-T, DeiT-S, ViT-B, ViT-L (PR_VITS) and ViT-S"
            " (PR_VIT_S) from timm's weights; a smaller scale has none to start from. The paper's values"
            " stand alone.",
            axes="rows: 5 transformers by ERM, Corr_U, PGD, TRADES, MART, CLP, KL-PGD; columns: those of"
            " table 4",
            verdict=_AS_PRINTED,
        ),
        "table 9": Item(
            "PR under three kinds of noise for further pairs, after training with noise of each kind or PGD.",
            table="table 9",
            note="Cells that are not legible in the text at hand, which ends in SVHN, are empty; the site"
            f" has Tiny-ImageNet and MNIST too. {_SITE}",
            maker=_PAIRS,
            lacks="five methods on digits and two small networks",
            axes="rows: data set and network by ERM, Corr_U, Corr_G, Corr_L, PGD; columns: those of table 5",
            verdict=_AS_PRINTED,
        ),
        "table 10": Item(
            "The metrics of table 4 for further data sets and networks.",
            table="table 10",
            note="The text of this table is not at hand: the values of the paper's site stand for it, named",
            maker=_PAIRS,
            lacks=_FOUR,
            axes="rows: data set and network by method; columns: those of table 4",
            verdict="not read beside the paper: the printed table is not at hand, and rows are those of"
            " the site",
        ),
        "table 11": Item(
            "The metrics of table 4 for CINIC-10, ImageNet-50 and MNIST.",
            table="table 11",
            note="MNIST's rows of Corr_U and CVaR are as printed; the site has them the other way"
            f" round, and there the costly method takes the longer time; {_SITE}",
            maker=_PAIRS,
            lacks="MNIST's SimpleCNN on digits and six methods; the radii of digits are .13, .3, .35 and .4",
            axes="rows: CINIC-10 and ImageNet-50 by 11 methods, MNIST by 9; columns: those of table 4",
            verdict=f"{_AS_PRINTED}; {_OF_CODE}",
        ),
        "table 12": Item(
            "TRADES with the filter of Chen and Lee after m steps, on CIFAR-10 and CIFAR-100.",
            table="table 12",
            note="The text at hand ends in CIFAR-100, of which ERM and most of Corr_U are legible",
            lacks="digits alone, and m of 1, 4 and 8",
            axes="rows: ERM, Corr_U, TRADES, and TRADES with the filter at m = 1 to 8, on each of two sets;"
            " columns: those of table 4 without AA",
            verdict=_AS_PRINTED,
        ),
    },
)

_ATTACKS = "'acc,fgsm.*,pgd40.*,apgd-ce.*,square.*'"
_SMALL = "25 small networks on digits for the paper's 6,466"
_TWO = "needs records of CIFAR-100 or ImageNet16-120, which SCALE=full has"


def _box(what: str) -> dict[str, str]:
    return {"": f"rb-plot box --metric {what} {{one_set}} {{to}}"}


def _kendall(what: str) -> dict[str, str]:
    return {"": f"rb-plot heatmap --kind kendall --metric {what} {{one_set}} {{to}}"}


def _top(edges: str) -> dict[str, str]:
    return {
        "": "rb-plot cells --view grid --top 20 --by 'mean(fgsm.{one},pgd40.{one})'"
        f' --where "{edges}{{and_set}}" {{to}}'
    }


def _on(dataset: str, panels: Mapping[str, str]) -> dict[str, str]:
    """The panels, of the records of one data set."""
    return {
        letter: line.replace("{one_set}", f"--where \"dataset == '{dataset}'\"")
        for letter, line in panels.items()
    }


# Figures 2 to 4 on further data sets: caption, panels, data set.
_FURTHER = {
    19: ("Accuracy under attacks by distance, CIFAR-100.", _box(_ATTACKS), "cifar100"),
    20: ("Accuracy under attacks by distance, ImageNet16-120.", _box(_ATTACKS), "imagenet16-120"),
    21: ("Accuracy under corruptions by severity, CIFAR-100.", _box("'corrupt.*'"), "cifar100"),
    22: ("Accuracy under corruptions, CIFAR-100, the rest.", _box("'corrupt.*'"), "cifar100"),
    23: ("Kendall's rank correlations under attacks, CIFAR-100.", _kendall(_ATTACKS), "cifar100"),
    24: ("Kendall's rank correlations under attacks, ImageNet16-120.", _kendall(_ATTACKS), "imagenet16-120"),
}
ROBUSTNESS_DATASET = Paper(
    "Neural Architecture Design and Robustness: A Dataset",
    "nas-bench-201-robustness",
    {
        "figure 1": Item(
            "The search space: a cell, and the network that it is stacked to.",
            {
                "a": "rb-plot cells --view network --top 1 --by acc {one_set} {to}",
                "b": "rb-plot cells --view graph --top 1 --by acc {one_set} {to}",
            },
        ),
        "figure 2": Item("Accuracy under attacks by distance.", _box(_ATTACKS), lacks=_SMALL),
        "figure 3": Item(
            "Kendall's rank correlations of clean and robust accuracies.", _kendall(_ATTACKS), lacks=_SMALL
        ),
        "figure 4": Item(
            "Accuracy under corruptions by severity.", _box("'corrupt.*'"), lacks="severities 3 and 4 alone"
        ),
        "figure 5": Item(
            "Kendall's rank correlations of accuracies under corruptions, severity 3.",
            _kendall("'acc,corrupt.*.3'"),
            lacks=_SMALL,
        ),
        "figure 6": Item(
            "Kendall's rank correlation of Jacobian and Hessian with robust accuracies.",
            {
                "": "rb-plot heatmap --kind kendall --rows 'jacobian.*,hessian.*.weight.l*'"
                " --cols 'acc,fgsm.{one},pgd40.{one},apgd-ce.{one},square.{one},corrupt.*.3' {one_set} {to}"
            },
            lacks=_SMALL,
        ),
        "figure 7": Item(
            "The best twenty networks of 18 kernel parameters by mean robust accuracy.",
            _top("live_kernel_params == 18"),
            lacks="six networks of 18 kernel parameters",
        ),
        "figure 8": Item(
            "Two numbers of one network: #1832 and #309.",
            {"": "rb-arch --index 1832,309 | rb-plot cells --view graph {out}"},
        ),
        "figure 9": Item("How the data set was gathered.", reason="A drawing without data."),
        "figure 10": Item(
            "Two numbers of one network: #3365 and #991.",
            {"": "rb-arch --index 3365,991 | rb-plot cells --view graph {out}"},
        ),
        "figure 11": Item("(no description at hand)", reason="What it shows is not known here."),
        "figure 12": Item("(no description at hand)", reason="What it shows is not known here."),
        "figure 13": Item(
            "Confidence on clean images by class: of the label and of the prediction.",
            {"": "rb-plot confidence --view class --metric acc {one_set} {to}"},
        ),
        "figure 14": Item(
            "What images of class 0 are taken for as the distance grows.",
            {"": "rb-plot confidence --view label --class 0 --metric 'fgsm.*,pgd40.*' {one_set} {to}"},
        ),
        "figure 15": Item(
            "Confidence of right and wrong predictions by distance.",
            {"": "rb-plot confidence --metric 'fgsm.*,pgd40.*' {one_set} {to}"},
        ),
        "figure 16": Item(
            "Confusion on clean images, over all networks.",
            {"": "rb-plot confusion --metric acc {one_set} {to}"},
        ),
        "figure 17": Item(
            "Kendall's rank correlation of clean accuracies between data sets.",
            {
                "": "rb-corr --join arch.class --by dataset --metric acc --kind kendall {records} |"
                " rb-plot heatmap --kind kendall {out}"
            },
            lacks=_TWO,
        ),
        "figure 18": Item(
            "The corruptions of an image at five severities.",
            {"": "rb-plot corruptions all {out}"},
            lacks="an image of digits for one of CIFAR-10",
        ),
        **{
            f"figure {number}": Item(caption, _on(dataset, panels), lacks=_TWO)
            for number, (caption, panels, dataset) in _FURTHER.items()
        },
        "figure 25": Item(
            "Kendall's rank correlations of accuracies under corruptions, severity 4.",
            _kendall("'acc,corrupt.*.4'"),
            lacks="severities 3 and 4 alone",
        ),
        "figure 26": Item(
            "The three best cells.",
            {"": "rb-plot cells --view graph --top 3 --by acc {one_set} {to}"},
            lacks=_SMALL,
        ),
        "figure 27": Item(
            "Robust over clean accuracy, coloured by kernel parameters.",
            {
                "": "rb-plot scatter --x acc --y 'mean(fgsm.{one},pgd40.{one})' --colour kernel_params"
                " {one_set} {to}"
            },
            lacks=_SMALL,
        ),
        "figure 28": Item(
            "The same, with the networks of 18 kernel parameters marked.",
            {
                "": "rb-plot scatter --x acc --y 'mean(fgsm.{one},pgd40.{one})'"
                " --highlight 'live_kernel_params == 18' {one_set} {to}"
            },
            lacks=_SMALL,
        ),
        "figure 29": Item(
            "The best twenty networks of 18 kernel parameters by another mean.",
            {
                "": "rb-plot cells --view grid --top 20 --by 'mean(corrupt.*)'"
                ' --where "live_kernel_params == 18{and_set}" {to}'
            },
            lacks="six networks of 18 kernel parameters",
        ),
        "figure 30": Item(
            "The neighbours of the network that is best on clean images (#13714).",
            {
                "": "rb-plot scatter --x acc --y 'mean(fgsm.{one},pgd40.{one})' --neighbours 13714"
                " {one_set} {to}"
            },
            lacks="three neighbours of 24",
        ),
        "table 1": Item(
            "What searches find on clean and on FGSM accuracy, and the best there is.",
            table="table 1",
            lacks="ten runs of ten queries, without BANANAS, among so few networks: all queries are random,"
            " so that the searches are alike",
        ),
        "table 2": Item("Attacks and their distances.", reason="Settings: rbtools/attacks/presets.py."),
        "table 3": Item("Keys of the files.", reason="A list: rb-convert jung2023 reads and writes them."),
        "table 4": Item("Keys of the files.", reason="A list: rb-convert jung2023 reads and writes them."),
    },
)

_REGULAR = "dataset,train.config.regularize"
WCI = Paper(
    "Weight-Curvature Index",
    "wci",
    {
        "figure 1": Item(
            "Along adversarial training: robust losses; robust errors; the index beside the gap of losses, a"
            " panel for each regularisation; the index beside the gap of errors.",
            {
                "a": "rb-plot curves --over epoch --metric train_robust_loss --right test_robust_loss"
                f" --same-scale --facet {_REGULAR} {{to}}",
                "b": "rb-plot curves --over epoch --metric train_robust_error --right test_robust_error"
                " --same-scale"
                f" --facet {_REGULAR} {{to}}",
                "c": "rb-plot curves --over epoch --metric wci --right robust_loss_gap"
                f" --facet {_REGULAR} {{to}}",
                "d": "rb-plot curves --over epoch --metric wci --right robust_error_gap"
                f" --facet {_REGULAR} {{to}}",
            },
            lacks="24 epochs of a small network on digits; the paper: PreActResNet-18, CIFAR-10 and -100",
        )
    },
)

PAPERS = {
    "nas-robbench-201": NAS_ROBBENCH,
    "robustness-dataset": ROBUSTNESS_DATASET,
    "prbench": PRBENCH,
    "wci": WCI,
    "theory": THEORY,
}
