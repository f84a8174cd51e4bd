"""PRBench's tables: what is printed, what its site has, and ours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner

from rbtools.papers import items, packaged, pipes, prbench_scores, printed, recipes
from rbtools.papers import reproduce_prbench as prbench
from rbtools.papers.__main__ import main
from rbtools.papers.recipes import Setting
from rbtools.plots.box import Box
from rbtools.plots.weightings import PRESETS

TABLES = {4: 10, 5: 5, 8: 35, 9: 63, 11: 42, 12: 13}
AT = ("PGD", "TRADES", "MART", "ALP", "CLP", "KL-PGD")
BOARD, NOISES = printed.read("site-prbench-leaderboard"), printed.read("site-prbench-noises")


def table(number: int) -> dict[str, dict[str, float | None]]:
    return printed.read(f"prbench-table-{number}")


def record(dataset: str, name: str, method: str, *, side: int = 32, **more: Any) -> dict[str, Any]:
    space = "timm" if "patch" in name else "zoo"
    arch = {"space": space, "name": name, "side": side, "patch": 4}
    train = {"method": method, "config": more.pop("config", {})}
    return {"dataset": dataset, "arch": arch, "train": train, "metrics": {"acc": 0.5, **more}}


@pytest.mark.parametrize("number", TABLES)
def test_a_printed_table_has_the_rows_and_columns_of_the_paper(number: int) -> None:
    rows = table(number)
    assert len(rows) == TABLES[number]
    columns = ("Acc", *prbench.NOISE_COLUMNS) if number in (5, 9) else prbench.COLUMNS
    without = {"AA"} if number == 12 else set()
    for name, row in rows.items():
        assert [*row] == [column for column in columns if column not in without], name
        for column, value in row.items():
            assert value is None or 0 <= value <= (1200 if column == "s/epoch" else 100), (name, column)


@pytest.mark.parametrize("number", TABLES)
def test_less_of_the_images_stays_right_under_stronger_noise_and_attacks(number: int) -> None:
    """A digit that was misread would break most of these orders."""
    chains = [["Acc", "PGD10", "PGD20"], [*prbench.RADII], ["ProbAcc .1", "ProbAcc .05", "ProbAcc .01"]]
    chains += [[f"{noise} {radius}" for radius in prbench.RADII] for noise in prbench.NOISES]
    for name, row in table(number).items():
        for chain in chains:
            values = [value for column in chain if (value := row.get(column)) is not None]
            assert values == sorted(values, reverse=True), (name, chain)


def test_tables_that_print_the_same_cells_agree() -> None:
    four, five, nine, twelve = (table(number) for number in (4, 5, 9, 12))
    for name, row in five.items():
        assert nine[f"cifar10, resnet18, {name}"] == row
        for column in (*prbench.RADII, "GE PR .03") if name in four else ():
            assert row[f"uniform {column}"] == four[name][column]
    for name in ("ERM", "Corr_U"):
        assert twelve[f"cifar10, {name}"].items() <= four[name].items()


def test_what_the_text_says_of_the_printed_values_is_so() -> None:
    """Section 5: numbers and extremes that it states."""
    four, five = table(4), table(5)
    assert (four["ERM"]["Acc"], four["PGD"]["Acc"]) == (94.85, 83.83)
    of_at = [four[name] for name in AT]
    assert all(row["PR .03"] > 99 and row["ProbAcc .01"] > 97 for row in of_at)  # type: ignore[operator]
    kept = (*prbench.RADII, "ProbAcc .1", "ProbAcc .05", "ProbAcc .01")
    assert all(row[column] > 93 for row in of_at for column in kept)  # type: ignore[operator]
    assert max(AT, key=lambda name: four[name]["GE PGD20"] or 0) == "PGD"
    assert max(four, key=lambda name: four[name]["s/epoch"] or 0) == "AT-PR"
    assert {four[name]["AA"] for name in ("Corr_U", "CVaR")} == {0}
    for column in prbench.NOISE_COLUMNS[:12]:
        assert max(five, key=lambda name: five[name][column] or 0) == "PGD"
    assert [row["s/epoch"] for name, row in table(12).items() if "TRADES" in name] == [
        *(25, 16, 16, 17, 18, 18, 19, 19, 19)
    ]


def test_no_value_of_the_site_is_called_printed() -> None:
    five = prbench.tables([], "full")["table 5"]
    assert five.printed["Corr_L, uniform"]["PR .12"] == pytest.approx(0.844)
    assert five.site["Corr_L, uniform"]["PR .12"] == pytest.approx(0.7509)
    assert "84.40 / 75.09 / - / -" in five.text()
    cells = [(row, column) for row in five.printed for column in five.columns]
    differ = [one for one in cells if five.printed[one[0]][one[1]] != five.site[one[0]][one[1]]]
    assert (len(differ), len(cells)) == (37, 90)
    # The printed table 11 has two methods of MNIST the other way round, times too.
    eleven = prbench.tables([], "full")["table 11"]
    corruption, cvar = (f"mnist, simplecnn, {name}" for name in ("Corr_U", "CVaR"))
    assert (eleven.printed[corruption]["s/epoch"], eleven.printed[cvar]["s/epoch"]) == (6, 1)
    assert eleven.printed[corruption]["PGD10"] == eleven.site[cvar]["PGD10"] == pytest.approx(0.003)
    assert len(BOARD) == 15 * 9 and len(NOISES) == 16 * 5
    ten = prbench.tables([], "full")["table 10"]
    assert not ten.printed and len(ten.site) == 11 * 9


CONTRADICTED = [
    "AT-PR is slightly less robust than AT methods under all attacks",
    "PR-targeted methods have higher clean accuracy than AT methods (abstract)",
    "PR-targeted methods have lower GE of accuracy under PGD-20 than AT methods (abstract)",
    "GE PR .08: all AT methods are above all RT methods",
    "composite score, by the text: all AT methods are above all RT methods",
    "composite score with figure 6's other weights, by the text: all AT methods are above all RT methods",
    "filtering raises PR at all radii (table 12)",
]


def test_the_claims_hold_of_the_printed_tables_but_seven() -> None:
    rows = prbench.printed_rows()
    claims = prbench.claims_of(rows)
    assert len(claims) == 84 and None not in {claim.holds for claim in claims}
    assert [claim.words for claim in claims if not claim.holds] == CONTRADICTED
    swapped = {**rows, "AT-PR": rows["ERM"], "ERM": rows["AT-PR"]}
    failed = [claim.words for claim in prbench.claims_of(swapped) if claim.holds is False]
    assert "AT-PR has the highest PR .08" in failed and "s/epoch: AT-PR above CVaR" in failed
    said = prbench.report([record("cifar10", "resnet18", "erm")], "full")
    assert (
        "77 of 84 claims hold for the printed tables; 56 of them are decided beyond the sampling error."
        "\n- not:" in said
    )


def test_where_the_text_contradicts_its_table_our_claims_say_so() -> None:
    records = [record("cifar10", "resnet18", "erm")]
    said = {claim.words: claim.found for claim in prbench.claims(records, "full", {})}
    told = "; on the printed values it FAILS, not so for "
    assert [words for words, found in said.items() if told in found] == CONTRADICTED
    assert said[CONTRADICTED[3]].endswith(f"{told}ALP and Corr_U (0.0593 and 0.0624)")


def test_the_sampling_error_of_a_value_is_that_of_its_images() -> None:
    row = {
        "Acc": 0.8,
        "AA": 0.5,
        "PR .08": 0.75,
        "GE PGD20": 0.2,
        "PGD20": 0.5,
        "GE PR .08": 0.1,
        "s/epoch": 3.0,
    }
    found = prbench.with_intervals(row, (10_000, 100, 1_000), prbench.SHARES)
    # About 1.96 sqrt(p (1 - p) / n); a gap has the error of p on test and of p + GE on training images.
    expected = {"Acc": 0.00784, "AA": 0.098, "PR .08": 0.00948862, "PGD20": 0.0098}
    expected |= {
        "GE PGD20": 1.96 * (0.25 / 1e4 + 0.21 / 1e4) ** 0.5,
        "GE PR .08": 1.96 * (0.24 + 0.21) ** 0.5 / 1e3**0.5,
    }
    assert {name: (one.high - one.low) / 2 for name, one in found.items()} == pytest.approx(
        expected, rel=0.05
    )
    # Shares of 0 and of 1 have intervals, too: 1 - .025^(1/50) for 0 of 50 (Clopper and Pearson).
    ends = prbench.with_intervals({"AA": 0.0, "PGD20": 1.0}, (100, 50, 100), prbench.SHARES)
    assert (ends["AA"].low, ends["AA"].high) == (0, pytest.approx(0.0711, abs=1e-4))
    assert (ends["PGD20"].low, ends["PGD20"].high) == (pytest.approx(0.9638, abs=1e-4), 1)


def test_weighted_scores_are_those_of_rb_plot() -> None:
    """Figure 6 draws them with `rb-plot box --weighting prbench`."""
    columns = prbench.metrics("full")
    rows = printed.fractions("prbench-table-4")
    records = [
        {"metrics": {columns[column]: row[column] for column in prbench_scores.COMPOSITE}}
        for row in rows.values()
    ]
    drawn = Box(preset="prbench-code").scored(records)
    scores = prbench.composite(rows)
    for (title, weights), column in zip(PRESETS["prbench"].items(), prbench_scores.WEIGHTINGS, strict=True):
        assert drawn.weighed(weights) == pytest.approx([one[column] for one in scores.values()]), title
    assert scores["KL-PGD"]["score time .4"] == max(one["score time .4"] or 0 for one in scores.values())


def test_the_text_has_a_recipe_of_its_own() -> None:
    """Appendix B: radius 8/255; table 3: at least 1 - rho. The code has .03, above, a margin of 2 for CW."""
    full, text = (
        [" ".join(one) for one in pipes.commands(recipes.pipe("prbench", Setting(scale)))]
        for scale in packaged.FULL
    )
    assert len(full) == len(text) and any("--preset prbench-code" in one for one in full)
    assert not any(
        word in one for one in text for word in ("prbench-code", "--kappa", "above", "--truncate", "0.03")
    )
    assert "rb-pr --gamma 8/255,0.08,0.1,0.12 --rho 0.1,0.05,0.01" in text
    metrics = {"acc": 0.5, "pr.uniform.0.0313725": 0.75, "probacc.uniform.0.0313725.0.1": 0.25}
    made = prbench.tables([record("cifar10", "resnet18", "erm", **metrics)], "text")["table 4"]
    assert made.ours["ERM"] == {"Acc": 0.5, "PR .03": 0.75, "uniform PR .03": 0.75, "ProbAcc .1": 0.25}
    (panel,) = items.paper("prbench", "text").items["figure 2"].panels["e"]
    assert panel.options["metric"] == "probacc.uniform.0.0313725.*"
    refused = CliRunner().invoke(main, ["reproduce-wci", "--scale", "text"])
    assert refused.exit_code == 1 and "wci has no scale text" in refused.stderr


def test_records_stand_in_the_tables_of_their_pair() -> None:
    mnist = {"acc": 0.99, "pgd20.76.5": 0.5, "aa.76.5": 0.4, "pr.uniform.0.35": 0.8}
    filtered = {"filter": "chen-lee", "warm_steps": 2}
    records = [
        record("cifar10", "resnet18", "erm", **{"aa.8": 0.25, "pr.laplace.0.12": 0.125}),
        record("cifar100", "resnet18", "trades", config=filtered),
        record("cifar100", "vgg19", "corruption", config={"noise": "laplace"}),
        record("mnist", "simplecnn", "erm", **mnist, **{"probacc.uniform.0.3.0.1": 0.7}),
        record("cinic10", "resnet18", "corruption", config={"noise": "gaussian"}),
        record("cifar10", "vit_large_patch16_224.augreg_in21k_ft_in1k", "trades"),
        record("cifar10", "deit_tiny_patch16_224.fb_in1k", "corruption", config={"noise": "gaussian"}),
        record("cifar10", "deit_tiny_patch16_224.fb_in1k", "pgd", side=224),
    ]
    made = {name: one.ours for name, one in prbench.tables(records, "full").items()}
    assert made["table 4"] == {"ERM": {"Acc": 0.5, "AA": 0.25, "laplace PR .12": 0.125}}
    assert made["table 5"]["ERM, laplace"]["PR .12"] == 0.125
    assert made["table 8"] == {"ViT-L, TRADES": {"Acc": 0.5}}
    assert {*made["table 9"]} == {
        "cifar10, resnet18, ERM",
        "cifar100, vgg19, Corr_L",
        "mnist, simplecnn, ERM",
        "cifar10, DeiT-T, Corr_G",
        "cifar10, deit_tiny_patch16_224.fb_in1k, PGD",
    }
    assert {*made["table 10"]} == {"cifar10, resnet18, ERM", "cifar10, deit_tiny_patch16_224.fb_in1k, PGD"}
    assert {*made["table 11"]} == {"mnist, simplecnn, ERM", "cinic10, resnet18, Corr_G"}
    shown = {"Acc": 0.99, "PGD20": 0.5, "AA": 0.4, "PR .08": 0.8, "ProbAcc .1": 0.7}
    assert made["table 11"]["mnist, simplecnn, ERM"].items() >= shown.items()
    assert {*made["table 12"]} == {"ERM", "cifar100, TRADES m=1"}
    # Only what the paper has not has a row of its own.
    new = {"cifar10, deit_tiny_patch16_224.fb_in1k, PGD", "cifar100, TRADES m=1"}
    for name, one in prbench.tables(records, "full").items():
        assert {*one.rows()} - {*one.printed} - {*one.site} <= new, name


def test_the_recipe_trains_what_the_tables_have() -> None:
    assert "vit_large" in recipes.word("prbench", "vits", Setting("full"))[0]
    every = [" ".join(command) for command in pipes.commands(recipes.pipe("prbench", Setting("full")))]
    text = "\n".join(every)
    for number, pattern in {8: r"--method (\S+) --init timm --preset", 4: r"--method (erm\S*)"}.items():
        methods = next(iter(re.findall(pattern, text))).split(",")
        named = {prbench.PAPER[method] for method in methods}
        assert named == {name.split(", ")[-1] for name in table(number)}
    # Pair by pair, for tables 9 and 11.
    noised = re.findall(r"rb-arch (.*)\nrb-train --method corruption .* --noise (\w+)", text)
    for pair in ("--arch vgg19 --dataset svhn", "--arch resnet18:stem=cifar:pool=4x4 --dataset imagenet50"):
        assert {(pair, "gaussian"), (pair, "laplace")} <= {*noised}
    timm = [pair for pair, _ in noised if "timm" in pair]
    assert timm and not any("vit_large" in one for one in timm)
    mnist = re.search(r"--dataset mnist\nrb-train \S+ \S+ --method (\S+)", text)
    assert mnist and "at-pr" not in mnist[1] and "rb-attack aa --eps 76.5" in every
    filtered = [one for one in every if "--filter chen-lee --warm-steps" in one]
    assert len(filtered) == 36 and sum("--filter-rule example" in one for one in filtered) == 18
    assert "rb-arch --arch resnet18 --dataset cifar100\nrb-train --method trades" in text


def test_figures_show_one_record_of_each_method_and_noise() -> None:
    trained = [("erm", {}), ("corruption", {"noise": "gaussian"}), ("corruption", {"noise": "uniform"})]
    trained += [("trades", {"filter": "chen-lee", "warm_steps": 2})]
    records = [{"train": {"method": method, "config": config}} for method, config in trained]
    assert [prbench.row(one) for one in records] == ["ERM", "Corr_G", "Corr_U", "TRADES m=1"]
    shown = [one["train"]["method"] for one in prbench.for_figures(records)]
    assert shown == ["erm", "corruption gaussian", "corruption"]


def test_figure_2a_has_one_name_for_what_each_data_set_is_attacked_at() -> None:
    records = [
        record("cifar10", "resnet18", "erm", **{"aa.8": 0.25, "pr.uniform.0.08": 0.5}),
        record("mnist", "simplecnn", "erm", **{"aa.76.5": 0.75, "pr.uniform.0.35": 0.125}),
    ]
    shown = [(one["metrics"]["aa"], one["metrics"]["pr.08"]) for one in prbench.for_figures(records)]
    assert shown == [(0.25, 0.5), (0.75, 0.125)]


def test_filtering_is_judged_by_passes_and_equal_noise_is_not_below() -> None:
    rows = {
        "TRADES": {"s/epoch": 9.0, "passes": 12.0},
        "TRADES m=1 by image": {"s/epoch": 10.0, "passes": 8.4},
    }
    assert [claim.words for claim in prbench.claims_of(rows) if claim.holds] == [
        "filtering makes TRADES faster (table 12)"
    ]
    equal = {"ERM": {f"{noise} PR .03": 1.0 for noise in prbench.NOISES}}
    assert {claim.holds for claim in prbench.claims_of(equal)} == {None}
