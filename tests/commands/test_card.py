"""rb-card: looks, their intervals, the end, what cannot be measured, two models, pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

import rbtools
from rbtools.commands.attack import main as attack
from rbtools.commands.card import main
from rbtools.execution.executor import Unfinished
from rbtools.execution.run import Run
from rbtools.jobs import card_parts, model_card
from rbtools.jobs.card_pair import CardPair
from rbtools.probabilistic import intervals, looks
from rbtools.records import consistency
from rbtools.store import Store
from tests.runner import Record, entry, invoke, one, records

CHEAP = "clean: 1\ncorruptions: 2\n"


@pytest.fixture
def cheap(tmp_path: Path) -> str:
    path = tmp_path / "cheap.yaml"
    path.write_text(CHEAP)
    return str(path)


def run(arguments: list[str], *given: Record) -> Result:
    return invoke(main, [*arguments, "--device", "cpu"], *given)


def request(
    seconds: float | None = None, precision: float = 0.01, **weights: float
) -> model_card.CardRequest:
    return model_card.CardRequest(weights, 32 / 255, seconds, precision)


def the_run() -> Run:
    return Run.of(tool="rb-card", store=Store("rb-store"), device="cpu", n=40)


def test_every_part_is_measured_and_the_intervals_are_those_of_planned_looks(
    trained: dict[str, Record], cheap: str
) -> None:
    record = one(run(["--for", cheap, "--time", "none", "--n", "40"], trained["pgd"]))
    about = record["card"]
    assert (about["ended"], about["images"], list(about["parts"])) == (
        "precision",
        40,
        ["clean", "corruptions"],
    )
    acc, mean = entry(record, "acc"), entry(record, "corrupt.mean")
    assert acc["n"] == mean["n"] == 40
    assert acc["anytime"]["looks"] == len(looks.sizes(16, 40)) == 2
    of_source = looks.of_share(acc["value"], 40, 1.0, looks.confidence(2)).of_source
    assert acc["ci95"] == pytest.approx(of_source)
    assert acc["anytime"]["interval"] == [acc["value"]] * 2  # all images were seen
    assert mean["ci95"][0] < mean["value"] < mean["ci95"][1]
    assert "answers" not in acc
    assert [f for f in consistency.findings(record) if f.rule == "interval"] == []


def test_the_tools_find_what_the_card_did(trained: dict[str, Record], cheap: str) -> None:
    record = one(run(["--for", cheap, "--time", "none", "--n", "20"], trained["pgd"]))
    tool = rbtools.corrupt(trained["pgd"], "all", n=20, device="cpu", store="rb-store")
    found = run(["--for", cheap, "--time", "none", "--n", "20"], trained["pgd"])
    assert "0 computed, 1 found" in found.stderr
    for name, value in tool["metrics"].items():
        assert record["metrics"][name] == value
    again = invoke(attack, ["none", "--n", "20", "--device", "cpu"], trained["pgd"])
    assert "0 computed, 1 found" in again.stderr


def test_autoattack_begins_with_its_screen_and_ends_as_the_attack_on_all(trained: dict[str, Record]) -> None:
    planned = card_parts.parts(32 / 255)["attack"].looks(24)
    assert planned == [(16, 0), (16, None), (24, None)]
    made = model_card.Card(trained["pgd"], request(attack=1), the_run().changed(n=24))
    (state,) = made.states
    made.look(state)
    screen = made.entries["cw20.32"]
    assert state.headlines == ("cw20.32",) and state.half == screen["ci95"][1] / 2
    made.look(state)
    made.look(state)
    assert state.next is None and state.headlines == ("aa.32",)
    result = made.result("precision")
    alone = rbtools.attack(trained["pgd"], "aa", eps=32, n=24, device="cpu", store="rb-store")
    assert result["metrics"]["aa.32"] == alone["metrics"]["aa.32"]


def test_wide_data_sets_have_samples_that_grow() -> None:
    planned = card_parts.parts(8 / 255)["attack"].looks(1000)
    assert planned[:4] == [(16, 0), (16, None), (32, None), (64, None)]
    assert planned[4] == (256, 48) and planned[5] == (1000, 166) and planned[-1] == (1000, None)
    sizes = [look.attacked for look in planned[5:-1]]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("n", [16, 20, 65, 80, 100, 300, 1000])
def test_no_part_looks_at_nearly_all_images(n: int) -> None:
    for part in card_parts.parts(8 / 255).values():
        planned = part.looks(n)
        after_screen = [look for look in planned if look.attacked != 0]
        assert all(look.n == n or look.n <= 0.75 * n for look in after_screen), part.name
        assert planned[-1] == (n, None)


def test_the_next_look_is_the_one_with_the_largest_gain(trained: dict[str, Record]) -> None:
    made = model_card.Card(trained["pgd"], request(clean=1, corruptions=1), the_run())
    for state in made.states:
        made.look(state)
    clean, corrupt = made.states
    for state in made.states:
        state.half = 0.2
    clean.took, corrupt.took = [(16, 0.5)], [(16, 50.0)]
    assert made.choose() is clean
    clean.took, corrupt.took = [(16, 50.0)], [(16, 0.5)]
    assert made.choose() is corrupt
    clean.half_all = 0.001  # finished: known to the wanted precision
    corrupt.reason = "it cannot run"
    assert made.choose() is None


def test_a_look_whose_results_are_stored_tells_what_the_next_one_takes(trained: dict[str, Record]) -> None:
    first, again = (model_card.Card(trained["pgd"], request(corruptions=1), the_run()) for _ in range(2))
    for made in (first, again):
        made.look(made.states[0])
    (before,), (found,) = first.states, again.states
    assert again.run.store.computed == 0
    (seconds,) = {one["seconds"] for one in found.entries.values() if one["metric"] == "corrupt.mean"}
    assert before.took[0][0] == found.took[0][0] == 16 and found.took[0][1] >= seconds


def test_an_attack_is_expected_to_take_what_its_screen_leaves(trained: dict[str, Record]) -> None:
    made = model_card.Card(trained["pgd"], request(attack=1), the_run().changed(n=200))
    (state,) = made.states
    made.look(state)
    assert state.left == made.entries["cw20.32"]["value"]
    few, many = state.part.work(state.looks[1], 0.1), state.part.work(state.looks[1], 0.5)
    assert 4 < many / few < 5
    assert all(
        state.part.work(look, 0.1) == state.part.work(state.looks[-1], 0.1) for look in state.looks[-3:]
    )


def test_what_is_the_same_for_any_work_is_not_expected_twice() -> None:
    part = card_parts.parts(8 / 255)["clean"]
    state = model_card.PartState(part, 1.0, part.looks(1000), done=3)  # 16, 32 and 64 images
    state.took = [(16, 45.0), (16, 50.0), (32, 60.0)]
    assert state.expected_seconds() == pytest.approx(60 + (128 - 64 - 32) * 10 / 16)


def test_all_images_leave_the_noise_of_their_copies() -> None:
    of_source = (0.6, 0.8)
    low, high = looks.of_copies(0.7, of_source, 100, 100, 1.0, 0.99).of_all
    assert (low, high) == pytest.approx(intervals.clopper_pearson(7000, 10_000, 0.99))
    nearly = looks.of_copies(0.7, of_source, 100, 100, 0.99, 0.99).of_all
    assert nearly[0] < low and high < nearly[1] < 0.72


def test_autoattack_goes_on_from_its_screen_first_if_there_is_time(trained: dict[str, Record]) -> None:
    made = model_card.Card(trained["pgd"], request(seconds=1000, clean=1, attack=1), the_run())
    for state in made.states:
        made.look(state)
    clean, attacked = made.states
    clean.half, clean.half_all = 0.5, 0.5
    attacked.took[-1] = (attacked.took[-1][0], 0.01)
    assert made.choose() is attacked
    attacked.took[-1] = (attacked.took[-1][0], 900.0)
    assert made.choose() is clean


def test_a_look_that_takes_longer_than_what_is_left_is_not_begun(trained: dict[str, Record]) -> None:
    made = model_card.Card(trained["pgd"], request(seconds=1000, clean=1), the_run())
    (state,) = made.states
    made.look(state)
    state.took = [(16, 600.0)]  # 24 more images come next
    assert made.choose() is state
    state.took = [(16, 800.0)]
    assert made.choose() is None


def test_an_interruption_leaves_the_record_as_it_stands(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model_card.Card(trained["pgd"], request(clean=1, corruptions=1), the_run())
    look = made.look

    def interrupted(state: model_card.PartState) -> None:
        if state.part.name == "corruptions":
            raise KeyboardInterrupt
        look(state)

    monkeypatch.setattr(made, "look", interrupted)
    with pytest.raises(Unfinished) as stop:
        made.made()
    record = stop.value.result
    assert record["card"]["ended"] == "interrupted" and record["metrics"].keys() >= {"acc"}
    assert isinstance(stop.value.__cause__, KeyboardInterrupt)


def test_a_command_that_is_interrupted_writes_the_record(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch, cheap: str
) -> None:
    choose = model_card.Card.choose

    def chosen(self: model_card.Card) -> Any:
        if all(state.done for state in self.states):
            raise KeyboardInterrupt
        return choose(self)

    monkeypatch.setattr(model_card.Card, "choose", chosen)
    monkeypatch.setattr(model_card.Card, "tell", lambda self: None)
    result = run(["--for", cheap, "--n", "40"], trained["pgd"])
    assert result.exit_code == 130
    (record,) = records(result)
    assert record["card"]["ended"] == "interrupted" and record["card"]["parts"]["clean"]["n"] == 16
    assert "interrupted; what was finished is written" in result.stderr


def test_parts_that_cannot_run_are_named_and_the_others_are_done(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch, cheap: str
) -> None:
    from rbtools.errors import RbError
    from rbtools.evaluation.tasks import CorruptionTask

    def refuse(*_: object) -> Any:
        raise RbError("This network has no corruptions.")

    monkeypatch.setattr(CorruptionTask, "run", refuse)
    result = run(["--for", cheap, "--time", "none", "--n", "20"], trained["pgd"])
    record = one(result)
    assert record["card"]["parts"]["corruptions"]["reason"] == "This network has no corruptions."
    assert "15 corruptions: not measured: This network has no corruptions." in result.stderr
    assert entry(record, "acc")["n"] == 20


def test_a_module_in_memory_has_a_card() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)).eval()
    images = torch.rand(40, 1, 8, 8)
    right = network(images).argmax(1)
    labels = torch.where(torch.arange(40) < 30, right, (right + 1) % 4)
    weights = {"clean": 1, "norms": 1, "pr": 1, "gap": 1, "masking": 1}
    Path("own.yaml").write_text("".join(f"{name}: {weight}\n" for name, weight in weights.items()))
    record = rbtools.card(network, data=(images, labels), for_="own.yaml", n=16, time="none")
    reasons = [name for name, part in record["card"]["parts"].items() if "reason" in part]
    assert reasons == ["gap"]
    clean = entry(record, "acc")["value"]
    assert entry(record, "square.8")["value"] <= clean and entry(record, "apgd-ce.8")["value"] <= clean


def test_a_part_without_a_value_at_the_first_look_goes_on(trained: dict[str, Record]) -> None:
    made = model_card.Card(trained["pgd"], request(pr=1), the_run())
    (state,) = made.states
    none = [
        {"metric": name, "value": None, "n": 0, "reason": "nothing counts"} for name in state.part.headlines
    ]
    made.take(state, state.looks[0], {"evals": none})
    assert state.reason is None and state.half_all == 0.5 and not made.finished(state)
    while state.next is not None:
        made.take(state, state.next, {"evals": none})
    assert "has no value: nothing counts" in str(state.reason)


def test_a_model_that_is_not_there_is_an_error(cheap: str) -> None:
    gone = {"schema": 1, "arch": {"space": "zoo", "name": "resnet18"}, "checkpoint": "sha256:" + "0" * 64}
    result = run(["--for", cheap], {**gone, "dataset": "digits"})
    assert result.exit_code == 1 and "is not in the store" in records(result)[0]["error"]["message"]


def test_a_dry_run_says_what_is_missing(trained: dict[str, Record], cheap: str) -> None:
    words = ["--for", cheap, "--time", "none", "--n", "20"]
    planned = run([*words, "--dry-run"], trained["pgd"])
    assert planned.exit_code == 0 and "1 to compute" in planned.stderr
    made = one(run(words, trained["pgd"]))
    again = run([*words, "--dry-run"], trained["pgd"])
    assert "of 1 record 1 found in the store" in again.stderr
    assert one(again)["metrics"] == made["metrics"]


def test_a_dry_run_of_two_counts_those_that_lack_something(weights: Callable[[str], str], cheap: str) -> None:
    paths = [weights("erm"), weights("pgd")]
    words = ["--for", cheap, "--time", "none", "--n", "20"]
    assert run([*words, paths[0]]).exit_code == 0
    result = run([*words, *paths, "--dry-run"])
    assert "of 2 records 1 found in the store" in result.stderr and len(records(result)) == 2


def test_results_of_other_tools_stay(trained: dict[str, Record], cheap: str) -> None:
    measured = one(invoke(attack, ["none", "--n", "30", "--device", "cpu"], trained["pgd"]))
    result = run(["--for", cheap, "--time", "none", "--n", "20"], measured)
    record = one(result)
    assert entry(record, "acc")["n"] == 30 and entry(record, "corrupt.mean")["n"] == 20
    assert "acc of the record is not the card's, and stays" in result.stderr


def test_a_smaller_card_replaces_no_larger_one(trained: dict[str, Record], cheap: str) -> None:
    Path("clean.yaml").write_text("clean: 1\n")
    large = one(run(["--for", cheap, "--time", "none", "--n", "40"], trained["pgd"]))
    words = ["--for", "clean.yaml", "--time", "none", "--n", "20"]
    small = run(words, large)
    assert entry(one(small), "acc")["n"] == 40 and "acc of the record is of more images" in small.stderr
    assert one(small)["card"]["parts"].keys() == {"clean", "corruptions"}
    assert entry(one(run([*words, "--force"], large)), "acc")["n"] == 20


def test_a_report_of_two_models_is_an_error_after_their_cards(trained: dict[str, Record], cheap: str) -> None:
    result = run(
        ["--for", cheap, "--time", "none", "--n", "16", "-o", "two.html"], trained["pgd"], trained["erm"]
    )
    assert result.exit_code == 1 and len(records(result)) == 2
    assert "A report is of one model" in result.stderr and "two.html was not written" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time", "10x"], "--time is '10x'. Expected a length of time, such as 90s, 10m, 2h, or none."),
        (["--time", "0"], "--time is '0'"),
        (
            ["--for", "everything"],
            "--for is 'everything'. Expected all, l-inf, corruptions, pr, or FILE.yaml.",
        ),
        (["--eps", "4,8"], "A card is at one distance above 0"),
        (["-o", "card.pdf"], "Expected a file that ends in html"),
        (["-o", "no/such/card.md"], "no/such"),
        (["--precision", "0"], "is no"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    result = run(arguments)
    assert result.exit_code == 2
    if message != "is no":
        assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- clean\n", "expected parts and their weights"),
        ("cleen: 1\n", "there is no part 'cleen'. Did you mean 'clean'?"),
        ("clean: 0\n", "the weight of clean is 0. Expected a number above 0."),
        ("clean: yes\n", "the weight of clean is True"),
        ("clean: [\n", "--for"),
    ],
)
def test_wrong_files_of_weights(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    result = run(["--for", str(tmp_path / "own.yaml")])
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_pages(trained: dict[str, Record], cheap: str) -> None:
    for name, part in (("card.md", "| corruptions | corrupt.mean |"), ("card.tex", r"\toprule")):
        one(run(["--for", cheap, "--time", "none", "--n", "20", "-o", name], trained["pgd"]))
        assert part in Path(name).read_text()


@pytest.fixture
def weights(trained: dict[str, Record]) -> Callable[[str], str]:
    """The file of a trained network, by its method."""

    def file(method: str) -> str:
        source = Store("rb-store").object(trained[method]["checkpoint"])
        return shutil.copy(source, f"{method}.pt")

    return file


def test_two_checkpoints_are_compared_on_the_same_images(weights: Callable[[str], str], cheap: str) -> None:
    paths = [weights("erm"), weights("pgd")]
    result = run(["--for", cheap, "--time", "none", "--n", "60", *paths, "-o", "two.md"])
    first, second = records(result)
    row, other = (r["card"]["against"]["parts"]["corruptions"]["corrupt.mean"] for r in (first, second))
    means = [entry(record, "corrupt.mean")["value"] for record in (first, second)]
    assert row["difference"] == pytest.approx(means[0] - means[1]) == pytest.approx(-other["difference"])
    assert row["ci95"] == pytest.approx([-other["ci95"][1], -other["ci95"][0]])
    assert row["ci95"][0] < row["difference"] < row["ci95"][1]
    assert first["card"]["against"]["checkpoint"] == second["checkpoint"]
    assert "corruptions: " in result.stderr and Path("two.md").read_text().count("| clean | acc |") == 2
    assert run(["--for", cheap, *paths, "-o", "two.html"]).exit_code == 2
    assert run(["--for", cheap, *paths, paths[0]]).exit_code == 2


def test_a_dry_run_of_two_checkpoints_computes_nothing(weights: Callable[[str], str], cheap: str) -> None:
    paths = [weights("erm"), weights("pgd")]
    result = run(["--for", cheap, "--n", "20", "--dry-run", *paths])
    assert result.exit_code == 0 and "of 2 records" in result.stderr and "not measured" not in result.stderr
    assert ["card" in record for record in records(result)] == [False, False]
    assert run(["--for", cheap, "--shard", "1/2", *paths]).exit_code == 2


def test_differences_are_decided_where_they_are_large(trained: dict[str, Record]) -> None:
    pair = CardPair((trained["erm"], trained["pgd"]), request(gap=1, pr=1), the_run())
    (part, gap) = sorted(pair.parts, key=lambda one: one.first.part.name == "gap")
    assert "masking" not in [one.first.part.name for one in pair.parts]
    pair.look(part)
    pair.look(gap)
    assert all(name.startswith("pr-all.") for name in part.differences)
    name = next(iter(part.differences))
    values = [card_.entries[name]["value"] for card_ in pair.cards]
    assert part.differences[name]["difference"] == pytest.approx(values[0] - values[1])
    gaps = [card_.entries["ge.acc"]["value"] for card_ in pair.cards]
    assert gap.differences["ge.acc"]["difference"] == pytest.approx(gaps[0] - gaps[1])
    for row in part.differences.values():
        row |= {"better": "this"}
    assert not part.open and pair.choose() is gap
    assert any("is better: pr-all" in line for line in pair.answers(("a.pt", "b.pt")))


def test_the_events_of_a_card_reach_the_log(trained: dict[str, Record], cheap: str) -> None:
    one(run(["--for", cheap, "--time", "none", "--n", "20", "--log", "log.jsonl"], trained["pgd"]))
    events = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    cards = [event for event in events if event["event"] == "card"]
    assert [row["part"] for row in cards[-1]["parts"]] == ["clean accuracy", "15 corruptions"]
    assert cards[0]["running"] == "clean" and cards[-1]["running"] is None


def test_the_live_table_has_a_row_for_each_part() -> None:
    from rich.console import Console

    from rbtools.cli.card_table import table

    row = {"part": "AutoAttack", "metric": "aa.8", "value": 0.5, "ci95": [0.4, 0.6], "n": 64, "seconds": 3.0}
    wrong = {
        "part": "masking",
        "metric": "square.8",
        "value": None,
        "ci95": None,
        "n": 0,
        "seconds": 1.0,
    }
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table({"parts": [row, {**wrong, "reason": "the memory was too small"}, wrong]}))
    lines = capture.get().splitlines()
    assert "0.500  0.400 to 0.600" in lines[1] and "60%" in lines[1]
    assert "not measured" in lines[2] and "softmax" in lines[2]
    assert len(lines) == 4 and max(map(len, lines)) <= 80
