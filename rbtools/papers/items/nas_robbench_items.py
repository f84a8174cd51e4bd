"""Items of NAS-RobBench-201 and its theory."""

from __future__ import annotations

from rbtools.papers.items.base import AS_IN_PAPER, Item, Paper

_SETS = "the paper has CIFAR-10, CIFAR-100 and ImageNet16-120"
_FEW = "16 small networks on digits for the paper's 6,466"
_ROBUST = "mean(fgsm.{near},fgsm.{far},pgd20.{near},pgd20.{far},{aa})"
_AA = "AutoAttack is its APGD-CE and APGD-T on 50 images"
_ACCURACIES = "acc,fgsm.{near},fgsm.{far},pgd20.{near},pgd20.{far}"
_FRACTIONS = "The paper prints fractions, shown in percent here"
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
            {"": f"rb-plot box --together --facet dataset --metric {_ACCURACIES} {{to}}"},
            lacks=_SETS,
            axes="x: clean, FGSM 3 and 8, PGD 3 and 8; y: accuracy; panels: data sets; line: guessing",
            verdict=AS_IN_PAPER,
        ),
        "figure 3": Item(
            "Distribution of accuracies; robust ones in the order of the clean; ranks on other data sets.",
            {
                "a": f"rb-plot hist --metric {_ACCURACIES} {{one_set}} {{to}}",
                "b": f"rb-plot ranks --by acc --metric {_ACCURACIES} {{one_set}} {{to}}",
                "c": f"rb-plot ranks --join arch.class --metric '{_ROBUST}' {{to}}",
            },
            lacks=f"{_SETS}; ranks across them need records of two or more; {_AA}",
            axes="a x: accuracy, y: networks, colour: metric; b x: networks in the order of an accuracy, y:"
            " accuracy or rank, colour: metric; c x: rank of the mean robust accuracy on CIFAR-10, y: rank"
            " there and on CIFAR-100 and ImageNet16-120",
            verdict="a and c as in the paper; whether b has ranks or accuracies on y the text does not say:"
            " here accuracies in the order of the clean one",
        ),
        "figure 4": Item(
            "Operations on each edge of the ten networks with the best mean robust accuracy.",
            {"": f"rb-plot cells --view grid --top 10 --by '{_ROBUST}' {{one_set}} {{to}}"},
            lacks=f"{_FEW}; {_AA}",
            axes=_CELLS,
            verdict="as in the paper: section 3.2 takes the mean of all robust metrics of section 3.1, FGSM"
            " and PGD at 3 and 8 and AutoAttack at 8",
        ),
        "figure 5": Item(
            "Rank correlation of five tangent kernels at initialisation with clean and robust accuracy.",
            {"": f"rb-plot heatmap --rows {_ACCURACIES} --cols {_kernels('pgd')} {{one_set}} {{to}}"},
            lacks=_FEW,
            axes="x: clean kernel, robust and twice robust kernels of PGD at 3 and 8; y: clean, FGSM 3 and 8,"
            " PGD 3 and 8; colour: Spearman's rho",
            verdict=AS_IN_PAPER,
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
            verdict=AS_IN_PAPER,
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
            note="The optimum is by the mean of all robust metrics of section 3.1, AutoAttack at 8 among"
            f" them, which the table does not show. {_FRACTIONS}",
            verdict=AS_IN_PAPER,
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
            " the best ones, by the mean of all robust metrics of section 3.1, are known at the end."
            f" {_FRACTIONS}",
            lacks=f"{_FEW}; four times the distances, and 255 for all above",
            axes="rows: none edges; columns: clean, FGSM 3, Square 3, PGD 3, PGD 8, PGD 16, PGD 32, PGD 64,"
            " PGD 128, PGD 255",
            verdict=AS_IN_PAPER,
        ),
        "table 6": Item(
            "Rank correlation of accuracy under corruptions (severity 5) and attacks.",
            table="table 6",
            lacks="four corruptions of the 15",
            axes="rows: 15 corruptions; columns: PGD 3, FGSM 3, PGD 8, FGSM 8",
            verdict=AS_IN_PAPER,
        ),
        "table 7": Item(
            "What scores without training and differentiable searches find.",
            table="table 7",
            note="The paper repeats its table 2 in the first ten rows; they are left out here. The cells that"
            " NASI, AdvRush and DARTS derived are not printed, so these searches are run"
            " again; one cell is known, that of DARTS-V1 in NAS-Bench-201 (skip connections alone, #1835): it"
            f" has a row of its own. {_FRACTIONS}",
            lacks="short searches of small supernets on digits",
            axes="rows: KNAS, EigenNAS, NASI, NASWOT, AdvRush, DARTS; columns: clean, FGSM 3, PGD 3, FGSM 8,"
            " PGD 8",
            verdict="the cells of NASI, AdvRush and DARTS are those of searches of ours",
        ),
    },
)

_BOUNDS = "rows: networks; columns: clean bound, clean error, robust bound, robust error in L-infinity"
_CONSTANTS = (
    "the paper prints no table; constants and the second term, O(sqrt(log(1/delta) / N)), are left out;"
    " widths"
    " are finite; the clean error is of the iterate drawn; the bound is of the sphere in L2, and the robust"
    " error"
    " under PGD in L-infinity after the last step, so these two are not compared; a bound from 1 on says"
    " nothing"
)
_DIGITS = (
    "two classes of digits and small networks; the bounds are of 20 images, algorithm 1 takes 287; most"
    " bounds"
    " are vacuous"
)
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
            verdict="the paper prints no table; the kernels are of networks of finite width, with K_rho as"
            " in the"
            " theorem's proof, and rho 0 for the clean bound; orders of Hermite's coefficients end at 200, so"
            " that"
            " a bound which needs a higher one is vacuous; one up to 0 says nothing",
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
            verdict="as in the paper, with the step size of theorem 1 for fcnn and of corollary 1 for rescnn,"
            " kappa being the side of its largest filter; beta is .5, rho .01"
            " and the constants of nu and C are 1, which the paper leaves open",
        ),
    },
)
