"""The handling of a job's exceptions; and a third engine, as one class and a line of `ENGINES`."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.cli.declare import Option
from rbtools.execution import ENGINES
from rbtools.execution.engine import Call, Engine, Job, JobFunction, JobReport, run_job
from rbtools.execution.run import Run
from rbtools.models.normalize import Normalized
from rbtools.models.plain import SimpleCNN
from rbtools.models.programs import Program
from tests.runner import records, run


class Theirs(nn.Module):
    """A network of somebody else."""

    def __init__(self, line: Any) -> None:
        super().__init__()
        self.line, self.body = line, nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.line(self, images)
        return logits


def refuses(network: nn.Module, images: Tensor) -> Tensor:
    raise ValueError("images of side 8")


class Apply(JobFunction):
    """Puts images through a network."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        return {"logits": self.network(torch.zeros(2, 3, 8, 8))}


def problem_of(network: nn.Module) -> tuple[str, str | None]:
    report = run_job(Job(Apply(network), {}), Run.of(tool="test"))
    assert report.result is None and report.problem is not None
    return report.problem, report.trace


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Theirs(refuses), "The network raises ValueError (FILE, line LINE): images of side 8. It is given"),
        (Theirs(lambda self, images: self.body(images)), "The network raises RuntimeError (FILE, line "),
        (nn.Sequential(nn.Linear(4, 2)), "The network raises RuntimeError: mat1 and mat2"),
        (
            Normalized(Theirs(refuses), [0.5], [0.5]),
            "The network raises ValueError (FILE, line LINE): images",
        ),
        (Program(nn.Linear(4, 2)), "The network raises RuntimeError: "),
    ],
    ids=["its own error", "torch's in it", "of torch alone", "normalised", "a program"],
)
def test_a_network_that_refuses_its_input_is_told_with_its_place(network: nn.Module, words: str) -> None:
    problem, trace = problem_of(network)
    line = refuses.__code__.co_firstlineno + 1
    assert problem.startswith(words.replace("FILE", __file__).replace("LINE", str(line)))
    assert "bug" not in problem and trace is None


@pytest.mark.parametrize(
    "network",
    [SimpleCNN(classes=2, shape=(1, 8, 8)), Normalized(nn.Identity(), [0.5] * 5, [0.5] * 5)],
    ids=["of the zoo", "the normalisation"],
)
def test_an_error_in_a_network_of_ours_stays_a_bug(network: nn.Module) -> None:
    problem, trace = problem_of(network)
    assert "a bug in rbtools" in problem and trace is not None


class Threads(Engine):
    """`run.placement.jobs` threads; each call has a copy of the run, as in another process."""

    def __enter__(self) -> Threads:
        self._threads = ThreadPoolExecutor(self.capacity)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def submit(self, call: Call) -> Future[JobReport]:
        return self._threads.submit(run_job, call, pickle.loads(pickle.dumps(self.run)))


def test_a_third_engine_gives_the_records_that_one_process_gives(
    known: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES._entries, "threads", f"{__name__}:Threads")
    monkeypatch.setattr(Option, "problem", lambda self, text: None)  # its choices are made from ENGINES
    outputs = []
    for engine in ("--jobs 1", "--engine threads --jobs 2"):
        done = run("attack", f"fgsm --n 20 --force {engine}", [*known.values()])
        assert done.exit_code == 0, done.output
        outputs.append(without_seconds(records(done)))
    assert len(outputs[0]) == 2 and outputs[1] == outputs[0]


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key != "seconds"}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value
