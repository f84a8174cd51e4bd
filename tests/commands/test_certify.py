"""rb-certify at the command line: names, entries, resuming, and networks that it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner, Result

from rbtools import datasets
from rbtools.commands.certify import main
from rbtools.models import build
from tests.runner import Record, entry, invoke, one


def run(arguments: list[str], *given: Record) -> Result:
    return invoke(main, [*arguments, "--device", "cpu"], *given)


def test_every_distance_has_a_result_that_says_how_it_was_proved(known: dict[str, Record]) -> None:
    record = one(run(["crown", "--intermediate", "ibp", "--eps", "0,0.01/255", "--n", "12"], known["erm"]))
    metrics = record["metrics"]
    assert metrics["cert.linf.0"] == metrics["acc"] > 0
    assert metrics["cert.linf.0.01"] <= metrics["acc"]
    asked = entry(record, "cert.linf.0.01")
    assert (asked["certificate"], asked["intermediate"], asked["norm"]) == ("crown", "ibp", "linf")
    assert asked["eps"] == pytest.approx(0.01 / 255) and asked["n"] == 12
    assert asked["precision"] == "fp32" and "seed" not in asked
    assert asked["ci95"][0] <= asked["value"] <= asked["ci95"][1]
    assert record["mine"] == {"kept": [1, 2]}


def test_detail_has_the_bound_of_each_image(known: dict[str, Record]) -> None:
    arguments = ["ibp", "--eps", "0.002/255", "--n", "12"]
    plain = one(run(arguments, known["erm"]))
    again = run([*arguments, "--detail"], plain)
    asked, clean = (entry(one(again), metric) for metric in ("cert.linf.0.002", "acc"))
    margins = asked["detail"]["margins"]
    assert len(margins) == 12
    assert asked["value"] == sum(margin is not None and margin > 0 for margin in margins) / 12
    assert clean["value"] == sum(margin is not None for margin in margins) / 12
    assert "detail" not in entry(plain, "cert.linf.0.002")


def test_certified_images_are_taken_from_the_store_and_more_are_added(known: dict[str, Record]) -> None:
    record = known["erm"]
    run(["ibp", "--norm", "l2", "--eps", "0.001", "--n", "5"], record)
    more = run(["ibp", "--norm", "l2", "--eps", "0.001", "--n", "9"], record)
    again = run(["ibp", "--norm", "l2", "--eps", "0.001", "--n", "9"], record)
    assert "1 computed" in more.stderr and "0 computed, 1 found in the store" in again.stderr
    assert one(more) == one(again)
    assert entry(one(again), "cert.l2.0.001")["n"] == 9


def test_a_dry_run_does_not_take_the_time_of_one_method_for_another(known: dict[str, Record]) -> None:
    run(["ibp", "--eps", "1", "--n", "4"], known["erm"])
    like = run(["ibp", "--norm", "l2", "--eps", "1", "--n", "4", "--dry-run"], known["erm"]).stderr
    other = run(["crown", "--norm", "l2", "--eps", "1", "--n", "4", "--dry-run"], known["erm"]).stderr
    assert "time unknown" not in like and "time unknown" in other


def test_a_result_of_another_method_is_not_replaced_without_being_asked(known: dict[str, Record]) -> None:
    first = one(run(["ibp", "--eps", "1", "--n", "4"], known["erm"]))
    refused = run(["crown", "--intermediate", "ibp", "--eps", "1", "--n", "4"], first)
    assert refused.exit_code == 1 and "certificate" in refused.stderr
    replaced = one(run(["crown", "--intermediate", "ibp", "--eps", "1", "--n", "4", "--force"], first))
    assert entry(replaced, "cert.linf.1")["certificate"] == "crown"


def test_a_network_without_bounds_becomes_an_error_that_names_its_operation(
    trained: dict[str, Record],
) -> None:
    arch = {"space": "fcnn", "str": "tanh", "depth": 2}
    unbounded = {"schema": 1, "dataset": "digits", "arch": arch}
    network = json.loads(_train(unbounded))
    result = run(["ibp", "--eps", "1", "--n", "4"], network, trained["erm"])
    failed, passed = (json.loads(line) for line in result.stdout.splitlines())
    assert result.exit_code == 1 and "operation tanh" in failed["error"]["message"]
    assert "cert.linf.1" in passed["metrics"]


def _train(record: Record) -> str:
    from rbtools.commands.train import main as train

    arguments = ["--epochs", "0", "--device", "cpu"]
    result = CliRunner().invoke(train, arguments, input=json.dumps(record) + "\n")
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("words", [["crown"], ["crown", "--intermediate", "ibp"], ["ibp"]])
def test_a_network_that_is_right_on_no_image_has_certified_accuracy_0(words: list[str]) -> None:
    network = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8))
    weights = network.state_dict()
    last = [name for name in weights if name.endswith("bias")][-1]
    weights[last] = torch.zeros(10).index_fill(0, torch.tensor([9]), 1e6)
    torch.save(weights, "nine.pt")
    labels = datasets.load("digits", "test").labels
    others = ",".join(str(number) for number in range(20) if labels[number] != 9)
    arguments = [*words, "--eps", "1", "--n", others, "--checkpoint", "nine.pt", "--arch", "simplecnn"]
    record = one(run([*arguments, "--dataset", "digits", "--normalize", "none"]))
    assert record["metrics"] == {"acc": 0, "cert.linf.1": 0}
