"""Items of Jung et al. 2023, the robustness dataset of NAS-Bench-201."""

from __future__ import annotations

from collections.abc import Mapping

from rbtools.papers.items.base import AS_IN_PAPER, Item, Paper

_ATTACKS = "fgsm.*,pgd40.*,apgd-ce.*,square.*"
_ROBUST_OF_ALL = f"'mean({_ATTACKS})'"
_CORRUPTED = "'mean(corrupt.*)'"
_SMALL = "25 small networks on digits for the paper's 6,466"
_TWO = "needs records of CIFAR-100 or ImageNet16-120, which SCALE=full has"
_EIGHTEEN = "six networks of 18 kernel parameters"
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


def _further(
    caption: str, dataset: str, panels: Mapping[str, str], axes: str, verdict: str = AS_IN_PAPER
) -> Item:
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
            verdict=f"{AS_IN_PAPER}; {_DISTANCES}",
        ),
        "figure 3": Item(
            "Kendall's rank correlations of clean and robust accuracies, CIFAR-10.",
            _kendall(_ATTACKS),
            lacks=_SMALL,
            axes=_PAIRS_OF_ATTACKS,
            verdict=AS_IN_PAPER,
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
            verdict=AS_IN_PAPER,
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
            axes="rows: Frobenius norm of the Jacobian and largest eigenvalue of the Hessian of the"
            " weights, each"
            " on fresh and trained networks, training and test images; columns: attacks by distance"
            " (top), corruptions"
            " (bottom); colour: Kendall's tau",
            verdict="as in the paper, if its Hessian is that of the weights, which the tool that it names"
            " computes; its text introduces that of the input (rb-measure hessian --wrt input). Its caption"
            " names no severity, and 3 is that of its figure 5",
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
            verdict=AS_IN_PAPER,
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
            lacks="a small network on digits in place of #0, and four times the distances",
            axes="row: #0; columns: clean accuracy, PGD at seven distances",
            verdict="as in the paper, as a table with its rounded values beside ours",
        ),
        "figure 12": Item(
            "An excerpt of clean_confidence.json, as rb-convert jung2023 writes it, without numbers.",
            table="figure 12",
            lacks="another network than #0",
            axes="JSON: data set, key, measure, architecture, then label, argmax, prediction",
            verdict=AS_IN_PAPER,
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
            verdict=AS_IN_PAPER,
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
            verdict=AS_IN_PAPER,
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
            verdict=AS_IN_PAPER,
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
            verdict=AS_IN_PAPER,
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
