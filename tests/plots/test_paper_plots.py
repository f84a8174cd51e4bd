"""What the figures of the papers need: groups, facets, sets that are joined, one colour for a method."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from matplotlib.colors import to_hex

from rbtools.errors import RbError
from rbtools.plots import PLOTS, style, weightings, words
from rbtools.scoring import terms
from rbtools.spaces import nasbench201
from tests.runner import model

Records = list[dict[str, Any]]


def drawn(name: str, records: Records, **options: Any) -> Any:
    return PLOTS.build(name, **options).draw(records)


def trained(method: str, **metrics: float) -> dict[str, Any]:
    return {"arch": {"name": "x"}, "dataset": "cifar10", "train": {"method": method}, "metrics": metrics}


def ticks(axes: Any) -> list[str]:
    return [tick.get_text() for tick in axes.get_xticklabels()]


def test_boxes_of_groups_are_those_of_the_methods_in_one_order_and_colour() -> None:
    some = [trained(method, acc=0.1 * n) for n in range(6) for method in ("trades", "erm", "pgd")]
    axes = drawn("box", some, metric="acc", group="train.method").axes[0]
    assert ticks(axes) == ["ERM", "PGD", "TRADES"]
    faces = [to_hex(patch.get_edgecolor()) for patch in axes.patches]
    assert faces == [style.METHODS[name].color.lower() for name in ("erm", "pgd", "trades")]


def test_the_six_weightings_of_prbench_are_boxes_of_the_scores() -> None:
    names = [term.metric for term in terms.presets()["prbench"].terms]
    some = [trained(method, **{name: float(n) for name in names}) for n, method in enumerate(("erm", "pgd"))]
    figure = drawn("box", some, preset="prbench", weightings=("prbench",))
    assert [axes.get_title().replace("\n", " ") for axes in figure.axes] == [*weightings.PRESETS["prbench"]]
    # erm is worst in the four that should be high and best in the other three: 3 of 7, 2 of 6, 2.4 of 6.4 ...
    low = [axes.lines[0].get_ydata()[0] for axes in figure.axes]
    assert low == pytest.approx([3 / 7, 2 / 5.8, 2.4 / 6.4, 2 / 6, 2 / 5.6, 2 / 5.8])


def test_a_facet_has_its_own_panels_and_its_own_line_of_chance() -> None:
    some = [
        {**trained("erm", acc=0.1 * n), "dataset": dataset}
        for n in range(6)
        for dataset in ("cifar10", "cifar100")
    ]
    figure = drawn("box", some, metric="acc", facet="dataset")
    assert [axes.get_title() for axes in figure.axes] == ["CIFAR-10", "CIFAR-100"]
    assert [axes.lines[-1].get_ydata()[0] for axes in figure.axes] == [0.1, 0.01]


def test_ranks_of_sets_are_of_the_architectures_that_all_have() -> None:
    numbers = {"a": (1.0, 2.0, 3.0), "b": (5.0, 9.0, 7.0, 8.0)}
    some = [
        {"arch": {"name": f"n{n}"}, "dataset": dataset, "metrics": {"acc": value}}
        for dataset, values in numbers.items()
        for n, value in enumerate(values)
    ]
    figure = drawn("ranks", some, join="arch.name")
    first, second = (line.get_ydata().tolist() for line in figure.axes[0].lines)
    assert (first, second) == ([1, 2, 3], [2, 1, 3])
    with pytest.raises(RbError, match=r"No arch\.name is in all of the sets a, b"):
        drawn("ranks", [some[0], some[6]], join="arch.name")


def test_a_grid_has_a_row_for_each_cell_with_its_number() -> None:
    cells = [{"arch": nasbench201.arch(index), "metrics": {"acc": index / 1e5}} for index in (9, 13714)]
    axes = drawn("cells", cells, view="grid", by="acc").axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["#13714", "#9"]
    assert axes.images[0].get_array().tolist() == [
        list(nasbench201.ops_of(one["arch"])) for one in cells[::-1]
    ]


def test_means_have_their_deviations() -> None:
    names = ("pr.uniform.0.1", "pr.uniform.0.2")
    record = trained("pgd", **dict.fromkeys(names, 0.5))
    record["evals"] = [
        {"metric": names[0], "value": 0.5, "std": 0.1},
        {"metric": names[1], "value": 0.5, "std": None},
    ]
    axes = drawn("curves", [record]).axes[0]
    (bars,) = axes.containers
    assert [segment.tolist() for segment in bars.lines[2][0].get_segments()] == [
        [[0.1, pytest.approx(0.4)], [0.1, pytest.approx(0.6)]]
    ]
    some = [trained("pgd", acc=value) for value in (0.0, 1.0)]
    axes = drawn("bars", some, metric="acc", group="train.method").axes[0]
    (segment,) = next(one for one in axes.containers if hasattr(one, "lines")).lines[2][0].get_segments()
    assert segment[:, 0].tolist() == pytest.approx([0.5 - 0.5**0.5, 0.5 + 0.5**0.5])


def searched(algorithm: str, objective: str = "acc") -> dict[str, Any]:
    trajectory = {"mean": [0.1, 0.2], "low": [0.0, 0.1], "high": [0.2, 0.3]}
    section = {"algorithm": algorithm, "objectives": [{"objective": objective}], "runs": 3}
    return {"arch": {"name": "x"}, "search": {**section, "trajectory": trajectory, "optimum": {"value": 0.4}}}


def test_searches_have_a_band_each_and_the_best_there_is() -> None:
    figure = drawn("search", [searched("random"), searched("local")])
    axes = figure.axes[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["random", "local", "optimum"]
    assert [line.get_ydata()[-1] for line in axes.lines] == [0.2, 0.2, 0.4]
    assert len(axes.collections) == 2
    with pytest.raises(RbError, match=r"optimise acc and pgd20\.8\. Choose"):
        drawn("search", [searched("random"), searched("local", "pgd20.8")])


def detailed(name: str, label: Any = (0.2, 0.8), prediction: Any = (0.9, 0.5)) -> dict[str, Any]:
    """An entry with confidences, those of the images of class 1 and of right and wrong ones as given."""
    confidence = {"prediction": [*prediction], "label": [[0.9, 0.1], [*label]]}
    confidence["argmax"] = [[0.7, 0.3], [0.5, 0.5]]
    return {"metric": name, "value": 0.5, "detail": {"confidence": confidence}}


def test_the_confidence_of_a_label_is_that_of_its_images() -> None:
    record = model("x", detailed("acc", label=[0.0, 1.0]), detailed("fgsm.8", label=[0.7, 0.3]))
    figure = drawn("confidence", [record], view="label", image_class=1)
    lines = {
        name.get_text(): line
        for name, line in zip(figure.legends[0].get_texts(), figure.axes[0].lines, strict=True)
    }
    assert lines["class 1"].get_xydata().tolist() == [[0, 1.0], [8, 0.3]]
    assert lines["class 0"].get_ydata().tolist() == [0.0, 0.7]


def test_confidences_of_predictions_have_a_panel_and_a_point_for_each_distance() -> None:
    predictions = {"acc": [0.95, None], "fgsm.1": [0.9, 0.6], "fgsm.255": [0.4, 0.7]}
    record = model("x", *(detailed(name, prediction=two) for name, two in predictions.items()))
    panels = drawn("confidence", [record], view="class", metric="fgsm.1").axes
    assert [axes.get_title() for axes in panels] == [
        "images of the class",
        "images predicted as the class",
        "all images",
    ]
    heights = [[line.get_ydata()[0] for line in axes.lines] for axes in panels]
    assert heights == [[0.9, 0.8], [0.7, 0.5], [0.9, 0.6]]
    axes = drawn("confidence", [record], view="prediction").axes[0]
    assert axes.lines[-1].get_xydata().tolist() == [[0.9, 0.6], [0.4, 0.7]]
    assert [text.get_text() for text in axes.texts] == ["1", "255"]
    # 255 after 1 would leave no room for the others: the distances have equal steps.
    over = drawn("confidence", [record], view="label").axes[0]
    assert over.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert [tick.get_text() for tick in over.get_xticklabels()] == ["0", "1", "255"]


def test_many_points_of_methods_are_outlines_that_hide_no_other() -> None:
    some = [trained(method, acc=0.5, aa=0.1) for method in ("trades", "erm", "pgd") for _ in range(21)]
    figure = drawn("scatter", some, y="aa", colour="train.method")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ERM", "PGD", "TRADES"]
    assert all(len(points.get_facecolors()) == 0 for points in figure.axes[0].collections)


def test_what_names_share_stands_once_and_cells_without_correlation_are_explained() -> None:
    names = [f"corrupt.{name}.3" for name in ("fog", "snow", "frost")]
    some = [trained("erm", **dict.fromkeys(names, 0.1 * n), acc=0.1 * n) for n in range(3)]
    for one in some:
        one["metrics"][names[0]] = 0.5
    figure = drawn("heatmap", some, rows="acc", cols=",".join(names))
    axes = figure.axes[0]
    assert (ticks(axes), axes.get_xlabel(), axes.get_ylabel()) == (["fog", "snow", "frost"], "severity 3", "")
    assert "no correlation" in figure.legends[0].get_texts()[0].get_text()
    some = [trained("erm", acc=0.1 * n, a=n, b=-n) for n in range(3)]
    figure = drawn("heatmap", some, metric="acc,a,b")
    assert (figure.axes[0].get_xlabel(), figure.legends) == ("", [])


def test_measures_say_on_which_weights_and_images() -> None:
    labels = {
        "jacobian.init.test": "Jacobian (untrained, test)",
        "hessian.weight.labs": "Hessian |λ|max (trained, train)",
        "hessian.init.train.weight.lmax": "Hessian λmax (untrained, train)",
        "ntk.robust.fro.pgd.8": "NTK robust, PGD, ε = 8/255",
    }
    assert {name: words.label(name) for name in labels} == labels


def test_a_panel_that_a_common_axis_would_squeeze_has_its_own() -> None:
    def some(low: float) -> Records:
        sets = {"svhn": (0.99, 0.98), "cifar10": (0.99, low)}
        return [
            {**trained("erm", **{"pr.uniform.0.1": a, "pr.uniform.0.2": b}), "dataset": name}
            for name, (a, b) in sets.items()
        ]

    heights = {}
    for low in (0.1, 0.96):
        figure = drawn("curves", some(low), facet="dataset")
        heights[low] = {axes.get_ylim() for axes in figure.axes}
    assert (len(heights[0.1]), len(heights[0.96])) == (2, 1)


def test_the_blocks_of_a_network_are_joined_from_row_to_row() -> None:
    axes = drawn("cells", [{"arch": nasbench201.arch(9)}], view="network", width=3.3).axes[0]
    blocks = [text.get_position() for text in axes.texts if text.get_text()]
    assert len(blocks) == 9 and len(axes.texts) == 9 + 8
    steps = [abs(a - c) + abs(b - d) for (a, b), (c, d) in itertools.pairwise(blocks)]
    assert steps == [1] * 8
