"""The handling of a job's exceptions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools.execution.engine import Job, JobFunction, run_job
from rbtools.execution.run import Run
from rbtools.models.normalize import Normalized
from rbtools.models.plain import SimpleCNN
from rbtools.models.programs import Program


class Theirs(nn.Module):
    """A network of somebody else."""

    def __init__(self, line: Any) -> None:
        super().__init__()
        self.line = line

    def forward(self, images: Tensor) -> Tensor:
        return self.line(self, images)


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
        (Theirs(refuses), "The network raises ValueError (FILE, line LINE): images of side 8. It receives"),
        (nn.Sequential(nn.Linear(4, 2)), "The network raises RuntimeError: mat1 and mat2"),
        (Normalized(Theirs(refuses), [0.5], [0.5]), "The network raises ValueError (FILE, line LINE): "),
        (Program(nn.Linear(4, 2)), "The network raises RuntimeError: "),
    ],
    ids=["its own error", "of torch alone", "normalised", "a program"],
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
