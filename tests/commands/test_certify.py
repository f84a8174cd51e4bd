"""rb-certify smooth at the command line: names, entries, the store, and what other tools make of them."""

from __future__ import annotations

from rbtools.records import consistency
from tests import runner
from tests.runner import Record, entry, one

FEW = "smooth --sigma 0.25 --samples 300 --select 20 --device cpu"


run = runner.command("certify")


def test_radii_have_names_and_entries_that_say_how_they_were_certified(known: dict[str, Record]) -> None:
    result = run(f"{FEW} --eps 0,0.1,0.5 --n 12", known["erm"])
    record = one(result)
    assert "300 draws with sigma 0.25 can only certify radii up to 0.4999" in result.stderr
    values = [record["metrics"][f"cert.smooth.0.25.{radius}"] for radius in ("0", "0.1", "0.5")]
    assert 1 >= values[0] >= values[1] > values[2] == 0
    about = entry(record, "cert.smooth.0.25.0.1")
    how = {"certificate": "smooth", "classifier": "smoothed", "norm": "l2", "eps": 0.1, "sigma": 0.25}
    how |= {"alpha": 0.001, "samples": 300, "select": 20, "n": 12, "precision": "fp32"}
    assert {name: about[name] for name in how} == how
    assert about["passes"]["forward"] == 320 and about["seed"] == 0 and "stopping" not in about
    assert 0 <= about["abstained"] <= 12 * (1 - values[0]) and 0 < about["mean_radius"] < 0.5
    assert consistency.findings(record) == [] and record["mine"] == {"kept": [1, 2]}


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
