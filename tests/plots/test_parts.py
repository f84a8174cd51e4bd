"""What plots are made of: names, weights, chance, and what single kinds show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from rbtools.errors import RbError
from rbtools.plots import PLOTS, box, layout, style, weightings, words
from rbtools.scoring.composite import Composite
from rbtools.scoring.rank_order import Directions
from rbtools.scoring.terms import asked
from rbtools.spaces import nasbench201
from tests.runner import entry, model

Records = list[dict[str, Any]]


def test_records_are_called_by_what_differs() -> None:
    some = [model("a", train={"method": method, "seed": 0}) for method in ("erm", "pgd", "pgd")]
    assert words.tags(some) == ["ERM", "PGD #1", "PGD #2"]
    assert words.tags([model("a"), model("b", dataset="svhn")]) == ["a", "b SVHN"]


def test_own_words_stand_in_place_of_names() -> None:
    some = [
        model("a", metrics={"acc": n / 9, "pgd20.8": n / 18}, train={"method": method})
        for n, method in enumerate(("erm", "pgd", "pgd"))
    ]
    own = ("pgd20.8=under attack", "pgd = Madry et al.", "acc=clean [share]")
    figure = drawn("scatter", some, y="pgd20.8", colour="train.method", label=own, title="Ours")
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("clean [share]", "under attack")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ERM", "Madry et al."]
    assert figure.get_suptitle() == "Ours"
    with pytest.raises(RbError, match=r"the figure has no label 'pgd20.9'. Did you mean 'pgd20.8'"):
        drawn("scatter", some, y="pgd20.8", label=("pgd20.9=PGD",))
    with pytest.raises(RbError, match=r"once for each name: --label 'acc=a' --label 'pgd20.8=b'"):
        drawn("scatter", some, y="pgd20.8", label=("acc=a; pgd20.8=b",))


def test_a_condition_has_words_and_a_range_stays_on_its_line() -> None:
    some = [model("a", metrics={"acc": n / 9, "pgd20.8": n / 18}) for n in range(3)]
    figure = drawn("scatter", some, y="pgd20.8", highlight="acc == 0", label=("acc == 0=worst",))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["worst (1)", "others (2)"]
    assert layout.wrapped("noise radius γ, on pixels in [0, 1]", 1.5, 8).splitlines()[-1].endswith("[0, 1]")
    assert layout.wrapped("ProbAcc uniform, γ = 0.03", 1.2, 8).splitlines()[-1] == "γ = 0.03"


FILES = ("/nets/runs/adv.pth", "/nets/runs/std.pt")


def own(**metrics: float) -> Records:
    metrics = metrics or {"pgd20.4": 0.5, "pgd20.8": 0.4}
    return [model("net", checkpoint_file=file, metrics=metrics) for file in FILES]


@pytest.mark.parametrize("names", [("adv.pth", "std"), ("runs/adv", "/nets/runs/std.pt")])
def test_models_are_labelled_by_their_checkpoint(names: tuple[str, str]) -> None:
    labels = tuple(f"{name}={words}" for name, words in zip(names, ("Ours", "Theirs"), strict=True))
    figure = drawn("curves", own(), over="eps", label=labels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Ours", "Theirs"]


def test_models_that_only_their_checkpoint_tells_apart_have_its_name_and_a_colour_each() -> None:
    figure = drawn("curves", own(), over="eps")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["adv", "std"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2
    alike = [{**one, "checkpoint_file": f"/{run}/best.pt"} for run, one in zip("ab", own(), strict=True)]
    assert words.tags(alike) == ["a/best", "b/best"]
    assert words.tags([alike[0], alike[0]]) == ["net #1", "net #2"]


def test_clean_accuracy_begins_a_curve_over_eps_if_it_is_of_the_same_images() -> None:
    values = {"acc": 0.9, "pgd20.4": 0.5, "pgd20.8": 0.4}
    clean, *attacked = ({"metric": name, "value": value, "n": 50} for name, value in values.items())
    whole, other = model("a", clean, *attacked), model("b", {**clean, "n": 100}, *attacked)
    lines = drawn("curves", [whole, other], over="eps").axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[0, 4, 8], [4, 8]]
    assert lines[0].get_ydata()[0] == 0.9


def test_distances_of_rb_attack_curve_need_one_panel() -> None:
    record = model("a", metrics={f"{name}.{eps}": 0.5 for name in ("pgd20", "curve") for eps in (4, 8)})
    assert len(drawn("curves", [record], over="eps").axes) == 1
    assert len(drawn("curves", [record], over="eps", metric="*").axes) == 2


def test_bands_are_explained_and_a_word_says_that_they_are_left_out(fifteen: Records) -> None:
    few, many = (drawn("curves", some, over="eps", metric="pgd20.*") for some in (fifteen[:6], fifteen[:7]))
    assert [len(figure.axes[0].collections) for figure in (few, many)] == [6, 0]
    said = [figure.legends[0].get_title().get_text() for figure in (few, many)]
    left = "Intervals are not drawn for more than 6 models (here 7)."
    assert said == ["Bands: 95 % intervals, n = 450.", left]


def test_a_heat_map_of_values_has_a_row_for_each_corruption_and_a_panel_for_each_model() -> None:
    def some(count: int) -> Records:
        return [
            model(
                "abcdefg"[n], metrics={"corrupt.fog.1": 0.1 * n, "corrupt.fog.3": 0.5, "corrupt.snow.1": 0.2}
            )
            for n in range(count)
        ]

    figure = drawn("heatmap", some(2), view="values")
    tables = [axes.images[0].get_array().filled(9).tolist() for axes in figure.axes[:2]]
    assert tables == [[[0.0, 0.5], [0.2, 9]], [[0.1, 0.5], [0.2, 9]]]
    assert [axes.get_title() for axes in figure.axes[:2]] == ["a", "b"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["fog", "snow"]
    (axes, bar) = drawn("heatmap", some(7), view="values").axes
    assert axes.images[0].get_array()[0, 0] == pytest.approx(0.3)
    assert bar.get_xlabel().replace("\n", " ") == "accuracy, mean of 7 models"
    with pytest.raises(RbError, match="--kind applies only to correlations"):
        drawn("heatmap", some(2), view="values", kind="kendall")
    with pytest.raises(RbError, match="have no severity or distance"):
        drawn("heatmap", [model("a", metrics={"acc": 0.1})], view="values", metric="acc")


def test_correlations_say_their_number_and_begin_at_zero_if_none_is_negative() -> None:
    for sign, low in ((1, 0), (-1, -1)):
        some = [model("a", metrics={"acc": 0.1 * n, "b": sign * n}) for n in range(4)]
        axes, bar = drawn("heatmap", some).axes
        assert bar.get_xlabel() == "Spearman's ρ, n = 4"
        assert axes.images[0].get_clim() == (low, 1)
        assert {text.get_text().removeprefix("−") for text in axes.texts} == {"1.00"}


def test_every_family_of_a_crowded_correlation_map_has_its_name_once(crowd: Records) -> None:
    figure = drawn("heatmap", crowd, width=3.3)
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names[:3] == ["clean", "FGSM", "PGD-20"] and len({*names}) == len(names) == 15
    # Metrics of a family are beside each other, so the diagonal is still of each metric with itself.
    assert figure.axes[0].images[0].get_array().diagonal().tolist() == pytest.approx([1.0] * 63)


def test_a_method_has_its_colour_in_bars_of_models_too() -> None:
    names = [f"corrupt.c{n}.3" for n in range(8)]
    some = [model("a", metrics=dict.fromkeys(names, 0.5), train={"method": name}) for name in ("pgd", "erm")]
    figure = drawn("bars", some, metric=",".join(names), width=3.3)
    faces = [bars[0].get_facecolor() for bars in figure.axes[0].containers]
    assert faces == [to_rgba(style.METHODS[name].color) for name in ("pgd", "erm")]
    assert figure.axes[0].get_yticklabels()[0].get_text() == "c0, severity 3"


def test_names_below_an_axis_are_broken_before_they_are_turned() -> None:
    some = [model("abc"[n], metrics={"acc": n, "pgd20.4": n, "pgd20.8": n}) for n in range(3)]
    ticks = drawn("ranks", some, metric="acc,pgd20.4,pgd20.8", view="changes", width=3.3).axes[0]
    texts = ticks.get_xticklabels()
    assert [text.get_text() for text in texts] == ["clean", "PGD-20,\nε = 4/255", "PGD-20,\nε = 8/255"]
    assert {text.get_rotation() for text in texts} == {0}


def test_bars_of_fifteen_corruptions_are_rows_and_models_are_colours() -> None:
    names = [f"corrupt.c{n}.mean" for n in range(15)]
    some = [model(letter, metrics=dict.fromkeys(names, value)) for letter, value in (("a", 0.2), ("b", 0.4))]
    figure = drawn("bars", some, metric="corrupt.*.mean")
    assert len(figure.axes[0].get_yticklabels()) == 15
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["b", "a"]
    assert [bars[0].get_width() for bars in figure.axes[0].containers] == [0.4, 0.2]
    many = [{**some[0], "arch": {"name": str(n)}} for n in range(8)]
    with pytest.raises(RbError, match="--metric names 15 metrics, but there are 8 bars for each"):
        drawn("bars", many, metric="corrupt.*.mean")


def test_intervals_are_drawn_in_scatter_and_ranks() -> None:
    some = [
        model(
            name,
            {"metric": "acc", "value": acc, "ci95": [acc - 0.125, acc + 0.25]},
            {"metric": "pgd20.8", "value": 0.25, "ci95": [0.125, 0.5]},
        )
        for name, acc in (("a", 0.5), ("b", 0.75))
    ]
    axes = drawn("scatter", some, y="pgd20.8").axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[0.375, 0.25], [0.75, 0.25]]
    assert axes.lines[1].get_xydata().tolist() == [[0.5, 0.125], [0.5, 0.5]]
    figure = drawn("ranks", some, metric="acc,pgd20.8")
    bars = [one.lines[2][0].get_segments() for one in figure.axes[0].containers]
    assert [bar[0].tolist() for bar in bars] == [[[1, 0.625], [1, 1]], [[1, 0.125], [1, 0.5]]]
    assert figure.legends[0].get_title().get_text() == "Error bars: 95 % intervals."
    joined = {line.get_label(): line.get_linestyle() for line in figure.axes[0].lines}
    assert (joined["clean"], joined["PGD-20, ε = 8/255"]) == ("-", "None")


def test_a_confusion_matrix_names_its_attack_and_its_zeros(fifteen: Records) -> None:
    axes = drawn("confusion", fifteen[:2], metric="fgsm.8", width=6.5).axes[0]
    assert axes.get_title() == "FGSM, ε = 8/255, sum of 2 models"
    assert len([text for text in axes.texts if text.get_text()]) == 100


def test_limits_and_the_size_of_the_font_are_as_asked() -> None:
    figure = drawn("curves", own(), over="eps", xlim="0:16", ylim="0.25:1", font_size=10.0)
    axes = figure.axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 16), (0.25, 1))
    assert (axes.xaxis.label.get_size(), axes.get_xticklabels()[0].get_size()) == (10, 9)
    for kind, options, limit in (
        ("box", {"metric": "pgd20.8"}, {"xlim": "0:1"}),
        ("bars", {"metric": "pgd20.8"}, {"ylim": "0:1"}),
        ("heatmap", {"view": "values", "metric": "pgd20.*"}, {"ylim": "0:1"}),
    ):
        with pytest.raises(RbError, match="this axis of the figure has no numbers"):
            drawn(kind, own(), **options, **limit)
    for wrong in ("1:0", "1", "a:b", "0:inf"):
        with pytest.raises(RbError, match=f"--xlim is '{wrong}'. Expected two numbers"):
            drawn("curves", own(), over="eps", xlim=wrong)
    with pytest.raises(RbError, match="A logarithmic axis needs limits above 0"):
        drawn("scatter", own(), x="pgd20.4", y="pgd20.8", log_x=True, xlim="0:1")


def test_chance_is_known_for_published_sets_and_from_matrices() -> None:
    assert box.classes([model("a", dataset="ImageNet16-120")]) == 120
    assert box.classes([model("a", dataset="npz:some.npz")]) is None
    assert box.classes([model("a", dataset="CIFAR-10"), model("b", dataset="cifar10-c:fog.3")]) == 10
    assert box.classes([model("a", dataset="cifar10"), model("b", dataset="cifar100")]) is None
    detail = {"detail": {"confusion": [[0] * 7] * 7}}
    assert box.classes([model("a", dataset="mine", evals=[detail])]) == 7


def test_weightings_are_read_and_wrong_ones_named() -> None:
    names = dict.fromkeys(["acc", "pgd20.8", "pgd20.16"], 1.0)
    assert weightings.weightings(["equal", "robust=pgd20.*=3, acc=0"], names) == {
        "equal": [1.0, 1.0, 1.0],
        "robust": [0.0, 3.0, 3.0],
    }
    with pytest.raises(RbError, match=r"'ac=2' is not METRIC=WEIGHT\. Did you mean 'acc'"):
        weightings.weightings(["a=ac=2"], names)
    with pytest.raises(RbError, match=r"Expected NAME=LIST"):
        weightings.weightings(["robust: acc=2"], names)


def test_scores_are_those_of_rb_score_within_groups_too() -> None:
    some = [
        model("a", dataset=dataset, train={"method": str(number)}, metrics={"acc": number, "ge.acc": -number})
        for dataset in ("x", "y")
        for number in range(3)
    ]
    for one in some[3:]:
        one["metrics"]["acc"] += 10
    over_all = Composite(some, asked(["acc,ge.acc"], Directions())).weighed([1.0, 1.0])
    within = Composite(some, within=["dataset"]).weighed([1.0, 1.0])
    assert Composite(some, asked(["ge.acc"], Directions(higher="ge.acc"), ["acc=3"])).weighed(
        [0.0, 3.0]
    ) == pytest.approx([n / 12 for n in (0, 1, 2, 10, 11, 12)])
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
    label = drawn("bars", some, metric="a", weightings=("equal",)).axes[0].get_xlabel()
    assert label.startswith("composite score of a (1 is best): ")
    some[0]["evals"][0] = {**some[0]["evals"][0], "terms": terms[:1]}
    assert weightings.Own.of(some) is None


def test_neighbours_of_an_architecture_are_marked_by_operation_and_edge(crowd: Records) -> None:
    figure = drawn("scatter", crowd, y="pgd20.8", neighbours="nb201-13714")
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries[0] == "nb201-13714" and len(entries) == 7
    assert {text.get_text() for text in figure.axes[0].texts} >= {"1", "2", "3", "4", "5", "6"}


def test_a_confusion_matrix_is_summed_and_its_rows_are_shares(fifteen: Records) -> None:
    figure = drawn("confusion", fifteen, metric="fgsm.8")
    total = sum(np.array(entry(one, "fgsm.8")["detail"]["confusion"]) for one in fifteen)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), total / total.sum(1, keepdims=True))


def test_ranks_change_from_metric_to_metric() -> None:
    some = [model("abc"[n], metrics={"acc": n, "ge.acc": n, "fgsm.8": 1}) for n in range(3)]
    figure = drawn("ranks", some, metric="acc,ge.acc,fgsm.8", view="changes")
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[3, 1, 1], [2, 2, 1], [1, 3, 1]]
    assert [tick.get_text() for tick in figure.axes[1].get_yticklabels()] == ["a", "b", "c"]


def test_operations_of_the_best_cells_are_counted() -> None:
    some = [{**model("x", metrics={"acc": n}), "arch": nasbench201.arch(n)} for n in range(4)]
    figure = drawn("cells", some, by="acc", top=2, view="operations")
    ops = [nasbench201.ops_of(some[n]["arch"]) for n in (3, 2)]
    bars = figure.axes[0].containers
    assert [[bar.get_height() for bar in bars[op]] for op in range(5)] == [
        [sum(cell[edge] == op for cell in ops) / 2 for edge in range(6)] for op in range(5)
    ]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hist", {"metric": "*"}, "More than 8 histograms in one figure"),
        ("hist", {"bins": 999_999_999}, "--bins is 999999999. Expected at most 1000"),
        ("scatter", {"x": "ge.pr.uniform.0.08 - 1", "log_x": True}, "--log-x needs values above 0"),
        ("ranks", {"view": "changes", "metric": "acc"}, "--view changes compares metrics"),
        ("curves", {"over": "rho", "metric": "fgsm.*"}, "depends on rho. Measure some"),
        ("cells", {"view": "graph"}, "There are 15 cells to draw as graphs, but only 12 fit"),
    ],
)
def test_what_cannot_be_drawn_says_what_to_do(
    name: str, options: dict[str, Any], message: str, fifteen: Records
) -> None:
    with pytest.raises(RbError) as wrong:
        drawn(name, fifteen, **options)
    assert message in str(wrong.value)
