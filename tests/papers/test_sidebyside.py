"""Papers beside ours: tables, claims, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbtools.papers import sidebyside as side
from rbtools.papers.recipes import Setting


def test_a_cell_has_the_published_value_ours_and_the_difference() -> None:
    printed = {"pgd": {"Acc": 0.8383, "AA": 0.4634}, "erm": {"Acc": 0.9485}}
    ours = {"pgd": {"Acc": 0.85}, "new": {"Acc": 0.5}}
    text = side.PaperTable("Table 4", printed, ours, ["Acc", "AA"]).text()
    assert text.splitlines()[0] == "Table 4: printed / ours / difference"
    assert text.splitlines()[4:] == [
        "| pgd | 83.83 / 85.00 / +1.17 | 46.34 / - / - |",
        "| erm | 94.85 / - / - | - |",
        "| new | - / 50.00 / - | - |",
    ]


def test_a_site_is_a_side_of_its_own_between_the_printed_values_and_ours() -> None:
    printed: side.Rows = {"pgd": {"Acc": 0.8383, "AA": None}, "erm": {"Acc": 0.9485}}
    site = {"pgd": {"Acc": 0.8383, "AA": 0.4634}}
    table = side.PaperTable("Table 4", printed, {"pgd": {"Acc": 0.85, "AA": 0.5}}, ["Acc", "AA"], site=site)
    assert table.text().splitlines()[0] == "Table 4: printed / site / ours / difference"
    assert table.text().splitlines()[4:] == [
        "| pgd | 83.83 / 83.83 / 85.00 / +1.17 | - / 46.34 / 50.00 / +3.66 |",
        "| erm | 94.85 / - / - / - | - |",
    ]
    # The site's column stands where it says something else.
    heads = [heading.title for heading in table.beside().headings]
    assert heads == ["", "Acc (printed)", "Acc", "AA (site)", "AA"]
    alone = table._replace(printed={})
    assert list(alone.sides()) == ["site", "ours"]
    assert list(table._replace(site={}).sides()) == ["printed", "ours"]


def test_claims_that_fail_are_shown_and_counted() -> None:
    claims = [
        side.above("a above b", 0.5, 0.4),
        side.above("b above a", 0.4, 0.5),
        side.above("a above c", 0.4, None),
        side.at_most("a near zero", 0.01, 0.02),
        side.all_above("all above c", [("a", 0.5, 0.4), ("b", 0.3, 0.4), ("d", None, 0.1)]),
    ]
    text = side.told(claims)
    assert "- b above a: FAILS (0.4 and 0.5)" in text
    assert "- all above c: FAILS (not so for b (0.3 and 0.4))" in text
    assert "- a above c: cannot be told (not measured here)" in text
    assert text.endswith("2 of 4 claims hold here; 1 cannot be told from these records.")


def test_means_are_over_the_records_of_a_row() -> None:
    records = [{"train": {"method": m}, "metrics": {"acc": a}} for m, a in (("pgd", 0.4), ("pgd", 0.6))]
    found = side.means(records, lambda record: record["train"]["method"], {"Acc": "acc", "AA": "aa.8"})
    assert found == {"pgd": {"Acc": 0.5}}


def test_failed_records_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert side.read(['{"arch":{}}\n', "\n", '{"arch":{},"error":{}}\n']) == [{"arch": {}}]
    assert capsys.readouterr().err == "1 of 2 records failed and are left out.\n"


def test_missing_data_says_which_file_where_from_and_which_layout() -> None:
    Path("there").touch()
    there, weights = side.Missing("there", "a", "b"), side.Missing("weights", "its authors", "000000.pth")
    assert side.absent("x", [there]) == ""
    told = side.absent("x", [there, weights])
    assert told.endswith("  weights\n    from: its authors\n    layout: 000000.pth") and "there" not in told


def test_bounds_of_records_are_one_row_each_with_the_inputs_of_the_least() -> None:
    def record(value: float | None, n: int) -> dict[str, object]:
        bound = {"measure": "bound", "metric": "bound.b", "formula": "|a|/n", "value": value}
        return {
            "evals": [{"metric": "acc"}, {**bound, "inputs": {"n": n, "a": 0.5}, "vacuous": value != 0.25}]
        }

    records = [record(4.0, 1), record(0.25, 2), record(None, 3)]
    assert side.theory(records) == [("bound.b", "|a|/n", "0.25", "4", "n 2, a 0.5", "2 of 3")]
    assert side.theory_text(records).splitlines()[-1] == (
        "| bound.b | \\|a\\|/n | 0.25 | 4 | n 2, a 0.5 | 2 of 3 |"
    )
    assert side.theory_text([{"evals": []}]) == ""


def test_weights_of_timm_are_named_where_the_hub_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--timm--there.fb").mkdir()
    wanted = [side.timm_weights(name) for name in ("there.fb", "missing.fb")]
    said = side.absent("prbench", wanted)
    assert f"{tmp_path}/models--timm--missing.fb" in said and "there" not in said
    assert "hf download timm/missing.fb model.safetensors" in said and "PR_VITS=" in said


def test_what_further_pairs_and_transformers_need_is_named() -> None:
    pairs = "cifar10/vgg19 mnist/simplecnn svhn/resnet18"
    setting = Setting("full", data="nowhere", pairs=pairs, vits="", vit_s="nowhere/vit_s.pth")
    said = side.absent("prbench", side.needed(setting, (), False, True))
    assert "nowhere/MNIST/raw\n    from: its authors" in said and "nowhere/train_32x32.mat" in said
    assert "nowhere/vit_s.pth\n    from: timm's authors: https://" in said and "PR_VIT_S=" in said
    assert "cifar-10" not in said
    Path("data/mnist").mkdir(parents=True)
    Path("data/mnist/train-images-idx3-ubyte.gz").touch()
    Path("data/svhn").mkdir()
    Path("data/svhn/train_32x32.mat").touch()
    assert side.absent("prbench", [side.data_set(name, "data") for name in ("mnist", "svhn")]) == ""
