"""Items of PRBench."""

from __future__ import annotations

from rbtools.papers.items.base import AS_IN_PAPER, Item, Paper

_METHODS = (
    "digits, with 10 methods on one small network and 4 on two others; the paper has 15 pairs of data set and"
    " network; under the paper's radii .03, .08, .10 and .12 stand ours, .125, .3, .35 and .4, and attacks"
    " are at"
    " 32/255"
)
_PAIRS = (
    "make reproduce-prbench with PR_PAIRS='SET/NETWORK ...' trains them, SCALE=full all 14 further pairs; the"
    " paper's values stand alone."
)
_FOUR = (
    "four methods on digits; the paper has nine, and CIFAR-10, CIFAR-100, Tiny-ImageNet and SVHN; AA is of"
    " APGD-CE and APGD-T on 50 images, and the radii are .125, .3, .35 and .4"
)
_OF_CODE = (
    "the radius of ProbAcc and the first of PR is .03, and GE of PR is over all images, as in the paper's"
    " code,"
    " which made its numbers"
)
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
                "a": f'rb-plot scatter --x aa --y pr.08 --colour train.method --where "{_UNIFORM}" {{to}}',
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
            verdict=f"as in the paper, but that b has {_SCORE}; in a, MNIST is attacked at .3 and has"
            f" noise of"
            f" .35; {_OF_CODE}",
        ),
        "figure 3": Item(
            "PR of uniform noise over its radius, a panel for each data set and network.",
            {"": f"rb-plot curves --metric 'pr.uniform.*' {_CONVOLUTIONAL}"},
            lacks=_METHODS,
            axes=f"x: radius; y: PR of uniform noise; {_FACETS}",
            verdict=AS_IN_PAPER,
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
            verdict=f"{AS_IN_PAPER}; PR is over all images, as in the paper's code",
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
            note=f"CVaR draws 10 perturbations at full scale, as the paper's code does, and 8 below; the"
            f" paper's text says 20 (rb-train --preset prbench). The paper's column Type is left out;"
            f" {_SITE}",
            lacks=f"{_METHODS}; AA is of AutoAttack's APGD-CE and APGD-T on 50 images",
            axes="rows: 10 methods; columns: Acc, PGD10, PGD20, CW20, AA, PR at 4 radii, ProbAcc at 3"
            " rates, GE of PGD20 and of PR at 4 radii, seconds an epoch",
            verdict=f"{AS_IN_PAPER}; {_OF_CODE}",
        ),
        "table 5": Item(
            "PR under uniform, Gaussian and Laplace noise, and its generalisation error at the first radius.",
            table="table 5",
            note=f"The paper's column Type is left out; {_SITE}",
            lacks=_METHODS,
            axes="rows: ERM, Corr_U, Corr_G, Corr_L, PGD; columns: Acc, PR at 4 radii of each of three"
            " noises, GE of PR at .03 of each noise",
            verdict=f"as in the paper, with a row for each noise in place of columns; {_OF_CODE}",
        ),
        "table 6": Item(
            "Networks.",
            reason="A list: rb-arch --space zoo has them with their parameters.",
            axes="rows: 10 networks; columns: category, size, trained from the start or pre-trained,"
            " characteristics",
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
            verdict=AS_IN_PAPER,
        ),
        "table 9": Item(
            "PR under three kinds of noise for further pairs, after training with noise of each kind or PGD.",
            table="table 9",
            note="Cells that are not legible in the text at hand, which ends in SVHN, are empty; Corr_L"
            " and PGD"
            " run together there, and are put in the order of radius and noise; those of ResNet-18 on"
            " CIFAR-10"
            " are table 5's, which are the same. Implausible as printed: PR under Laplace .12 of ViT-B by"
            " Corr_G,"
            " 87.52 (83.16 under Gaussian); that of ResNet-18 on CIFAR-100 by PGD, 90.72, is above the one at"
            " .10 and left out; uniform .12 and Laplace .10 and .12 of ViT-B by PGD are DeiT-S's again;"
            " the site has Tiny-ImageNet and MNIST"
            f" too. {_SITE}",
            maker=_PAIRS,
            lacks="five methods on digits and two small networks",
            axes="rows: data set and network by ERM, Corr_U, Corr_G, Corr_L, PGD; columns: those of table 5",
            verdict=AS_IN_PAPER,
        ),
        "table 10": Item(
            "The metrics of table 4 for further data sets and networks.",
            table="table 10",
            note="The text of this table is not at hand: the values of the paper's site stand for it, named",
            maker=_PAIRS.replace("paper's", "site's"),
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
            lacks="MNIST's SimpleCNN on digits and six methods; AA is of APGD-CE and APGD-T on 50 images; the"
            " radii of digits are .125, .3, .35 and .4",
            axes="rows: CINIC-10 and ImageNet-50 by 11 methods, MNIST by 9; columns: those of table 4",
            verdict=f"{AS_IN_PAPER}; {_OF_CODE}",
        ),
        "table 12": Item(
            "TRADES with the filter of Chen and Lee after m steps, on CIFAR-10 and CIFAR-100.",
            table="table 12",
            note="The text at hand ends in CIFAR-100, of which ERM and most of Corr_U are legible",
            lacks="digits alone, and m of 1, 4 and 8, of which 4 and 8 leave out the same images; seconds"
            " are of"
            " one run on the machine at hand",
            axes="rows: ERM, Corr_U, TRADES, and TRADES with the filter at m = 1 to 8, on each of two sets;"
            " columns: those of table 4 without AA",
            verdict="as in the paper, whose code filters whole batches; rows by image leave out single"
            " images."
            " Passes are those forward, an image and step",
        ),
    },
)
