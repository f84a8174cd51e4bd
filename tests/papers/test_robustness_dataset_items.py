"""Items of the robustness dataset and of the index: what they show, on records of twelve networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rbtools.papers import figures_of_papers, items, pipes, printed, recipes, reproduce_search, sidebyside
from rbtools.papers import reproduce_nas_bench_201_robustness as jung
from rbtools.papers.estimates import WithInterval
from rbtools.papers.recipes import Setting
from rbtools.spaces import nasbench201
from tests.runner import lines

ITEMS = {name: items.paper(name, "full").items for name in ("robustness-dataset", "wci")}
DISTANCES = {"fgsm": (1, 8, 255), "pgd40": (1, 8), "apgd-ce": (1, 8), "square": (1, 8)}
SETS = ("cifar10", "cifar100", "imagenet16-120")


def record(place: int, index: int, dataset: str = "cifar10") -> dict[str, Any]:
    """Clean accuracy rises with the place, accuracy under attacks falls, that under corruptions is highest
    at the third. `test_metric_names` holds that the recipe makes these metrics."""
    metrics = {"acc": 0.5 + 0.03 * place}
    for attack, distances in DISTANCES.items():
        metrics |= {f"{attack}.{eps}": 0.45 - 0.02 * place - 0.001 * min(eps, 9) for eps in distances}
    for severity in (3, 4):
        metrics |= {f"corrupt.{one}.{severity}": 0.5 - 0.04 * abs(place - 2) for one in ("fog", "snow")}
    for on in ("init", "trained"):
        for split in ("train", "test"):
            metrics[f"jacobian.{on}.{split}"] = 1.0 * place
    for measured in ("init.train.", "init.test.", "trained.test.", ""):  # as rb-measure names them
        metrics[f"hessian.{measured}weight.lmax"] = metrics[f"hessian.{measured}weight.trace"] = 1.0 * place
    matrix = [[0.8, 0.2], [0.3, 0.7]]
    detail = {
        "confidence": {"prediction": [0.9, 0.6], "label": matrix, "argmax": matrix},
        "confusion": [[8, 2], [3, 7]],
    }
    evals = [
        {"metric": name, "value": value}
        | ({"detail": detail} if name == "acc" or name.startswith(("fgsm", "pgd")) else {})
        for name, value in metrics.items()
    ]
    arch = nasbench201.arch(index)
    return {"schema": 1, "arch": arch, "dataset": dataset, "metrics": metrics, "evals": evals}


EIGHTEEN = [i for i in nasbench201.unique() if nasbench201.live_kernel_params(nasbench201.cells()[i]) == 18]
NEIGHBOURS = [nasbench201.classes()[index] for index in nasbench201.neighbours(13714)]
INDICES = list(dict.fromkeys([0, *EIGHTEEN[:4], *NEIGHBOURS[:6], 13714]))
RECORDS = [record(place, index, dataset) for dataset in SETS for place, index in enumerate(INDICES)]


def drawn(
    number: str, letter: str = "", name: str = "robustness-dataset", records: list[dict[str, Any]] = RECORDS
) -> Any:
    Path("records.jsonl").write_text(lines(*records))
    return figures_of_papers.figure_of(ITEMS[name][number].panels[letter], Path("records.jsonl"), 6.5)


def texts(figure: Any) -> str:
    """All texts of a figure, on one line."""
    from matplotlib.text import Text

    return " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())


def test_the_best_twenty_are_of_18_parameters_and_in_the_order_of_their_mean() -> None:
    for letter, first in (("top", EIGHTEEN[0]), ("bottom", EIGHTEEN[1])):
        rows = [tick.get_text() for tick in drawn("figure 29", letter).axes[0].get_yticklabels()]
        assert rows[0] == f"#{first}" and set(rows) == {f"#{index}" for index in EIGHTEEN[:4]}


def test_the_best_cells_are_best_by_clean_by_robust_and_by_corrupted_accuracy() -> None:
    shown = texts(drawn("figure 26"))
    attacked, corrupted = "mean accuracy under attacks", "mean accuracy under corr"
    for index, by in (13714, "clean"), (INDICES[0], attacked), (INDICES[2], corrupted):
        assert f"#{index}, best by {by}" in shown
    assert shown.count("edit distance") == 3


def test_excerpts_of_files_are_of_those_that_rb_convert_writes() -> None:
    found = jung.excerpts([sidebyside.essential(RECORDS[0], confidences=True)])
    meta = json.loads(found["figure 10"].lines)
    assert meta["ids"]["1832"]["isomorph"] == "309" and list(meta["ids"]) == ["21", "1832"]
    assert meta["epsilons"]["fgsm@Linf"] == [1, 8, 255] and meta["epsilons"]["pgd@Linf"] == [1, 8]
    accuracies = found["figure 11"]
    assert accuracies.printed["#0"]["PGD 1"] == 0.295
    assert accuracies.ours["#0"] == pytest.approx({"clean": 0.5, "PGD 1": 0.449, "PGD 8": 0.442})
    assert '"label": [[…]]' in found["figure 12"].text()


def test_printed_searches_of_table_1_agree_with_what_the_paper_says_of_them() -> None:
    rows = printed.read("jung2023-table-1")
    assert reproduce_search.printed_values(reproduce_search.JUNG)["LS on FGSM"]["PGD"] == pytest.approx(
        0.4827
    )
    for column in ("FGSM", "PGD", "APGD"):
        # The search on FGSM finds more under every attack with gradients, local search the most.
        for name in ("BANANAS", "LS", "RS", "RE"):
            assert rows[f"{name} on FGSM"][column] > rows[f"{name} on clean"][column]
        found = {name: row[column] for name, row in rows.items() if name.endswith("on FGSM")}
        assert max(found, key=lambda name: found[name]) == "LS on FGSM"
    for column, best in rows["best there is"].items():
        assert all(row[column] <= best for row in rows.values())


def test_the_recipe_keeps_details_of_all_attacks_and_measures_on_both_splits() -> None:
    for scale in ("mini", "full"):
        every = [*pipes.commands(recipes.pipe("nas-bench-201-robustness", Setting(scale)))]
        attacks = [one for one in every if one[0] == "rb-attack"]
        assert len(attacks) == 4 and all("--detail" in one for one in attacks)
        assert "train,test" in every[-1]
    assert sum(",255" in " ".join(one) for one in attacks) == 1  # FGSM: section 3.2


def test_the_claims_of_the_text_are_told_of_the_records() -> None:
    told = {claim.words: claim for claim in jung.claims(RECORDS, "full", {})}
    # Twelve networks are too few for a best twenty; the best under corruptions is the third.
    assert told["none of them has zero or a skip connection on edge 1"].found == "not measured here"
    best, other = (nasbench201.cells()[INDICES[at]] for at in (-1, 2))
    far = nasbench201.edit_distance(best, other)
    assert jung.changes(RECORDS, "full") == far
    words = "the best network under corruptions is at most two operations from the best on clean images"
    assert told[words][:3] == (words, far <= 2, f"{far}, limit 2")
    assert told["accuracies under FGSM on the data sets are positively correlated"].holds
    assert jung.between_sets(RECORDS[: len(INDICES)], "full")["FGSM"] is None


def test_the_best_twenty_have_their_operations_counted_by_edge() -> None:
    """Networks of 18 kernel parameters, whose accuracy is lower the more edges 2 and 4 have convolutions."""
    cells = [nasbench201.cells()[index] for index in EIGHTEEN]
    values = [
        1.0 - 0.1 * (cell[1] == nasbench201.CONV3) - 0.1 * (cell[3] == nasbench201.CONV3) for cell in cells
    ]
    records = [
        {"arch": {**nasbench201.arch(index), "live_kernel_params": 18}, "metrics": {"fgsm.1": value}}
        for index, value in zip(EIGHTEEN, values, strict=True)
    ]
    found = jung.best_twenty(records)
    assert found["edge 2"]["nor_conv_3x3"] == found["edge 4"]["nor_conv_3x3"] == 0
    assert all(sum(found[f"edge {edge}"].values()) == 20 for edge in range(1, 7))
    assert jung.best_twenty(records[:20]) == {}
    # Figure 29, bottom: the same by accuracy under corruptions, which is turned round here.
    for record in records:
        record["metrics"]["corrupt.mean"] = 1 - record["metrics"]["fgsm.1"]
    turned = jung.best_twenty(records, jung.under_corruptions, " by corruptions")
    assert turned["edge 2 by corruptions"]["nor_conv_3x3"] == 20
    assert turned["edge 4 by corruptions"]["nor_conv_3x3"] == 18  # so many cells have both


def test_the_best_network_is_compared_with_its_neighbours() -> None:
    jung.networks(RECORDS, "full")
    rows = jung.of_classes(RECORDS)
    found = jung.around_best(rows)
    assert found["#13714"]["clean"] == 0.5 + 0.03 * (len(INDICES) - 1)
    assert found["edge 1 to skip_connect"] == rows[6697] and found["edge 1 to none"] == rows[42]
    # All neighbours have less clean accuracy and more under attack; a third cell has more under corruptions.
    assert found["neighbours"] == {"with more under attack and less clean": len({*NEIGHBOURS[:6]})}
    traded = {**rows, 42: {**rows[42], "under attack": 0.0}}
    assert jung.around_best(traded)["neighbours"] == {
        "with more under attack and less clean": len({*NEIGHBOURS[:6]}) - 1
    }
    best = {**rows[13714], "clean": 0.0}
    assert "neighbours" not in jung.around_best({**rows, 13714: best})  # 18 of 24 are missing
    every = {nasbench201.classes()[index]: rows[42] for index in NEIGHBOURS} | {13714: best}
    assert jung.around_best(every)["neighbours"] == {"with more under attack and less clean": 0}
    assert jung.around_best({13714: rows[13714]}) == jung.around_best({42: rows[42]}) == {}
    told = {claim.words: claim for claim in jung.claims(RECORDS, "full", {})}
    worse = "every change of one operation makes #13714 less accurate on clean images and under corruptions"
    assert told[worse].holds is False and "edge 1 to none (0.18 and 0.42)" in told[worse].found


def test_ranks_under_corruptions_are_compared_pair_by_pair() -> None:
    orders = {"fog": (1, 2, 3, 4, 5), "snow": (1, 2, 3, 4, 5), "frost": (5, 4, 3, 2, 1)}
    orders["contrast"] = (2, 1, 4, 5, 3)  # seven of ten pairs are in the order of fog, three in that of frost
    records = [
        {"arch": {}, "metrics": {f"corrupt.{name}.3": order[at] / 5 for name, order in orders.items()}}
        for at in range(5)
    ]
    value = jung.between_corruptions(records)["median |tau|"]
    # |tau| is 1 of three pairs and (7 - 3) / 10 of three pairs.
    assert isinstance(value, WithInterval) and value == pytest.approx(0.7) and value.low < 0.7 < value.high
    assert jung.between_corruptions([{"metrics": {"corrupt.fog.3": 0.5}}] * 4) == {}


def test_confidences_follow_the_distance() -> None:
    """In wrong predictions the confidence rises by .2 and falls by .1; in others it falls or is uneven."""
    steps = {
        "acc": (0.9, 0.0, 0.9),
        "fgsm.0.5": (0.8, 0.3, 0.7),
        "fgsm.2": (0.7, 0.5, 0.8),
        "fgsm.16": (0.6, 0.4, 0.6),
    }
    records = [
        {
            "dataset": "digits",
            "evals": [
                {
                    "metric": name,
                    "detail": {"confidence": {"prediction": [right, wrong], "label": [[own, 0.0]]}},
                }
                for name, (right, wrong, own) in reversed(steps.items())
            ],
        }
        for _ in range(6)
    ]
    found = jung.of_confidence([sidebyside.essential(record) for record in records])
    assert found["confidence over the distance"] == {
        "where correct": -1.0,
        "of class 0 on its images": pytest.approx(-4 / 6),  # five of six pairs
    }
    assert found["confidence where wrong"] == pytest.approx({"rise": 0.2, "fall": 0.1})
    assert jung.of_confidence([sidebyside.essential(record) for record in records[:5]]) == {}
    assert jung.of_confidence(records) == {}
