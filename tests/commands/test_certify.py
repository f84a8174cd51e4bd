"""rb-certify smooth at the command line: names, entries, the store, and what other tools make of them."""

from __future__ import annotations

import pytest
from click.testing import Result

from rbtools.records import consistency
from tests import runner
from tests.runner import Record, entry, one

FEW = "smooth --sigma 0.25 --samples 300 --select 20 --device cpu"


def run(words: str, *given: Record, tool: str = "certify") -> Result:
    return runner.run(tool, words, given)


def test_radii_have_names_and_entries_that_say_how_they_were_certified(known: dict[str, Record]) -> None:
    result = run(f"{FEW} --eps 0,0.1,0.5 --n 12", known["erm"])
    record = one(result)
    assert "300 draws with sigma 0.25 certify radii up to 0.4999" in result.stderr
    values = [record["metrics"][f"cert.smooth.0.25.{radius}"] for radius in ("0", "0.1", "0.5")]
    assert 1 >= values[0] >= values[1] > values[2] == 0
    about = entry(record, "cert.smooth.0.25.0.1")
    how = {"certificate": "smooth", "classifier": "smoothed", "norm": "l2", "eps": 0.1, "sigma": 0.25}
    how |= {"alpha": 0.001, "samples": 300, "select": 20, "n": 12, "precision": "fp32"}
    assert {name: about[name] for name in how} == how
    assert about["passes"]["forward"] == 320 and about["seed"] == 0 and "stopping" not in about
    assert 0 <= about["abstained"] <= 12 * (1 - values[0]) and 0 < about["mean_radius"] < 0.5
    assert consistency.findings(record) == [] and record["mine"] == {"kept": [1, 2]}


def test_detail_has_the_certified_radius_of_each_image(known: dict[str, Record]) -> None:
    record = one(run(f"{FEW} --eps 0,0.1 --n 12 --detail", known["erm"]))
    for radius in (0.0, 0.1):
        about = entry(record, f"cert.smooth.0.25.{radius:g}")
        radii, correct = about["detail"]["radii"], about["detail"]["correct"]
        pairs = zip(radii, correct, strict=True)
        certified = [right and found is not None and found >= radius for found, right in pairs]
        assert about["value"] == sum(certified) / 12
        assert about["abstained"] == radii.count(None)


def test_an_interrupted_run_and_more_images_go_on_from_the_store(known: dict[str, Record]) -> None:
    words = f"{FEW} --adaptive --eps 0,0.1"
    few = one(run(f"{words} --n 5", known["erm"]))
    more = run(f"{words} --n 9", known["erm"])
    again = run(f"{words} --n 9 --force", known["erm"])
    found = run(f"{words} --n 9", known["erm"])
    assert "1 found in the store" in found.stderr
    name = "cert.smooth.0.25.0.1"
    assert one(more)["metrics"][name] == one(again)["metrics"][name] == one(found)["metrics"][name]
    spent = [entry(record, name)["draws_spent"] for record in (few, one(more), one(again))]
    assert spent[0] < spent[1] == spent[2] <= 9 * 300


def test_further_radii_and_another_alpha_take_no_draws(known: dict[str, Record]) -> None:
    first = run(f"{FEW} --eps 0.1 --n 6", known["erm"])
    second = run(f"{FEW} --eps 0,0.2 --alpha 0.01 --n 6", known["erm"])
    assert one(first)["metrics"]["acc"] == one(second)["metrics"]["acc"]
    seconds = [
        entry(one(result), name)["seconds"]
        for result, name in ((first, "cert.smooth.0.25.0.1"), (second, "cert.smooth.0.25.0.2"))
    ]
    assert seconds[0] == seconds[1]  # from the same draws


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--alpha 0.5", "alpha is 0.5. It must be between 0 and 0.5"),
        ("--sigma 0", "sigma of certifier 'smooth' is 0. It must be above 0"),
        ("--eps -1", "A distance is 0 or more"),
        ("--norm linf", "No such option"),
    ],
)
def test_wrong_settings_are_refused_before_the_work(words: str, says: str) -> None:
    result = run(f"smooth {words}", {"schema": 1, "arch": {"name": "a"}})
    assert result.exit_code == 2 and says in result.stderr.replace("\n", " ")


def test_its_entry_gives_the_command_and_is_verified_by_it(known: dict[str, Record]) -> None:
    record = one(run(f"{FEW} --adaptive --eps 0,0.1 --n 6", known["erm"]))
    verified = one(run("--device cpu", record, tool="verify"))["verify"]
    verdicts = {name: about["verdict"] for name, about in verified["entries"].items() if "cert" in name}
    assert verdicts == dict.fromkeys(("cert.smooth.0.25.0", "cert.smooth.0.25.0.1"), "match")
    assert verified["inconsistent"] == []


def test_a_ranking_shows_certified_beside_attacked_accuracy() -> None:
    records = [
        runner.model(name, metrics={"aa.8": high, "cert.smooth.0.25.0.5": low})
        for name, high, low in (("a", 0.5, 0.25), ("b", 0.6, 0.125))
    ]
    columns = "--by cert.smooth.0.25.0.5,aa.8 --format table"
    lines = run(columns, *records, tool="rank").stdout.splitlines()
    assert [line.split()[1] for line in lines if line.split()[:1] in (["1"], ["2"])] == ["a", "b"]
    assert all(value in "\n".join(lines) for value in ("0.500", "0.250", "0.600", "0.125"))
