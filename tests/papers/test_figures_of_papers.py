"""Figures and tables of the papers: no number is left out, every command is one, what is made stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rbtools.papers import figures_of_papers, item_listing, items, pipes, recipes, sidebyside
from rbtools.papers import reproduce_nas_bench_201_robustness as jung
from rbtools.papers import reproduce_nas_robbench_201 as robbench
from rbtools.papers import reproduce_wci as wci
from rbtools.papers.__main__ import main
from tests.runner import lines, model, parsed

# How many figures and tables each paper numbers.
NUMBERED = {
    "nas-robbench-201": {"figure": 8, "table": 7},
    "prbench": {"figure": 6, "table": 12, "theorem": 5},
    "robustness-dataset": {"figure": 30, "table": 4},
    "wci": {"figure": 1, "lemma": 3},
    "theory": {"theorem": 2, "corollary": 1, "algorithm": 1},
}
# Those that show no data, or need what no target trains: each says so itself.
WITHOUT = {
    "nas-robbench-201": {"table 3"},
    "prbench": {"figure 1", *(f"table {number}" for number in (1, 2, 3, 6, 7))}
    | {"theorem 3", "proposition 1", "lemmas 1 to 6"},
    "robustness-dataset": {"figure 9", "table 2", "table 3", "table 4"},
    "wci": {"definition 5"},
    "theory": {"lemmas 3 to 8", "lemmas 10 to 14"},
}

HISTOGRAM = items.PanelCall("plot", ["hist"], {"metric": "acc"})
NINE = [{"arch": {"name": f"{n}"}, "metrics": {"acc": n / 9}} for n in range(9)]


class Killing(items.PanelCall):
    """A call whose process is killed when it draws."""

    @property
    def words(self) -> list[str]:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return ["hist"]


@pytest.mark.parametrize("name", NUMBERED)
def test_every_number_of_a_paper_is_drawn_or_says_why_not(name: str) -> None:
    paper, counts = items.paper(name, "mini"), NUMBERED[name]
    numbers = {f"{kind} {n}" for kind in counts for n in range(1, counts[kind] + 1)}
    # Lemmas and theorems are numbered together, and several lemmas may be one item.
    also = {"wci": {"theorem 4"}, "theory": {"lemma 1", "lemma 2", "lemma 9"}}
    assert set(paper.items) == numbers | WITHOUT[name] | also.get(name, set())
    assert set(NUMBERED) == set(items.NAMES)
    for number, item in paper.items.items():
        assert item.caption and item.verdict and not (item.panels and item.reason), number
        assert item.axes or item.reason, number
    assert {number for number, item in paper.items.items() if item.reason} == WITHOUT[name]
    module = sidebyside.comparison(paper.records)
    known = {*module.tables([], "mini"), *(one.number for one in paper.items.values() if one.bound)}
    tables = {number for number, item in paper.items.items() if not item.panels and not item.reason}
    assert tables <= known


@pytest.mark.parametrize("name", NUMBERED)
@pytest.mark.parametrize("scale", ["mini", "full"])
def test_every_command_of_an_item_is_one(name: str, scale: str) -> None:
    for item in items.paper(name, scale).items.values():
        for command in item.commands(Path("made"), 6.5).values():
            for part in re.split(r" \| (?=rb-)", command):
                tool, *arguments = shlex.split(part)
                assert parsed(tool.removeprefix("rb-"), *arguments), part


@pytest.mark.slow
def test_an_item_is_made_once_and_says_which_command_makes_what_it_lacks() -> None:
    curves = items.PanelCall("plot", ["curves"], {})
    axes = "x: accuracy, y < 1", "as in the paper"
    shown = {
        "figure 1": items.Item("figure 1", "Shown.", *axes, {"a": [HISTOGRAM], "b": [curves]}),
        "figure 2": items.Item("figure 2", "Of others.", *axes, {"": [HISTOGRAM]}, of="prbench"),
    }
    run = figures_of_papers.PaperRun("wci", "mini", Path("made"), 3.3)
    run.paper = run.paper._replace(items=shown)
    records = run.folder / "records.jsonl"
    records.write_text(lines(*NINE))
    made = run.make()
    assert made["figure 1"].done and not made["figure 2"].done
    assert "rb-pr --gamma 0:0.15:31" in made["figure 1"].missing["b"]
    assert "make reproduce-prbench SCALE=mini creates it" in made["figure 2"].missing[""]
    pdf = Path("made/wci/fig1.pdf")
    assert pdf.read_bytes().startswith(b"%PDF")
    whole = shown["figure 1"]._replace(panels={"a": [HISTOGRAM]})
    run.paper = run.paper._replace(items={"figure 1": whole})
    assert not run.make()["figure 1"].missing
    first = pdf.stat().st_mtime_ns
    assert run.make()["figure 1"].done and pdf.stat().st_mtime_ns == first
    later = first / 1e9 + 10
    os.utime(records, (later, later))
    assert run.ready(whole) is None and not pdf.exists()


@pytest.mark.slow
def test_records_of_a_reproduction_become_figures_tables_and_a_page() -> None:
    history = {name: [1.0, 2.0, 3.0 + at] for at, name in enumerate(wci.SHOWN)}
    bound = {"measure": "bound", "formula": "a < b", "value": 0.25, "inputs": {"n": 3}, "vacuous": False}
    train = {"config": {}, "history": history}
    record = model("small", {**bound, "metric": "bound.wci4.pgd.32"}, dataset="digits", train=train)
    Path("reproduced").mkdir()
    Path("reproduced/wci-tiny.jsonl").write_text(lines(record, {**record, "error": {"message": "no"}}))
    words = ["figures-wci", "--scale", "tiny", "--only-draw", "--jobs", "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0 and "shows 2 of the 6 figures" in done.stdout, done.output
    assert "1 of 2 records failed and are left out" in done.stderr
    assert "| bound.wci4.pgd.32 | 0.25 | 0.25 | 0 | 1 |" in Path("reproduced/wci/theorem4.md").read_text()
    page = Path("reproduced/wci/index.html").read_text()
    assert page.count("<div") == page.count("</div") and "cannot be told (rho 1.00 [-1.00, 1.00])" in page


def test_figures_exist_when_searches_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(records: Any, scale: str) -> Any:
        assert [file.name for file in Path("made/wci").glob("*.pdf")] == ["fig1.pdf"]
        raise KeyboardInterrupt

    monkeypatch.setattr(wci, "tables", tables)
    paper = items.paper("wci", "mini")
    shown = items.Item("figure 1", "Shown.", "x: y", "as in the paper", {"": [HISTOGRAM]})
    monkeypatch.setattr(items, "paper", lambda *_: paper._replace(items={"figure 1": shown}))
    monkeypatch.setattr(wci, "for_figures", list)
    Path("made").mkdir()
    Path("made/wci-mini.jsonl").write_text(lines(*NINE))
    with pytest.raises(KeyboardInterrupt):
        figures_of_papers.draw_all("wci", "mini", Path("made"), 3.3, 1)


def test_details_that_no_figure_shows_are_not_parsed() -> None:
    detail = {"confidence": {"label": [[0.5]]}, "images": {"label": [1]}, "confusion": [[1]]}
    entries = [
        {"metric": name, "n": 1, "ci95": [0, 1], "detail": detail} for name in ("acc", "fgsm.8", "a.1")
    ]
    entries += [{"metric": "none"}, {"metric": "apart", "cost": {"passes": 1}, "detail": detail}]
    line = lines({"evals": entries, "detail": detail}).encode()
    record = json.loads(figures_of_papers.without_details(line, ("acc", "fgsm.*")))
    del entries[2]["detail"]
    assert record == {"evals": entries, "detail": detail}


def test_a_panel_without_content_keeps_its_place_and_axes_of_a_row_are_equally_high() -> None:
    few = items.PanelCall("plot", ["hist"], {"metric": "acc", "where": "acc > 0.5"})
    scatter = items.PanelCall("plot", ["scatter"], {"x": "acc", "y": "acc"})
    item = items.Item("figure 1", "", "", "", {"a": [HISTOGRAM], "b": [few], "c": [scatter]}, columns=3)
    Path("records.jsonl").write_text(lines(*NINE))
    missing = figures_of_papers.draw(item, Path(), 6.5)
    assert missing == {"b": "It would show 4 networks, but at least 6 are needed."}
    drawn = [figures_of_papers.figure_of([call], Path("records.jsonl"), 2.2) for call in (HISTOGRAM, scatter)]
    figures_of_papers.joined([*zip("ac", drawn, strict=True)], 6.5)
    heights = [axes.get_position().height * one.get_figheight() for one in drawn for axes in one.axes]
    assert heights[0] == pytest.approx(heights[1], abs=0.01)
    assert figures_of_papers.draw(item._replace(panels={"b": [few]}), Path("nowhere"), 6.5)
    assert not Path("nowhere").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_a_drawing_process_that_is_killed_costs_its_figure_alone() -> None:
    run = figures_of_papers.PaperRun("wci", "mini", Path("made"), 3.3)
    named = {name: items.Item(name, "", "", "", {"": [HISTOGRAM]}) for name in ("figure 1", "figure 2")}
    named["figure 1"] = named["figure 1"]._replace(
        panels={"": [Killing("plot", ["hist"], {"metric": "acc"})]}
    )
    run.paper = run.paper._replace(items=named)
    (run.folder / "records.jsonl").write_text(lines(*NINE))
    made = run.make(jobs=2)
    assert made["figure 2"].done and not made["figure 1"].done
    assert "was killed by signal 9 (SIGKILL), 2 times" in made["figure 1"].missing[""]


@pytest.mark.parametrize("name", NUMBERED)
def test_records_of_another_scale_are_not_drawn(name: str) -> None:
    run = figures_of_papers.PaperRun(name, "full", Path("made"), 6.5)
    for left in ("records", "records-nas-bench-201-robustness", "figure13"):
        (run.folder / f"{left}.jsonl").write_text(lines(*NINE))
    run.load()
    for item in run.paper.items.values():
        if item.panels and item.from_records:
            made = run.ready(item)
            assert made and "-full.jsonl does not exist. make reproduce-" in made.missing[""]


def test_an_item_is_listed_and_shown_by_its_name() -> None:
    listed = CliRunner().invoke(main, ["list"]).stdout
    assert len(re.findall(r"^prbench\.(?:figure|table)-", listed, re.MULTILINE)) == 18
    shown = CliRunner().invoke(main, ["show", "robustness-dataset.figure-17", "--scale", "full"]).stdout
    assert "rb-corr --join arch.class" in shown and "records.jsonl | rb-plot heatmap" in shown
    assert "  tested as: PGD20: TRADES > PGD" in item_listing.described(
        "prbench.claim-32", recipes.Setting("mini")
    )
    assert "  at this scale: five methods" in item_listing.described(
        "prbench.table-9", recipes.Setting("mini")
    )
    assert "Did you mean 'wci.figure-1'" in CliRunner().invoke(main, ["show", "wci.figure-2"]).stderr


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_recipe_is_shown_with_all_its_commands(name: str) -> None:
    pipe = recipes.pipe(name, recipes.Setting("full", data="my data"))
    found = [line.strip().removesuffix(" |") for line in pipes.lines(pipe)]
    assert [shlex.split(line) for line in found if line not in ("(", ")")] == [*pipes.commands(pipe)]
    assert found.count("(") == found.count(")")


@pytest.mark.slow
def test_trainings_on_several_data_sets_are_told_apart() -> None:
    history = {name: [1.0, 2.0, 3.0] for name in wci.SHOWN}
    records = [
        {"dataset": dataset, "train": {"config": {"regularize": how}, "history": history}}
        for dataset in ("cifar10", "cifar100")
        for how in ([], ["l2"])
    ]
    assert list(wci.trainings(records)) == [
        f"{how} on {one}" for one in ("cifar10", "cifar100") for how in ("none", "l2")
    ]


def test_what_searches_derived_is_in_table_7_alone() -> None:
    def record(text: str, acc: float, **more: Any) -> dict[str, Any]:
        arch = {"str": text, "none": 0, "class": 1}
        return {"arch": arch, "dataset": "digits", "metrics": {"acc": acc, "naswot": acc}, **more}

    records = [
        record("a", 0.5),
        record(robbench.DARTS_CELL, 0.25),
        record("b", 1.0, search={"algorithm": "nasi"}),
        record(robbench.DARTS_CELL, 0.75, search={"algorithm": "darts"}),
    ]
    assert robbench.for_figures(records) == records[:2]
    tables = robbench.tables(records, "mini")
    assert tables["table 7"].ours == {
        "NASWOT": dict.fromkeys(robbench.COLUMNS_7, None) | {"clean": 0.5},
        "NASI": {"clean": 1.0},
        "DARTS": {"clean": 0.75},
        "DARTS, cell of NAS-Bench-201": {"clean": 0.25},
    }
    assert tables["table 5"].ours["none=0"]["clean"] == 0.5


def test_networks_of_one_size_span_their_accuracies_under_attack() -> None:
    def record(params: int, kernel: int, *values: float) -> dict[str, Any]:
        metrics = dict(zip(("fgsm.255", "pgd40.16", "acc"), (*values, 1.0), strict=True))
        arch = {"name": str(values), "params": params, "live_kernel_params": kernel}
        return {"arch": arch, "dataset": "digits", "metrics": metrics}

    records = [record(7, 18, 0.2, 0.4), record(7, 9, 0.8, 0.8), record(8, 18, 0.5, 0.5)]
    assert jung.spreads(records) == {
        "18 kernel parameters": {"lowest": pytest.approx(0.3), "highest": 0.5, "networks": 2.0},
        "one number of parameters": {"lowest": pytest.approx(0.3), "highest": 0.8, "networks": 2.0},
    }
    told = {claim.words: claim.holds for claim in jung.claims(records, "mini", {})}
    assert told["networks of 18 kernel parameters differ by 0.19 in mean accuracy under attack"]
    assert jung.spreads(records[:1]) == {}
