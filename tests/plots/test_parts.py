"""What plots are made of: names taken apart, lines of text, weights, fronts, what single kinds show."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from rbtools.measures import MEASURES
from rbtools.pages import page_columns
from rbtools.plots import PLOTS, box, layout, weightings, words
from rbtools.scoring.composite import Composite
from rbtools.scoring.terms import asked
from rbtools.spaces import nasbench201
from tests.runner import entry, model

Records = list[dict[str, Any]]


@pytest.mark.parametrize(
    ("name", "family", "over", "number", "rho"),
    [
        ("pgd20.l2.0.5", "pgd20.l2", "eps2", 0.5, None),
        ("train.apgd-ce.8", "train.apgd-ce", "eps", 8.0, None),
        ("corrupt.gaussian_noise.3", "corrupt.gaussian_noise", "severity", 3.0, None),
        ("probacc.uniform.0.0313725.0.05", "probacc.uniform", "gamma", 0.0313725, "0.05"),
    ],
)
def test_a_name_has_a_family_and_a_number(
    name: str, family: str, over: str, number: float, rho: str | None
) -> None:
    parts = words.with_number(name)
    assert parts is not None
    assert (parts.family, words.axis_of(parts)) == (family, over)
    assert (float(parts.number), parts.rho or None) == (number, rho)


def test_records_are_called_by_what_differs() -> None:
    some = [model("a", train={"method": method, "seed": 0}) for method in ("erm", "pgd", "pgd")]
    assert words.tags(some) == ["ERM", "PGD #1", "PGD #2"]
    assert words.tags([model("a"), model("b", dataset="svhn")]) == ["a", "b SVHN"]
    assert words.tags([model("a\nb\x1b[0m" + "x" * 40)]) == ["a b [0m" + "x" * 7 + "…" + "x" * 14]


def test_own_words_stand_in_place_of_names() -> None:
    some = [
        model("a", metrics={"acc": n / 9, "pgd20.8": n / 18}, train={"method": method})
        for n, method in enumerate(("erm", "pgd", "pgd"))
    ]
    own = "pgd20.8=under attack; pgd = Madry et al.; acc=clean [share];"
    figure = drawn("scatter", some, y="pgd20.8", colour="train.method", label=own, title="Ours")
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("clean [share]", "under attack")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ERM", "Madry et al."]
    assert figure.get_suptitle() == "Ours" and words.label("pgd") == "PGD"
    assert drawn("scatter", some, y="pgd20.8").get_suptitle() == ""
    with pytest.raises(RbError, match=r"--label is 'pgd='\. Expected NAME=WORDS, such as pgd20\.8=PGD\."):
        drawn("scatter", some, y="pgd20.8", label="acc=a; pgd=")


def test_chance_is_known_for_published_sets_and_from_matrices() -> None:
    assert box.classes([model("a", dataset="ImageNet16-120")]) == 120
    assert box.classes([model("a", dataset="Fashion-MNIST")]) == 10
    assert box.classes([model("a", dataset="npz:some.npz")]) is None
    assert box.classes([model("a", dataset="CIFAR-10"), model("b", dataset="cifar10-c:fog.3")]) == 10
    assert box.classes([model("a", dataset="cifar10"), model("b", dataset="cifar100")]) is None
    detail = {"detail": {"confusion": [[0] * 7] * 7}}
    assert box.classes([model("a", dataset="mine", evals=[detail])]) == 7


def test_weightings_are_read_and_wrong_ones_named() -> None:
    names = dict.fromkeys(["acc", "pgd20.8", "pgd20.16"], 1.0)
    assert weightings.weightings("equal; robust: pgd20.*=3, acc=0", names) == {
        "equal": [1.0, 1.0, 1.0],
        "robust": [0.0, 3.0, 3.0],
    }
    for text, message in {
        "a: ac=2": r"'ac=2' is not METRIC=WEIGHT\. Did you mean 'acc'",
        "a: acc=x": r"the weight in 'acc=x' is 'x'",
        "a: *=0": r"all weights of 'a' are 0",
        ";": "--weightings is empty",
    }.items():
        with pytest.raises(RbError, match=message):
            weightings.weightings(text, names)


def test_scores_are_those_of_rb_score_within_groups_too() -> None:
    some = [
        model("a", dataset=dataset, train={"method": str(number)}, metrics={"acc": number, "ge.acc": -number})
        for dataset in ("x", "y")
        for number in range(3)
    ]
    for one in some[3:]:
        one["metrics"]["acc"] += 10
    over_all = Composite(some, asked("acc,ge.acc")).weighed([1.0, 1.0])
    within = Composite(some, within=["dataset"]).weighed([1.0, 1.0])
    assert Composite(some, asked("ge.acc:higher,acc:3")).weighed([0.0, 3.0]) == pytest.approx(
        [n / 12 for n in (0, 1, 2, 10, 11, 12)]
    )
    assert within == [0.0, 0.5, 1.0] * 2
    assert over_all == pytest.approx(
        [n / 24 + m / 4 for n, m in zip((0, 1, 2, 10, 11, 12), (0, 1, 2) * 2, strict=True)]
    )
    rows = weightings.grouped(some, [within], "train.method")
    assert (rows.names, rows.means.tolist()) == (["0", "1", "2"], [[0.0], [0.5], [1.0]])
    assert weightings.best(rows, 2).names == ["2", "1"]


def drawn(name: str, records: Records, **options: Any) -> Any:
    return PLOTS.build(name, **options).draw(records)


def test_curves_of_many_records_are_a_median_and_a_band(crowd: Records) -> None:
    figure = drawn("curves", crowd)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["all", "middle 80 %", "median"]
    median = figure.axes[0].lines[-1]
    expected = np.median([one["metrics"]["pr.uniform.0.08"] for one in crowd])
    assert median.get_ydata()[1] == pytest.approx(expected)


def test_medians_of_different_records_are_not_joined(crowd: Records) -> None:
    far = [{**one, "metrics": {"pr.uniform.0.3": 0.9, "pr.uniform.0.4": 0.8}, "evals": []} for one in crowd]
    one_data_set = drawn("curves", crowd).axes[0].lines
    both = drawn("curves", [*crowd, *far]).axes[0].lines
    assert list(both[-1].get_xdata()) == [0.3, 0.4]
    assert list(both[-2].get_xdata()) == list(one_data_set[-1].get_xdata())


def test_bars_of_a_metric_are_its_values_with_their_intervals() -> None:
    some = []
    for name, value, steps in (("a", 0.5, 3.0), ("b", 0.75, 1.0)):
        entry = {"metric": "acc", "value": value, "n": 100, "ci95": [value - 0.125, value + 0.25]}
        some.append(model(name, metrics={"acc": value, "seconds_per_epoch": steps}, evals=[entry]))
    axes = drawn("bars", some, metric="acc").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]  # the better one first
    (lines,) = [one for one in axes.containers if hasattr(one, "lines")]
    ends = [segment[:, 0].tolist() for segment in lines.lines[2][0].get_segments()]
    assert ends == [[0.625, 1.0], [0.375, 0.75]]
    axes = drawn("bars", some, metric="seconds_per_epoch,acc").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"] and len(axes.patches) == 4


def test_the_score_that_records_bring_along_is_drawn() -> None:
    weights = {"a": 3.0, "b": 1.0, "c": 0.0}
    terms = [{"metric": metric, "weight": weight, "higher": True} for metric, weight in weights.items()]
    some = []
    for letter, (a, b) in {"x": (0.75, 0.125), "y": (0.375, 0.25)}.items():
        parts = {"a": a, "b": b, "c": 0.0}
        entry = {"tool": "rb-score", "metric": "score", "value": a + b, "terms": terms}
        entry["contributions"] = parts
        some.append(model(letter, metrics={"a": a, "b": b, "c": 1.0, "score": a + b}, evals=[entry]))
    own = weightings.Own.of(some)
    assert own is not None
    assert own.weighed([3, 1, 0]) == pytest.approx([0.875, 0.625])
    assert own.weighed([0, 1, 0]) == pytest.approx([0.5, 1.0])  # b on its own scale
    bars = drawn("bars", some).axes[0].containers[0]
    assert [bar.get_width() for bar in bars] == pytest.approx([0.875, 0.625])
    # What is asked for otherwise, or was scored otherwise, is computed over the records.
    label = drawn("bars", some, metric="a:1").axes[0].get_xlabel()
    assert label.startswith("composite score of a (1 is best): ")
    some[0]["evals"][0] = {**some[0]["evals"][0], "terms": terms[:1]}
    assert weightings.Own.of(some) is None


def test_names_that_are_cut_stay_apart() -> None:
    names = [f"ntk.{kind}.fro.pgd.16" for kind in ("robust", "robust2", "robust_twice", "clean")]
    cut = [layout.fitted(name, 0.6, 7) for name in names]
    found = layout.apart(names, 0.6, 7)
    assert len(set(cut)) < 4 and len(set(found)) == 4
    assert all(layout.text_width(text, 7) <= 0.6 for text in found)
    assert layout.apart(["acc", "acc"], 0.6, 7) == ["acc", "acc"]


def test_one_epoch_of_many_trainings_can_be_seen(crowd: Records) -> None:
    short = [
        {**one, "train": {"method": "pgd", "history": {"acc": [0.1 * n]}}} for n, one in enumerate(crowd)
    ]
    axes = drawn("curves", short, over="epoch").axes[0]
    assert all(line.get_marker() != "None" for line in axes.lines if len(line.get_xdata()))
    assert axes.get_xlim() == (0.5, 1.5)


def test_neighbours_of_an_architecture_are_marked_by_operation_and_edge(crowd: Records) -> None:
    figure = drawn("scatter", crowd, y="pgd20.8", neighbours="nb201-13714")
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries[0] == "nb201-13714" and len(entries) == 6
    assert {text.get_text() for text in figure.axes[0].texts} >= {"1", "2", "3", "4", "5", "6"}
    with pytest.raises(RbError, match="no record is of the architecture 0"):
        drawn("scatter", crowd, y="pgd20.8", neighbours="0")


def test_a_confusion_matrix_is_summed_and_its_rows_are_shares(fifteen: Records) -> None:
    figure = drawn("confusion", fifteen, metric="fgsm.8")
    total = sum(np.array(entry(one, "fgsm.8")["detail"]["confusion"]) for one in fifteen)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), total / total.sum(1, keepdims=True))
    with pytest.raises(RbError, match="--labels has 2 names"):
        drawn("confusion", fifteen, labels="cat,dog")


def test_ranks_change_from_metric_to_metric() -> None:
    some = [model("abc"[n], metrics={"acc": n, "ge.acc": n, "fgsm.8": 1}) for n in range(3)]
    figure = drawn("ranks", some, metric="acc,ge.acc,fgsm.8", view="changes")
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[3, 1, 1], [2, 2, 1], [1, 3, 1]]


def test_operations_of_the_best_cells_are_counted() -> None:
    some = [{**model("x", metrics={"acc": n}), "arch": nasbench201.arch(n)} for n in range(4)]
    figure = drawn("cells", some, by="acc", top=2, view="operations")
    ops = [nasbench201.ops_of(some[n]["arch"]) for n in (3, 2)]
    bars = figure.axes[0].containers
    assert [[bar.get_height() for bar in bars[op]] for op in range(5)] == [
        [sum(cell[edge] == op for cell in ops) / 2 for edge in range(6)] for op in range(5)
    ]
    with pytest.raises(RbError, match=r"No record is of NAS-Bench-201\."):
        drawn("cells", [model("x")])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hist", {"metric": "*"}, "More than 8 histograms in one figure"),
        ("hist", {"bins": 999_999_999}, "--bins is 999999999. Expected 1000 at most"),
        ("bars", {"within": "datset"}, "--within: no record has 'datset'."),
        ("hist", {"width": 1.0}, "The width of a figure is 1 inches. Expected 2 to 40."),
        ("scatter", {"colour": "acc", "neighbours": "0"}, "--colour and --neighbours both"),
        ("scatter", {"x": "ge.pr.uniform.0.08 - 1", "log_x": True}, "Ratios need numbers above 0"),
        ("ranks", {"view": "changes", "metric": "acc"}, "Ranks change between metrics"),
        ("curves", {"over": "rho", "metric": "fgsm.*"}, "runs over rho. Measure some"),
        ("cells", {"view": "graph"}, "There are 15 cells to draw as graphs, and 12 fit"),
    ],
)
def test_what_cannot_be_drawn_says_what_to_do(
    name: str, options: dict[str, Any], message: str, fifteen: Records
) -> None:
    with pytest.raises(RbError) as wrong:
        drawn(name, fifteen, **options)
    assert message in str(wrong.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("confusion", "It is kept by --detail"),
        ("heatmap", "There are 2 records. A correlation needs 3 or more."),
    ],
)
def test_records_that_lack_what_is_drawn_are_refused(name: str, message: str) -> None:
    with pytest.raises(RbError, match=re.escape(message)):
        drawn(name, [model(arch, metrics={"acc": 0.5}) for arch in "ab"])


def test_every_measure_and_attack_has_its_group_on_the_page() -> None:
    costs = {"params", "macs"}
    named = [*(f"{name}.8" for name in ATTACKS), *MEASURES]
    record = {"metrics": dict.fromkeys(named, 0.5)}
    groups = {column.name: column.group for column in page_columns.columns([record])}
    assert groups == {
        **{f"{name}.8": "adversarial" for name in ATTACKS},
        **{name: "cost" if name in costs else "measures" for name in MEASURES},
    }
