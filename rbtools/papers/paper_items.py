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
    the paper", or what differs and why. The page shows both, and ends them with a full stop.
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
        "photograph": "",
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
        "photograph": " --dataset cifar10",
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
            lacks=f"{_FEW}; 32 for 8",
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
            note="The paper runs Square, and PGD beyond 8, on these five networks; the recipe on all, since"
            " the best ones are known at the end",
            lacks=f"{_FEW}; four times the distances, and 255 for all above",
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
_SCORE = (
    "a mean between 0 and 1 where the paper has the sum of seven; min and max are of each pair, and AT-PR,"
    " which not all pairs have, is left out: the text says neither"
)
_SCORE_VERDICT = f"as in the paper, but the score is {_SCORE}"
PRBENCH = Paper(
    "PRBench",
    "prbench",
    {
        "figure 1": Item(
            "The two kinds of robustness.",
            reason="A drawing without data.",
            axes="no axes: two drawings",
            verdict="not made: no data",
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
            f" and that b has {_SCORE}; {_OF_CODE}",
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
            "Abbreviations.",
            reason="Words without data.",
            axes="rows: abbreviations; columns: their meaning",
            verdict="not made: no data",
        ),
        "table 2": Item(
            "Training methods and their losses.",
            reason="Formulas without data: rb-train --help.",
            axes="rows: ERM, 6 AT methods, Corruption, CVaR, AT-PR; columns: loss, perturbation",
            verdict="not made: formulas; the methods are those of rb-train",
        ),
        "table 3": Item(
            "Definitions of the metrics.",
            reason="Formulas without data: rb-pr and rb-ge --help.",
            axes="columns: AR, PR and ProbAcc, GE",
            verdict="not made: formulas; the metrics are those of rb-attack, rb-pr and rb-ge",
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
            axes="rows: 10 networks; columns: category, size, trained from the start or pre-trained",
            verdict="not made: a list; the networks are those of rb-arch",
        ),
        "table 7": Item(
            "Data sets.",
            reason="A list: rb-train --dataset names them.",
            axes="rows: 7 data sets; columns: images of training and test, resolution, classes",
            verdict="not made: a list; the data sets are those of rb-train",
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
            note="Cells that are not legible in the text at hand, which ends in SVHN, are empty; those of"
            " ResNet-18 on CIFAR-10 are table 5's, which are the same; the site has Tiny-ImageNet and MNIST"
            f" too. {_SITE}",
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
            " the site, with nine methods; the text names AT-PR in it too",
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

_ATTACKS = "fgsm.*,pgd40.*,apgd-ce.*,square.*"
_ROBUST_OF_ALL = f"'mean({_ATTACKS})'"
_CORRUPTED = "'mean(corrupt.*)'"
_SMALL = "25 small networks on digits for the paper's 6,466"
_TWO = "needs records of CIFAR-100 or ImageNet16-120, which SCALE=full has"
_EIGHTEEN = "six networks of 18 kernel parameters"
_AS_IS = "as in the paper"
_COUNTED = (
    "as in the paper; parameters on edges from input to output count, by which 408 networks have 18, as there"
)
_DISTANCES = "FGSM has 11 distances, 255 among them, the others 7 (section 3.2)"
_OVER_DISTANCE = (
    "x: distance in 1/255; y: accuracy of all networks as boxes; a panel an attack; line: guessing"
)
_OVER_SEVERITY = (
    "x: severity 1 to 5; y: accuracy of all networks as boxes; a panel a corruption; line: guessing"
)
_EDGES = "x: edges 1 to 6; y: the best twenty networks of 18 kernel parameters; colour: operation"


def _box(what: str) -> dict[str, str]:
    return {"": f"rb-plot box --metric '{what}' {{one_set}} {{to}}"}


def _kendall(what: str) -> dict[str, str]:
    return {"": f"rb-plot heatmap --kind kendall --metric 'acc,{what}' {{one_set}} {{to}}"}


def _top(by: str) -> str:
    """The best twenty of two 3x3 convolutions and no 1x1: 408 networks, as the paper counts them."""
    return (
        f'rb-plot cells --view grid --top 20 --by {by} --where "live_kernel_params == 18{{and_set}}" {{to}}'
    )


def _means(more: str) -> tuple[str, str]:
    """Mean accuracy under attacks, and under corruptions, over clean accuracy."""
    lines = (
        f"rb-plot scatter --x acc --y {y} {more} {{one_set}} {{to}}" for y in (_ROBUST_OF_ALL, _CORRUPTED)
    )
    first, second = lines
    return first, second


def _on(dataset: str, panels: Mapping[str, str]) -> dict[str, str]:
    """The panels, of the records of one data set."""
    return {
        letter: line.replace("{one_set}", f"--where \"dataset == '{dataset}'\"")
        for letter, line in panels.items()
    }


def _further(caption: str, dataset: str, panels: Mapping[str, str], axes: str, verdict: str = _AS_IS) -> Item:
    """A figure of the main text on a further data set."""
    return Item(caption, _on(dataset, panels), lacks=_TWO, axes=axes, verdict=verdict)


_PAIRS_OF_ATTACKS = "rows, columns: clean accuracy, then attacks by distance; colour: Kendall's tau"
_PAIRS_OF_CORRUPTIONS = "rows, columns: clean accuracy, then 15 corruptions; colour: Kendall's tau"
ROBUSTNESS_DATASET = Paper(
    "Neural Architecture Design and Robustness: A Dataset",
    "nas-bench-201-robustness",
    {
        "figure 1": Item(
            "The search space: the network around the cells, and a cell with its operations.",
            {
                "top": "rb-plot cells --view network --top 1 --by acc {one_set} {to}",
                "bottom": "rb-plot cells --view graph --top 1 --by acc {one_set} {to}",
            },
            columns=1,
            axes="no axes: stages of the network; nodes and edges of a cell",
            verdict="as in the paper, with the cell that is best on clean images for any cell",
        ),
        "figure 2": Item(
            "Accuracy under four attacks by distance, CIFAR-10.",
            _box(_ATTACKS),
            lacks=_SMALL,
            axes=_OVER_DISTANCE,
            verdict=f"{_AS_IS}; {_DISTANCES}",
        ),
        "figure 3": Item(
            "Kendall's rank correlations of clean and robust accuracies, CIFAR-10.",
            _kendall(_ATTACKS),
            lacks=_SMALL,
            axes=_PAIRS_OF_ATTACKS,
            verdict=_AS_IS,
        ),
        "figure 4": Item(
            "Accuracy under corruptions by severity, CIFAR-10-C.",
            _box("corrupt.*"),
            lacks="severities 3 and 4 alone",
            axes=_OVER_SEVERITY,
            verdict="eight of the corruptions are in the paper's; which ones its text does not say, so that"
            " all 15 are here",
        ),
        "figure 5": Item(
            "Kendall's rank correlations of accuracies under corruptions, severity 3, CIFAR-10-C.",
            _kendall("corrupt.*.3"),
            lacks=_SMALL,
            axes=_PAIRS_OF_CORRUPTIONS,
            verdict=_AS_IS,
        ),
        "figure 6": Item(
            "Kendall's rank correlation of Jacobian and Hessian, of fresh and of trained networks, on"
            " training and test images, with accuracies under attacks (above) and under corruptions (below).",
            {
                place: "rb-plot heatmap --kind kendall --rows 'jacobian.*,hessian.*weight.lmax'"
                f" --cols '{metrics}' {{one_set}} {{to}}"
                for place, metrics in (("top", _ATTACKS), ("bottom", "corrupt.*.3"))
            },
            columns=1,
            lacks=_SMALL,
            axes="rows: Frobenius norm of the Jacobian and largest eigenvalue of the Hessian, each on fresh"
            " and trained networks, training and test images; columns: attacks by distance (top), corruptions"
            " (bottom); colour: Kendall's tau",
            verdict="as in the paper; its caption names no severity, and 3 is that of its figure 5",
        ),
        "figure 7": Item(
            "The best twenty networks of 18 kernel parameters by mean robust accuracy.",
            {"": _top(_ROBUST_OF_ALL)},
            lacks=_EIGHTEEN,
            axes=_EDGES,
            verdict=_COUNTED,
        ),
        "figure 8": Item(
            "Two numbers of one network: #3365 and #991, the one that is evaluated.",
            {"": "rb-arch --index 3365,991 | rb-plot cells --view graph {out}"},
            axes="no axes: two cells as graphs",
            verdict=_AS_IS,
        ),
        "figure 9": Item(
            "How the data set was gathered.",
            reason="A drawing without data.",
            axes="no axes",
            verdict="a drawing without data: its steps are the recipe",
        ),
        "figure 10": Item(
            "An excerpt of meta.json, as rb-convert jung2023 writes it: two architectures, and the"
            " distances.",
            table="figure 10",
            lacks="distances of digits",
            axes="JSON: ids 21 and 1832 with string and isomorph; epsilons of four attacks",
            verdict="as in the paper, with the published files' names of attacks: pgd@Linf for pgd",
        ),
        "figure 11": Item(
            "An excerpt of clean_accuracy.json and of pgd_accuracy.json: one architecture.",
            table="figure 11",
            note="rb-convert jung2023 writes these accuracies to clean_accuracy.json and"
            " pgd@Linf_accuracy.json",
            lacks="a small network on digits, and four times the distances",
            axes="row: #0; columns: clean accuracy, PGD at seven distances",
            verdict="as in the paper, as a table with its rounded values beside ours",
        ),
        "figure 12": Item(
            "An excerpt of clean_confidence.json, as rb-convert jung2023 writes it, without numbers.",
            table="figure 12",
            axes="JSON: data set, key, measure, architecture, then label, argmax, prediction",
            verdict=_AS_IS,
        ),
        "figure 13": Item(
            "Confidence on clean images: of the true class, of the predicted class, of correct and of wrong"
            " predictions.",
            {"": "rb-plot confidence --view class --metric acc {one_set} {to}"},
            lacks=_SMALL,
            axes="three panels; x: true class (label), predicted class (argmax), correct and incorrect"
            " (prediction); y: mean confidence of all networks",
            verdict="as in the paper; medians and the middle 80 % of networks",
        ),
        "figure 14": Item(
            "What images of class 0 are taken for as the distance of FGSM grows.",
            {"": "rb-plot confidence --view label --class 0 --metric 'acc,fgsm.*' {one_set} {to}"},
            lacks=_SMALL,
            axes="x: distance of FGSM in 1/255, from clean; y: mean confidence of each class over images of"
            " class 0",
            verdict="as in the paper; medians of networks",
        ),
        "figure 15": Item(
            "Confidence of correct against that of wrong predictions under FGSM, a point a distance.",
            {"": "rb-plot confidence --view prediction --metric 'fgsm.*' {one_set} {to}"},
            lacks=_SMALL,
            axes="x: mean confidence where correct; y: where incorrect; a point a distance of FGSM, its"
            " number above it",
            verdict="as in the paper; medians and the middle 80 % of networks",
        ),
        "figure 16": Item(
            "Confusion on clean images, summed over all networks.",
            {"": "rb-plot confusion --metric acc {one_set} {to}"},
            lacks=_SMALL,
            axes="rows: true class; columns: predicted class; colour: images of all networks",
            verdict="as in the paper; as shares of each true class",
        ),
        "figure 17": Item(
            "Kendall's rank correlations of all clean and adversarial accuracies of three data sets.",
            {
                "": f"rb-corr --join arch.class --by dataset --metric 'acc,{_ATTACKS}' --kind kendall"
                " {records} | rb-plot heatmap --kind kendall {out}"
            },
            lacks=_TWO,
            axes="rows, columns: data set by clean accuracy and attacks by distance; colour: Kendall's tau",
            verdict=_AS_IS,
        ),
        "figure 18": Item(
            "The corruptions of an image at five severities.",
            {"": "rb-plot corruptions all{photograph} {out}"},
            lacks="an image of digits for one of CIFAR-10",
            axes="rows: 15 corruptions; columns: severity 1 to 5",
            verdict="as in the paper, with the first image that rb-corrupt evaluates",
        ),
        "figure 19": _further("Figure 2 on CIFAR-100.", "cifar100", _box(_ATTACKS), _OVER_DISTANCE),
        "figure 20": _further(
            "Figure 2 on ImageNet16-120.", "imagenet16-120", _box(_ATTACKS), _OVER_DISTANCE
        ),
        "figure 21": Item(
            "Accuracy under all 15 corruptions by severity, CIFAR-10-C.",
            _box("corrupt.*"),
            lacks="severities 3 and 4 alone",
            axes=_OVER_SEVERITY,
            verdict=_AS_IS,
        ),
        "figure 22": _further(
            "Accuracy under all 15 corruptions by severity, CIFAR-100-C.",
            "cifar100",
            _box("corrupt.*"),
            _OVER_SEVERITY,
        ),
        "figure 23": _further("Figure 3 on CIFAR-100.", "cifar100", _kendall(_ATTACKS), _PAIRS_OF_ATTACKS),
        "figure 24": _further(
            "Figure 3 on ImageNet16-120.", "imagenet16-120", _kendall(_ATTACKS), _PAIRS_OF_ATTACKS
        ),
        "figure 25": _further(
            "Kendall's rank correlations of accuracies under corruptions, severity 4, CIFAR-100-C.",
            "cifar100",
            _kendall("corrupt.*.4"),
            _PAIRS_OF_CORRUPTIONS,
        ),
        "figure 26": Item(
            "The best cells by clean, by mean robust and by mean corrupted accuracy, with edit distances.",
            {"": f"rb-plot cells --by acc,{_ROBUST_OF_ALL},{_CORRUPTED} {{one_set}} {{to}}"},
            lacks=_SMALL,
            axes="no axes: three cells as graphs, with their edit distances",
            verdict=_AS_IS,
        ),
        "figure 27": Item(
            "Mean robust (left) and mean corrupted accuracy (right) over clean accuracy, coloured by kernel"
            " parameters.",
            dict(zip(("left", "right"), _means("--colour live_kernel_params"), strict=True)),
            lacks=_SMALL,
            axes="x: clean accuracy; y: mean accuracy under attacks (left), under corruptions (right);"
            " colour: kernel parameters of the cell",
            verdict=_COUNTED,
        ),
        "figure 28": Item(
            "Mean robust accuracy over kernel parameters, with the networks of 18 marked.",
            {
                "": f"rb-plot scatter --x live_kernel_params --y {_ROBUST_OF_ALL}"
                " --highlight 'live_kernel_params == 18' {one_set} {to}"
            },
            lacks=_SMALL,
            axes="x: kernel parameters of the cell, 0 to 54; y: mean accuracy under attacks; colour: 18 or"
            " another",
            verdict=_COUNTED,
        ),
        "figure 29": Item(
            "The best twenty networks of 18 kernel parameters by mean robust (top) and by mean corrupted"
            " accuracy (bottom).",
            {"top": _top(_ROBUST_OF_ALL), "bottom": _top(_CORRUPTED)},
            columns=1,
            lacks=_EIGHTEEN,
            axes=_EDGES,
            verdict=_COUNTED,
        ),
        "figure 30": Item(
            "The network that is best on clean images (#13714) and its neighbours among all others.",
            dict(zip(("top", "bottom"), _means("--neighbours 13714"), strict=True)),
            columns=1,
            lacks="three neighbours of 24",
            axes="x: clean accuracy; y: mean accuracy under attacks (top), under corruptions (bottom);"
            " marked: #13714 and neighbours by operation and edge",
            verdict="as in the paper; the axes end at the neighbours",
        ),
        "table 1": Item(
            "What searches find on clean and on FGSM accuracy, and the best there is.",
            table="table 1",
            lacks="ten runs of ten queries, without BANANAS, among so few networks: all queries are random,"
            " so that the searches are alike",
            axes="rows: the best, and four searches on clean and on FGSM accuracy; columns: clean, FGSM,"
            " PGD, APGD, Square at 1/255, mean over CIFAR-10-C",
            verdict=_AS_IS,
        ),
        "table 2": Item(
            "Attacks and their distances.",
            reason="Settings: rb-attack --preset jung2023 has them. The table has a distance of 255 for all"
            " four attacks; section 3.2, the excerpt in figure 10 and the published files have it for FGSM"
            " alone, and so has the recipe.",
            axes="rows: attacks; columns: settings",
            verdict="settings without data; 255 for FGSM alone, as elsewhere in the paper",
        ),
        "table 3": Item(
            "Keys of the files.",
            reason="A list: rb-convert jung2023 reads and writes them.",
            axes="columns: clean, attacks, corruptions",
            verdict="a list without data",
        ),
        "table 4": Item(
            "Contents of the files.",
            reason="A list: rb-convert jung2023 reads and writes them.",
            axes="rows: files; column: contents",
            verdict="a list without data",
        ),
    },
)

_PLAIN = "train.config.regularize == 'none'"
_ROBUST_CURVES = "train_robust_loss,test_robust_loss,train_robust_error,test_robust_error"
WCI = Paper(
    "Weight-Curvature Index",
    "wci",
    {
        "figure 1": Item(
            "The index along adversarial training: beside robust losses and errors (a), beside their gaps"
            " (b), and under four regularisations on CIFAR-10 (c) and on CIFAR-100 (d).",
            {
                "a": f"rb-plot curves --over epoch --metric wci --right {_ROBUST_CURVES}"
                f' --where "{_PLAIN}{{and_set}}" {{to}}',
                "b": "rb-plot curves --over epoch --metric wci --right robust_loss_gap,robust_error_gap"
                f' --where "{_PLAIN}{{and_set}}" {{to}}',
                "c": "rb-plot curves --over epoch --metric wci {one_set} {to}",
                "d": "rb-plot curves --over epoch --metric wci --where \"dataset == 'cifar100'\" {to}",
            },
            lacks="24 epochs of a small network on digits; the paper: PreActResNet-18, CIFAR-10 and -100",
            axes="x: epoch; y: index, with robust loss and error (a) or their gaps (b) on a second axis; c"
            " and d: a line a regularisation, none, cutout, mixup, l2",
            verdict="as in the paper; losses and errors of training and of test images",
        ),
    },
)

PAPERS = {
    "nas-robbench-201": NAS_ROBBENCH,
    "robustness-dataset": ROBUSTNESS_DATASET,
    "prbench": PRBENCH,
    "wci": WCI,
    "theory": THEORY,
}
