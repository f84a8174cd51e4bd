"""NAS-RobBench-201's figures and tables: what they show, on records of three seeds of twelve networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools.formats import naming
from rbtools.papers import figures_of_papers, items, printed, sidebyside
from rbtools.papers import reproduce_nas_robbench_201 as robbench
from rbtools.papers import reproduce_theory as theory
from rbtools.spaces import nasbench201
from tests.runner import lines

ITEMS = {name: items.paper(name, "full").items for name in ("nas-robbench-201", "theory")}
SEEDS = 3
INDICES = range(1000, 13000, 1000)
ACCURACIES = ("acc", "fgsm.3", "fgsm.8", "pgd20.3", "pgd20.8")
DISTANCES = [f"{attack}.{eps}" for attack in ("fgsm", "pgd") for eps in (3, 8)]
KERNELS = ["ntk.clean.fro", *(f"ntk.{one}.fro.{at}" for one in ("robust", "twice") for at in DISTANCES)]


def record(place: int, index: int, seed: int) -> dict[str, Any]:
    """Networks differ by .01 and seeds by .02, so that the best ten seeds are of fewer than ten networks."""
    value = 0.3 + place * 0.01 + seed * 0.02
    metrics = {name: value - at * 0.01 for at, name in enumerate(ACCURACIES)}
    metrics |= {name: place + seed + at * place**2 for at, name in enumerate(KERNELS)}
    metrics |= {f"ntk.cross.fro.{at}": 1.0 * place for at in DISTANCES}
    metrics |= {"aa.8": value - 0.05, "corrupt.fog.1": value, "corrupt.fog.5": value - 0.1}
    entries = [{"metric": name, "value": one, "n": 100} for name, one in metrics.items()]
    arch = naming.described({"space": "nasbench201", "index": index}, "cifar10")
    train = {"method": "pgd", "seed": seed}
    record = {"schema": 1, "arch": arch, "dataset": "cifar10", "train": train}
    return {**record, "checkpoint": f"{index}-{seed}.pt", "metrics": metrics, "evals": entries}


RECORDS = [record(place, index, seed) for place, index in enumerate(INDICES) for seed in range(SEEDS)]


def drawn(number: str, letter: str = "") -> Any:
    records = Path("records.jsonl")
    records.write_text(lines(*robbench.for_figures(RECORDS)))
    return figures_of_papers.figure_of(ITEMS["nas-robbench-201"][number].panels[letter], records, 6.5)


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_a_network_is_the_mean_of_its_seeds() -> None:
    plain = robbench.for_figures(RECORDS)
    assert [one["arch"]["index"] for one in plain] == list(INDICES)
    assert plain[0]["metrics"]["acc"] == pytest.approx(0.32)
    assert plain[0]["aggregated"]["seeds"] == [0, 1, 2]
    (spread,) = (one["std"] for one in plain[0]["evals"] if one["metric"] == "acc")
    assert spread == pytest.approx(0.02)
    searched = {**RECORDS[0], "search": {"algorithm": "nasi"}}
    other = {**RECORDS[0], "dataset": "cifar100"}
    assert len(robbench.for_figures([*RECORDS, searched, other])) == len(INDICES) + 1


def test_the_ten_best_are_ten_networks() -> None:
    best = sorted(INDICES)[-10:]
    shown = texts(drawn("figure 4"))
    assert {f"#{index}" for index in INDICES} & set(shown) == {f"#{index}" for index in best}, shown


@pytest.mark.parametrize(("number", "attacks"), [("figure 5", ["pgd"]), ("figure 6", ["fgsm", "pgd"])])
def test_correlations_of_kernels_are_of_networks_and_have_no_cross_kernel(
    number: str, attacks: list[str]
) -> None:
    figure = drawn(number)
    shown = " ".join(texts(figure))
    axes = figure.axes[0]
    assert len(axes.get_xticklabels()) == 1 + 4 * len(attacks)
    assert len(axes.get_yticklabels()) == len(ACCURACIES)
    assert "cross" not in shown
    rho = robbench.side.correlation(robbench.networks(RECORDS, "full"), "twice kernel 8", "PGD 8")
    assert rho == pytest.approx(1.0)


def test_the_mean_robust_accuracy_has_autoattack_in_it() -> None:
    rows = [{"none": 0, "class": place, "FGSM 8": 0.5, "AA 8": 0.1 * place} for place in (1, 3, 2)]
    assert robbench.best_by_none(rows)["none=0"]["class"] == 3


def test_the_ten_best_have_their_operations_counted_by_edge() -> None:
    # Cells of 3x3 convolutions with a skip connection on edge 4 are the ten best of twelve.
    cells = [(3, 3, 3, 1, 3, at % 5) for at in range(10)] + [(0, 0, 0, 0, 0, 0)] * 2
    index = nasbench201.index_by_ops()
    rows = [{"class": index[cell], "PGD 8": 1.0 - at / 20} for at, cell in enumerate(cells)]
    found = robbench.best_ten(rows)
    assert found["edge 4"]["skip_connect"] == found["edge 1"]["nor_conv_3x3"] == 10
    assert found["edge 6"]["nor_conv_3x3"] == 2
    assert found["ten best"] == {"edges of 3x3 convolutions": 5}  # of edge 6 all operations are alike
    assert robbench.best_ten(rows[:10]) == {}


def test_ranks_of_networks_are_compared_between_data_sets() -> None:
    turned = [{**one, "dataset": "cifar100"} for one in reversed(RECORDS)]
    for one, other in zip(turned, RECORDS, strict=True):
        one["arch"] = other["arch"]
    found = robbench.across_sets([*RECORDS, *turned], "full")
    assert found == {"cifar10 and cifar100": pytest.approx(-1.0)}
    assert robbench.across_sets(RECORDS, "full") == {}


def test_ranks_are_further_apart_in_the_best_tenth_than_in_the_worst() -> None:
    def told(rows: list[dict[str, float]]) -> bool | None:
        found = robbench.of_rank(rows)
        return robbench.side.tested("words", {"ranks": ["best tenth > worst tenth"]}, {"ranks": found}).holds

    # The best tenth in reverse: places 0 to 9 are 9, 7, ..., 1, 1, ..., 9 ranks apart.
    rows = [{"clean": at / 100, "PGD 8": at / 100 if at < 90 else 1.89 - at / 100} for at in range(100)]
    assert robbench.of_rank(rows) == pytest.approx({"best tenth": 0.05, "worst tenth": 0.0})
    assert told(rows) and told([{name: -value for name, value in row.items()} for row in rows]) is False
    # The same noise at all ranks decides nothing.
    noise = np.random.default_rng(0).normal(0, 0.1, 1500)
    assert told([{"clean": at / 1500, "PGD 8": at / 1500 + noise[at]} for at in range(1500)]) is None
    assert robbench.of_rank(rows[:20]) == {"best tenth": None, "worst tenth": None}


def test_the_best_and_worst_networks_and_medians_are_of_all_networks() -> None:
    rows = robbench.networks(RECORDS, "full")
    values = [row["FGSM 3"] for row in rows]
    assert robbench.extremes(rows) == {"lowest": {"FGSM 3": min(values)}, "highest": {"FGSM 3": max(values)}}
    assert robbench.extremes([{}]) == {}
    fog = robbench.medians(rows)["fog"]
    # Twelve networks from .32 to .43, and .1 less at severity 5.
    assert fog == pytest.approx({"severity 1": 0.375, "severity 5": 0.275})
    others = [
        {"metrics": {"fgsm.3": 0.1, "fgsm.8": 0.2, "pgd40.3": 0.3, "pgd40.8": value}} for value in (0.4, 0.0)
    ]
    found = robbench.best_means(RECORDS, others, "full")
    assert found["best here"]["best mean"] == pytest.approx(0.43 - 0.025)
    assert found["best of the robustness dataset"]["best mean"] == pytest.approx(0.25)
    assert robbench.best_means([], [{"metrics": {}}], "full") == {}


def test_kernels_are_compared_by_the_attack_that_perturbs_their_images() -> None:
    rows = [
        {"PGD 8": at, "FGSM twice kernel 3": at, "twice kernel 3": -at, "clean kernel": at} for at in range(4)
    ]
    found = robbench.of_kernels(rows, ["twice kernel 3", "FGSM twice kernel 3", "clean kernel"])
    assert found["twice kernel 3"]["PGD 8"] == pytest.approx(-1.0)
    assert found["mean over kernels"] == {"FGSM": pytest.approx(1.0), "PGD": pytest.approx(-1.0)}


@pytest.mark.slow
def test_claims_and_tables_are_of_networks() -> None:
    rows = robbench.networks(RECORDS, "full")
    assert len(rows) == len(INDICES)
    assert rows[0]["PGD 8"] == pytest.approx(0.28)
    tables = robbench.tables(RECORDS, "full")
    best = tables["table 5"].ours
    for name, one in best.items():
        of_level = [row for row in rows if name == f"none={row['none']}"]
        assert one["PGD 8"] == max(row["PGD 8"] for row in of_level)


@pytest.mark.parametrize("name", ITEMS)
def test_a_table_has_the_columns_that_its_item_names(name: str) -> None:
    tables = (theory if name == "theory" else robbench).tables([], "full")
    for number in tables.keys() & ITEMS[name].keys():
        assert ITEMS[name][number].axes.partition("columns: ")[2] == ", ".join(tables[number].columns)


def test_printed_tables_agree_with_each_other_and_with_what_the_text_says() -> None:
    paper = {number: printed.read(f"nas-robbench-201-table-{number}") for number in (1, 2, 4, 5, 6, 7)}
    names = list(paper[1])
    assert tuple(names) == robbench.COLUMNS_1
    for one in names:
        assert paper[1][one][one] == 1.0
        assert all(paper[1][one][other] == paper[1][other][one] for other in names)
    assert len(robbench.tables([], "full")["table 1"].printed) == 15
    # Table 7 begins with table 2, whose optimum has the best mean robust accuracy.
    values = {number: {row: list(one.values()) for row, one in paper[number].items()} for number in (2, 7)}
    assert {row: values[7][row] for row in values[2]} == values[2]
    robust = {row: sum(value or 0.0 for value in one[1:]) for row, one in values[7].items()}
    assert max(robust, key=lambda row: robust[row]) == "optimal"
    assert len(paper[7]) == len(paper[2]) + 6
    # The signs that the text tells of follow from table 5, where it has their columns.
    for words, told in paper[4].items():
        for network, sign in told.items():
            found = robbench.has_sign(paper[5][network], robbench.SIGNS[words])
            assert found in (None, sign), (words, network)
    # Of the corruptions contrast alone is correlated negatively; each column is within .005 of its twin.
    assert len(paper[6]) == 15
    assert [name for name, row in paper[6].items() if (row["PGD 3"] or 0) < 0] == ["contrast"]
    for row in paper[6].values():
        for eps in (3, 8):
            assert row[f"FGSM {eps}"] == pytest.approx(row[f"PGD {eps}"], abs=0.005)


def test_the_errors_of_the_theory_are_those_of_the_iterate_drawn_on_the_sphere() -> None:
    values = {"bound.robbench1.clean.pgd.sphere.0.01": 0.5, "bound.robbench1.robust.pgd.sphere.0.01": 0.3}
    limited = {"metric": "bound.spectral", "value": 4.0, "formula": "|W|", "vacuous": True}
    record = {
        "arch": {"space": "fcnn", "name": "two", "str": "relu"},
        "train": {"output": {"of": 9, "step": 4}, "history": {"lr": [0.25], "test_robust_error": [0.01]}},
        "metrics": {"acc": 0.9, "pgd20.sphere.0.01": 0.6, "bound.spectral": 4.0, **values},
        "evals": [{**limited, "inputs": {"limit": 3.0}}],
    }
    text = theory.report([sidebyside.essential(record)], "mini")
    assert "| two relu | 0.5 | 0.1 | 0.3 | 0.4 |" in text and "| two relu | 0.25 | 9 | 4 |" in text
    assert "| two relu | 4 | 3 |" in text
    told = {
        claim.words: claim.holds for claim in theory.claims([record], "mini", theory.tables([record], "mini"))
    }
    assert told["the expected clean error is not above the bound of theorem 1"] is True
    assert told["the expected robust error is not above the bound of theorem 1 (equation 6)"] is False
    assert told["the spectral norms of fresh weights are at most 3 (lemma 2)"] is False
    of_lemma_9 = "the spectral norms of fresh convolutions are at most 3 (lemma 9, for wide matrices, too)"
    assert told[of_lemma_9] is None
