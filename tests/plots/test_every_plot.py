"""Every plot that is registered: a valid file of few records, and no text over another of few or many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib.text import Text

from rbtools.errors import RbError
from rbtools.plots import PLOTS, base

pytestmark = pytest.mark.slow
Records = list[dict[str, Any]]
FIGURES = [
    name
    for name in PLOTS
    if PLOTS.load(name).endings == base.ENDINGS  # type: ignore[attr-defined]
    and name != "search"  # of what rb-search writes: test_paper_plots.py
]
SCORED = "acc,pgd20.8,pr.uniform.0.08,probacc.uniform.0.0313725.0.05,ge.pr.uniform.0.08,seconds_per_epoch"
WEIGHTINGS = ("equal", "robust=pgd20.8=5, pr.*=3", "fast=seconds_per_epoch=9")

# What a kind is asked for, where it needs or deserves more than its defaults: typical, then crowded.
ASKED: dict[str, list[dict[str, Any]]] = {
    "box": [
        {"metric": "acc,pgd20.*"},
        {},
        {"metric": "acc,pgd20.8", "group": "train.method"},
        {"metric": SCORED, "weightings": WEIGHTINGS},
        {"metric": "acc,fgsm.*", "facet": "dataset,train.seed"},
    ],
    "hist": [{"metric": "acc"}, {"metric": "acc,fgsm.8,pgd20.*"}],
    "scatter": [
        {"y": "pgd20.8", "pareto": True},
        {"y": "mean(pgd20.*)", "neighbours": "13714"},
        {"y": "pgd20.8", "colour": "train.method"},
        {"x": "params", "y": "acc", "log_x": True, "colour": "pgd20.8"},
        {"y": "pgd20.8", "highlight": "kernel_params > 9"},
    ],
    "heatmap": [{"metric": SCORED}, {}, {"view": "values"}],
    "ranks": [{}, {"view": "own", "metric": "acc,fgsm.*"}],
    "confidence": [
        {},
        {"view": "prediction"},
        {"view": "class", "metric": "fgsm.8,pgd20.8"},
        {"view": "label", "image_class": 3},
    ],
    "confusion": [{}, {"metric": "fgsm.*"}],
    "curves": [
        {},
        {"over": "severity"},
        {"over": "epoch"},
        {"over": "epoch", "metric": "loss", "right": "acc,val_acc"},
        {"over": "rho"},
        {"over": "eps"},
    ],
    "cells": [
        {"top": 1},
        {"view": "operations", "top": 5},
        {"view": "graph", "top": 4},
        {"by": "acc,mean(fgsm.*,pgd20.*,apgd-ce.*),mean(corrupt.*)"},
        {"view": "grid"},
        {"view": "network"},
    ],
    "bars": [{"metric": SCORED}, {"metric": SCORED, "weightings": WEIGHTINGS}],
}


def drawn(name: str, records: Records, **options: Any) -> Any:
    return PLOTS.build(name, **options).draw(iter(records))


@pytest.mark.parametrize("name", FIGURES)
def test_no_records_and_no_such_metric_are_errors_that_say_so(name: str, fifteen: Records) -> None:
    with pytest.raises(RbError, match="There are no records to draw"):
        drawn(name, [])
    option = next(one for one in ("metric", "x", "by") if one in PLOTS.load(name).__dataclass_fields__)  # type: ignore[attr-defined]
    with pytest.raises(RbError, match=r"fgsn\.8.*fgsm\.8"):
        drawn(name, fifteen, **{option: "fgsn.8"})


@pytest.mark.parametrize("name", FIGURES)
def test_one_record_or_a_constant_metric_is_drawn_or_refused(name: str, fifteen: Records) -> None:
    flat = [{**one, "metrics": {**dict.fromkeys(one["metrics"], 0.5)}} for one in fifteen[:3]]
    for records, reason in (fifteen[:1], "There is 1 record."), (flat, "the same value in all records"):
        if name == "heatmap":
            with pytest.raises(RbError, match=reason):
                drawn(name, records)
        else:  # other endings: test_plot.py
            assert base.encode(drawn(name, records, **ASKED[name][0]), "svg").startswith(b"<?xml")


@pytest.mark.parametrize("which", ["x", "y"])
@pytest.mark.parametrize("name", FIGURES)
def test_limits_of_an_axis_are_kept_or_refused(name: str, which: str, fifteen: Records) -> None:
    for options in ASKED[name]:
        try:
            figure = drawn(name, fifteen, **{**options, f"{which}lim": "0.25:0.75"})
        except RbError as refused:
            assert "has no numbers" in str(refused)
        else:
            panels = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
            assert (0.25, 0.75) in {tuple(sorted(getattr(axes, f"get_{which}lim")())) for axes in panels}


def texts_of(figure: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """Every text that is drawn, and the rectangle of pixels that it covers."""
    seen: list[Text] = []
    draw = Text.draw

    def noting(self: Text, renderer: Any, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip() and self not in seen:
            seen.append(self)
        draw(self, renderer, *args, **kwargs)

    monkeypatch.setattr(Text, "draw", noting)
    figure.draw_without_rendering()
    for text in seen:
        # Of an annotation only its words: the line to its point may pass anything.
        yield text.get_text(), Text.get_window_extent(text, figure.canvas.get_renderer())


def overlapping(boxes: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of texts that share more than a pixel each way."""
    return [
        (one, other)
        for place, (one, a) in enumerate(boxes)
        for other, b in boxes[place + 1 :]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


# Many records in a narrow figure, for everything that is asked; few in a wide one, for what is typical.
CASES = [(name, options, "crowd", 3.3) for name in FIGURES for options in ASKED[name]]
CASES += [(name, ASKED[name][0], "fifteen", 6.5) for name in FIGURES]


@pytest.mark.parametrize(("name", "options", "which", "width"), CASES, ids=lambda part: str(part)[:40])
def test_no_text_covers_another_or_leaves_the_figure(
    name: str,
    options: dict[str, Any],
    which: str,
    width: float,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = request.getfixturevalue(which)
    if which == "crowd" and options.get("colour") == "train.method":
        records = records[:14]
    figure = drawn(name, records, width=width, **options)
    boxes = list(texts_of(figure, monkeypatch))
    assert overlapping(boxes) == []
    right, top = figure.get_size_inches() * figure.dpi
    outside = [text for text, box in boxes if min(box.x0, box.y0, right - box.x1, top - box.y1) < -1]
    assert outside == []
    assert len(boxes) > 3


@pytest.mark.parametrize("name", ["box", "heatmap", "confidence"])
def test_records_drawn_again_make_the_same_bytes(name: str, fifteen: Records) -> None:
    # Where panels end up is solved for in an order that differs from figure to figure.
    files = {base.encode(drawn(name, fifteen[:4]), "svg") for _ in range(3)}
    assert len(files) == 1


def test_a_network_s_stages_have_their_channels(fifteen: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    said = " ".join(text for text, _ in texts_of(drawn("cells", fifteen[:1], view="network"), monkeypatch))
    assert re.findall(r"residual /2\n(\d+) channels", said) == ["32", "64"]
    assert re.findall(r"cell\n(\d+) channels", said) == ["16", "32", "64"]
