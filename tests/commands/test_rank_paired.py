"""rb-rank --paired, --per-class: models compared image by image, from the answers in their entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from rbtools.proportions import wilson
from rbtools.records import answers
from rbtools.scoring import paired
from tests import runner
from tests.runner import Record, one, records

IMAGES = 400
HARD = np.random.default_rng(0).random(IMAGES)
LABELS = np.arange(IMAGES) % 4
BASE = HARD < 0.8


def entry(metric: str, right: np.ndarray, examples: str = "abc", **more: Any) -> Record:
    n = len(right)
    value = {"value": float(right.mean()), "n": n, "ci95": list(wilson(int(right.sum()), n))}
    return {"metric": metric, **value, "answers": answers.packed(right, examples), **more}


def model(name: str, right: np.ndarray, *others: Record, seed: int = 0, **more: Any) -> Record:
    """A record whose pgd20.8 counts these images."""
    train = {"method": "pgd", "seed": seed}
    record = runner.model(name, entry("pgd20.8", right, **more), *others, dataset="d", train=train)
    return answers.with_labels(record, "abc", answers.packed_labels(LABELS))


def bare(name: str) -> Record:
    share = {"metric": "pgd20.8", "value": 0.5, "n": IMAGES, "ci95": [0.45, 0.55]}
    return runner.model(name, share, dataset="d", train={"method": "pgd", "seed": 0})


run = runner.command("rank", "--by pgd20.8 --bootstrap 200")


def changed(gained: int, lost: int, seed: int = 1) -> np.ndarray:
    """The images of BASE, but for so many that count as well, and so many that do not."""
    right = BASE.copy()
    order = np.random.default_rng(seed).permutation(IMAGES)
    right[[at for at in order if not BASE[at]][:gained]] = True
    right[[at for at in order if BASE[at]][:lost]] = False
    return right


THREE = [model("base", BASE), model("better", changed(15, 1)), model("close", changed(3, 2))]


def of(result: Result) -> dict[str, Record]:
    assert result.exit_code == 0, result.stderr
    return {record["arch"]["name"]: record for record in records(result)}


@pytest.mark.parametrize("reference", ["base", "1", "'base pgd seed 0'"])
def test_differences_on_the_same_images(reference: str) -> None:
    found = of(run(f"--paired {reference} --paired-raw", *THREE))
    assert found["base"]["paired"] == {"reference": "base pgd seed 0"}
    better = found["better"]["paired"]["metrics"]["pgd20.8"]
    low, high = paired.interval(*np.array([[15], [1], [IMAGES]]))
    (p,) = paired.mcnemar(np.array([15]), np.array([1]))
    assert better == {
        "difference": pytest.approx(14 / IMAGES),
        "ci95": pytest.approx([*low, *high]),
        "p": pytest.approx(2 * p),  # Holm's, of two models
        "p_raw": pytest.approx(p),
        "images": IMAGES,
        "changed": [15, 1],
    }
    assert found["close"]["paired"]["metrics"]["pgd20.8"]["changed"] == [3, 2]


def test_models_that_the_images_tell_apart_are_in_different_bands() -> None:
    """Although their intervals overlap."""
    assert [found["band"] for found in of(run("--ci", *THREE)).values()] == [1, 1, 1]
    found = of(run("--paired base", *THREE))
    assert {name: one["band"] for name, one in found.items()} == {"better": 1, "close": 2, "base": 2}
    assert found["better"]["rank_ci95"] == [1, 1]
    assert "p_raw" not in found["better"]["paired"]["metrics"]["pgd20.8"]


def test_a_reference_in_a_file_is_not_ranked(tmp_path: Path) -> None:
    file = tmp_path / "base.jsonl"
    file.write_text(runner.lines(THREE[0]))
    found = of(run(f"--paired {file}", *THREE[1:]))
    assert list(found) == ["better", "close"]
    assert found["close"]["paired"]["metrics"]["pgd20.8"]["changed"] == [3, 2]


def test_means_over_seeds_are_compared_with_means_over_seeds() -> None:
    """A difference that seeds could make is not significant, however many images there are."""
    some = [model("a", changed(0, 8 * seed, seed), seed=seed) for seed in range(3)]
    other = [model("b", changed(12, 8 * seed, 9 - seed), seed=seed) for seed in range(3)]
    found = of(run("--aggregate seed --paired a", *some, *other))["b"]["paired"]["metrics"]["pgd20.8"]
    assert found["difference"] == pytest.approx(12 / IMAGES)
    assert found["ci95"][0] < 0 < found["ci95"][1] and found["p"] > 0.05
    assert "changed" not in found
    alone = of(run("--no-merge --paired 1", some[0], other[0]))["b"]["paired"]["metrics"]["pgd20.8"]
    assert alone["ci95"][0] > 0 and alone["p"] < 0.001


REFUSED = {
    "another number": (model("x", BASE[:100]), "n is 100 and 400."),
    "another split": (model("x", BASE, split="valid"), "split is valid and None."),
    "another list": (model("x", BASE, examples="def"), "their lists of examples differ."),
    "another data set": ({**model("x", BASE), "dataset": "e"}, "dataset is e and d."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_record_of_other_images_is_not_compared_and_loses_nothing(case: str) -> None:
    other, why = REFUSED[case]
    result = run("--paired base", *THREE, other)
    found = of(result)
    assert "paired" not in found["x"] and found["x"]["rank"] >= 1
    assert sum("metrics" in one.get("paired", {}) for one in found.values()) == 2
    assert f"pgd20.8 of x pgd seed 0 and of the reference are on different images: {why}" in result.stderr


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ("probacc.uniform.0.1.0.05", "each model is measured on the images"),
        ("pr.uniform.0.1", "is a share of noisy copies"),
        ("ge.pgd20.8", "is not a share of images."),
    ],
)
def test_a_metric_that_is_no_share_of_the_same_images_is_refused(metric: str, why: str) -> None:
    share = {"metric": metric, "value": 0.5, "n": 390, "denominator": "correct", "ci95": [0.4, 0.6]}
    if "probacc" in metric:
        share["answers"] = answers.packed(np.arange(IMAGES) < 195, "abc")
    result = runner.run("rank", f"--by {metric} --paired a", [model("a", BASE, share)])
    assert (result.exit_code, result.stdout) == (2, "") and why in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--paired 5", "there is no record 5."),
        ("--baseline last.jsonl", "--baseline"),
        ("--baseline last.jsonl --within dataset --assert 'acc >= 0'", "--baseline"),
        ("--paired base --aggregate-by train.method", "--paired compares models"),
        ("--paired bare", "pgd20.8 has no per-image results. Evaluations of up to 50,000"),
        ("--assert 'pgd20.8 >= reference'", "'reference' means the record of --paired. Add --paired"),
        ("--paired base --assert 'pgd20.8 >= 2 * reference'", "is not the reference plus or minus a number."),
        ("--by 'class.min(pgd20.8)' --ci", "class.min has no rank intervals."),
    ],
)
def test_wrong_use_is_one_line(words: str, message: str) -> None:
    result = runner.run("rank", words if "--by" in words else f"--by pgd20.8 {words}", [*THREE, bare("bare")])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr


def test_a_name_of_several_records_needs_a_position() -> None:
    twins = [model("a", BASE, seed=seed) for seed in range(2)]
    result = run("--paired a", *twins)
    assert "2 records are named a (a pgd seed 0, a pgd seed 1). Give the position" in result.stderr
    assert of(run("--paired 2", *twins))["a"]["paired"] is not None


OF_ANOTHER = {"bits": answers.packed(~BASE, "abc")["bits"]}


@pytest.mark.parametrize("damage", [{"bits": "AAAA"}, {"bits": "!"}, {"images": IMAGES - 1}, OF_ANOTHER])
def test_damaged_answers_are_named_once_and_nothing_else_is_lost(damage: dict[str, Any]) -> None:
    broken = model("broken", changed(3, 1), entry("acc", BASE))
    broken["evals"][0]["answers"] |= damage
    result = run("--paired base", model("base", BASE, entry("acc", BASE)), broken)
    found = of(result)["broken"]
    assert found["metrics"] == broken["metrics"] and found["evals"] == broken["evals"]
    assert list(found["paired"]["metrics"]) == ["acc"]
    assert result.stderr.count("warning: broken pgd seed 0: The answers of pgd20.8 are damaged") == 1


@pytest.mark.parametrize(
    ("condition", "failing"),
    [
        ("pgd20.8 >= reference", ["close"]),
        ("pgd20.8 >= reference - 0.02", []),
        ("pgd20.8 <= reference + 0.02", ["better"]),
        ("value: pgd20.8 > reference + .01", ["close"]),
        ("mean(pgd20.*) > reference - 1", ["better", "close"]),  # no answers of an expression
        ("value: mean(pgd20.*) > reference - 1", []),
    ],
)
def test_a_gate_judges_the_difference_to_the_reference(condition: str, failing: list[str]) -> None:
    option = "--assert-point" if condition.startswith("value: ") else "--assert"
    result = run(f"--paired base {option} '{condition.removeprefix('value: ')}'", *THREE)
    assert result.exit_code == (1 if failing else 0)
    errors = [line.split()[2] for line in result.stderr.splitlines() if line.startswith("rb-rank: error: ")]
    assert errors == failing


LISTED = {"image_list": {"digest": "abc", "images": IMAGES}, "steps": 20, "eot": 4}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image_list": {"digest": "abc", "images": 48}}, "n is 48, but 400 in the reference"),
        (
            {"image_list": {"digest": "def", "images": IMAGES}},
            "the images differ from those of the reference",
        ),
        ({"n": 200, "image_list": None, "answers": None}, "n is 200, but 400 in the reference"),
        (
            {"dataset": "e", "image_list": None, "answers": None},
            "dataset is e, but npz:old in the reference",
        ),
        ({"steps": 10}, "steps is 10, but 20 in the reference"),
        ({"eot": None}, "eot is not given, but 4 in the reference"),
        ({"dataset": "npz:moved"}, ""),  # the same images in another folder
        ({"precision": "bf16", "device": "cuda"}, ""),
    ],
)
@pytest.mark.parametrize("option", ["--assert", "--assert-point"])
def test_a_gate_refuses_other_images_and_other_settings(change: Record, why: str, option: str) -> None:
    old, new = ({**model(name, BASE, **LISTED), "dataset": "npz:old"} for name in ("old", "new"))
    new["evals"][0] = {key: at for key, at in (new["evals"][0] | change).items() if at is not None}
    Path("last.jsonl").write_text(runner.lines(old))
    words = f"--baseline last.jsonl --update-baseline {option} 'pgd20.8 >= reference - .1'"
    result = run(words, new)
    assert result.exit_code == (1 if why else 0), result.stderr
    assert (f"pgd20.8 was measured differently: {why}" in result.stderr) == bool(why), result.stderr
    assert ("is now new" in result.stderr) == (not why)


def test_junit_tells_two_files_of_a_model_apart() -> None:
    some = [
        {**model("net", BASE), "checkpoint_file": "/models/net.pt", "checkpoint": f"sha256:{hash_ * 16}"}
        for hash_ in ("01ab", "23cd")
    ]
    report = run("--format junit --assert-point 'pgd20.8 >= .1'", *some).stdout
    for hash_ in ("01ab01ab", "23cd23cd"):
        assert f'name="pgd20.8 &gt;= .1 (value)" classname="net pgd seed 0 (net.pt, {hash_})"' in report


def test_versions_with_other_results_are_reported() -> None:
    def made(name: str, release: str, **versions: int) -> Record:
        return model(name, BASE, environment=f"{release}, torch 2", versions={"order": 1, **versions})

    old, new, later = made("a", "rbtools 1"), made("b", "rbtools 2", order=2), made("c", "rbtools 3", order=2)
    mixed = run("", old, new).stderr
    assert "results differ: pgd20.8 (rbtools 1 with order 1, rbtools 2 with order 2)" in mixed
    assert "results differ" not in run("", new, later, bare("imported")).stderr
    del old["evals"][0]["versions"]
    assert "(an older version, rbtools 2)" in run("", old, new).stderr


def of_classes() -> Record:
    """A record of 75, 100, 50 and 100 % in its four classes of 100 images."""
    right = np.ones(IMAGES, bool)
    right[(LABELS == 0) & (np.arange(IMAGES) < 100)] = False
    right[(LABELS == 2) & (np.arange(IMAGES) < 200)] = False
    return model("a", right)


def test_accuracies_of_classes() -> None:
    result = run("--per-class pgd20.8", of_classes(), bare("bare"))
    found = of(result)
    classes = found["a"]["per_class"]["classes"]
    assert found["a"]["per_class"] | {"classes": 0} == {"metric": "pgd20.8", "worst": 2, "classes": 0}
    assert [classes[label]["value"] for label in "0123"] == [0.75, 1, 0.5, 1]
    assert classes["2"] == {"value": 0.5, "ci95": pytest.approx(wilson(50, 100)), "n": 100}
    assert "per_class" not in found["bare"] and "1 record without per-image results" in result.stderr


def test_the_worst_class_is_a_number_like_any_other() -> None:
    two = [of_classes(), model("b", BASE)]
    words = "--by 'class.min(pgd20.8)' --where 'class.min(pgd20.8) > .4'"
    assert [record["arch"]["name"] for record in records(runner.run("rank", words, two))] == ["b", "a"]
    added = one(runner.run("score", "--add 'worst=class.min(pgd20.8)'", [of_classes()]))
    assert added["metrics"]["worst"] == 0.5
    assert run("--assert-point 'class.min(pgd20.8) >= .5'", of_classes()).exit_code == 0


GATE = "--assert 'pgd20.8 >= reference - .02' --format jsonl"


@pytest.mark.parametrize("place", ["last.jsonl", "store", "store --baseline-label nightly"])
def test_the_baseline_is_the_last_accepted_record(place: str) -> None:
    gate = f"{GATE} --baseline {place} --update-baseline --store kept"
    asked = run(gate.replace(" --update-baseline", ""), model("base", BASE))
    assert asked.exit_code == 0 and "--update-baseline stores the best record" in asked.stderr
    first = run(gate, model("base", BASE))
    assert first.exit_code == 0 and "no baseline" in first.stderr, first.stderr
    assert "is now base pgd seed 0" in first.stderr and "paired" not in one(first)
    worse = run(gate, model("worse", changed(0, 60)))
    assert worse.exit_code == 1 and "does not hold" in worse.stderr and "is now" not in worse.stderr
    better = run(gate, model("better", changed(15, 1)), model("close", changed(3, 1)))
    assert better.exit_code == 0 and "is now better" in better.stderr, better.stderr
    assert [found["paired"]["reference"] for found in records(better)] == ["base pgd seed 0"] * 2
    # The better one is the reference of the next, and no other record replaces it unasked.
    assert "is now" not in run(gate.replace(" --update-baseline", ""), model("best", changed(60, 0))).stderr
    said = run(gate, model("base", BASE)).stderr
    assert "base pgd seed 0: pgd20.8 >= reference - .02 does not hold" in said
    if place.endswith("nightly"):  # another label has its own, another data set as well
        assert "no baseline" in run(gate.replace("nightly", "weekly"), THREE[0]).stderr
        assert "no baseline" in run(gate, {**THREE[0], "dataset": "other"}).stderr


def test_the_same_network_passes_any_gate() -> None:
    gate = "--baseline last.jsonl --assert 'pgd20.8 >= reference - .01' --format jsonl"
    net = {**model("net", BASE[:205]), "checkpoint": "sha256:0"}
    assert run(f"{gate} --update-baseline", net).exit_code == 0
    same = run(gate, net)
    assert same.exit_code == 0, same.stderr
    assert one(same)["paired"]["metrics"]["pgd20.8"]["ci95"] == [0, 0]
    other = run(gate, {**net, "checkpoint": "sha256:1"})
    assert other.exit_code == 1
    assert "0 [-0.0145071, 0.0145071], and the lower end of the interval decides." in other.stderr
    assert "If the models never disagree, about 300 images are enough." in other.stderr


def test_a_baseline_without_answers_serves_conditions_on_values() -> None:
    gate = "--baseline last.jsonl --update-baseline --assert-point 'pgd20.8 >= reference - .01'"
    assert run(gate, bare("first")).exit_code == run(gate, bare("second")).exit_code == 0
    paired = run(gate.replace("-point", ""), bare("third"))
    assert paired.exit_code == 2 and "--baseline: " in paired.stderr
