"""--defend at the command line: numbers, keys, rb-verify, workers, stages of the user's own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rbtools.defences.stages import Stages, parse
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs.stored_results import inputs_fields
from tests.runner import Record, entry, one, records, run

SOME = "--n 40 --device cpu"
PGD = f"pgd --eps 16 --steps 3 {SOME}"

OWN = '''
from dataclasses import dataclass

from rbtools.defences.base import Defence
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Grey(Defence):
    """Every pixel nearer to grey."""

    steps: int = param(2, "Steps.", check="count")
    rate: float = param(0.1, "Share of the way.", check="fraction")

    def __call__(self, images):
        for _ in range(self.steps):
            images = images + self.rate * (0.5 - images)
        return images
'''


@pytest.fixture
def record(trained: dict[str, Record]) -> Record:
    return trained["erm"]


@pytest.fixture
def _own_stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Path("own_stage.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    yield
    sys.modules.pop("own_stage", None)


def test_one_result_that_is_named_or_saved_is_the_adaptive_one(record: Record) -> None:
    named = one(run("attack", f"{PGD} --defend quantize:2 --as rounded", [record]))
    assert named["metrics"].keys() - {"seconds_per_epoch"} == {"acc", "rounded"}
    saved = one(run("attack", f"{PGD} --defend jpeg:80,quantize:2 --save-adv saved", [record]))
    judged = one(run("verify", "--adv saved --device cpu", [saved]))
    assert judged["verify"]["entries"]["pgd3.16"]["verdict"] == "match"
    bare = one(run("attack", PGD, [record]))
    (differs,) = records(run("verify", "--adv saved --device cpu", [bare]))
    assert differs["verify"]["entries"]["pgd3.16"]["verdict"] == "differs"


def test_without_stages_the_key_is_as_before(record: Record) -> None:
    plain = inputs_fields(resolve_inputs(record, Run.of()))
    assert {*plain} == {"version", "checkpoint", "arch", "data", "split", "order"}
    stages = Stages(parse("jpeg:75"))
    defended = inputs_fields(resolve_inputs(record, Run.of(defend=stages)))
    assert defended == {**plain, **stages.key_fields()}


@pytest.mark.slow
def test_every_tool_measures_through_the_stages_and_rb_verify_again(record: Record) -> None:
    defend = "--n 20 --device cpu --defend jpeg:40,quantize:2"
    found = one(run("attack", f"fgsm --eps 8,16 {defend}", [record]))
    found = one(run("attack", f"curve --queries 20 --eps 8 {defend}", [found]))
    found = one(run("attack", f"check --eps 12 --steps 4 --queries 3 --samples 2 {defend}", [found]))
    found = one(run("corrupt", f"contrast --severity 2 {defend}", [found]))
    found = one(run("pr", f"--gamma 0.1 --rho 0.1 --samples 4 {defend}", [found]))
    found = one(run("ge", f"attack fgsm --eps 4 {defend}", [found]))
    entries = found["evals"][1:]
    assert {e.get("defend") for e in entries} == {"jpeg:40,quantize:2"}
    assert {"curve.8", "obfuscation.failed", "ge.fgsm.4", "fgsm.16"} <= found["metrics"].keys()
    verdicts = one(run("verify", "--device cpu", [found]))["verify"]["entries"]
    assert {verdicts[e["metric"]]["verdict"] for e in entries} == {"match"}, verdicts
    # The same claims of other stages differ: the number is measured through those that the entry names.
    for e in entries:
        e["defend"] = "quantize:1"
    false = records(run("verify", "--device cpu", [found]))[0]["verify"]["entries"]
    assert "differs" in {false[e["metric"]]["verdict"] for e in entries}


@pytest.mark.slow
def test_the_numbers_do_not_depend_on_the_batch(record: Record) -> None:
    shutil.copytree("rb-store", "other")
    defend = f"{PGD} --defend quantize:5,jpeg:50"
    whole, parts = (one(run("attack", defend + more, [record])) for more in ("", " --batch 7 --store other"))
    assert parts["metrics"] == whole["metrics"]


@pytest.mark.usefixtures("_own_stage")
@pytest.mark.parametrize("some", ["", " --backward identity", " --jobs 2"])
def test_a_stage_of_the_users_own(some: str, record: Record) -> None:
    stage = "python:own_stage:Grey"
    found = one(run("attack", f"{PGD} --defend {stage}:3{some} --allow-code", [record]))
    assert entry(found, "pgd3.16")["defend"] == f"{stage}:3"
    assert found["metrics"]["pgd3.16"] <= found["metrics"]["acc"]
    verified = one(run("verify", "--device cpu --allow-code", [found]))["verify"]["entries"]
    assert verified["pgd3.16"]["verdict"] == "match"
    refused = records(run("verify", "--device cpu", [found]))[0]["verify"]["entries"]["pgd3.16"]
    assert refused["verdict"] == "cannot be told" and "add --allow-code" in refused["reason"]
