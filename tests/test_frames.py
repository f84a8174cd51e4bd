"""How deep the way from a question to a gradient is: the frames of the package between the user and autograd.

A frame is a call of a function of the package. Comprehensions are left out: Python 3.12 has none.
A number here may only become smaller: a layer that only forwards is removed instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rbtools
from rbtools.attacks.pgd import PGD
from rbtools.training.trades import TRADES
from tests import runner

PACKAGE = str(Path(rbtools.__file__).parent)
# what is called, and the largest number of frames from there to the gradient
MOST = {"rb-attack": 18, "rb-ge": 22, "rb-verify": 22, "rb-train": 22, "rbtools.evaluate": 9}
MOST["a training step"] = 6


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The frames of the package at each gradient: of the images, or of the weights."""
    found: list[list[str]] = []

    def noted(call: Any) -> Any:
        def gradient(*args: Any, **more: Any) -> Any:
            frame, own = sys._getframe(1), list[str]()
            while frame is not None:
                code = frame.f_code
                if code.co_filename.startswith(PACKAGE) and code.co_name not in ("<listcomp>", "<dictcomp>"):
                    own.append(f"{Path(code.co_filename).name}:{code.co_name}")
                frame = frame.f_back  # type: ignore[assignment]
            found.append(own[::-1])
            return call(*args, **more)

        return gradient

    monkeypatch.setattr(torch.autograd, "grad", noted(torch.autograd.grad))
    monkeypatch.setattr(torch.Tensor, "backward", noted(torch.Tensor.backward))
    return found


def deepest(frames: list[list[str]], of: str) -> None:
    assert frames, "no gradient was computed"
    most = max(frames, key=len)
    assert len(most) <= MOST[of], f"{len(most)} frames, at most {MOST[of]}:\n" + "\n".join(most)


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()


def test_from_evaluate_to_the_gradient(frames: list[list[str]]) -> None:
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    rbtools.evaluate(network(), (images, labels), PGD(eps=8 / 255))
    deepest(frames, "rbtools.evaluate")


def test_of_a_training_step(frames: list[list[str]]) -> None:
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    rbtools.fit(network(), (images, labels), TRADES(), epochs=1, batch_size=4, val=0)
    step = "step.py:train_step"
    deepest([each[each.index(step) :] for each in frames if step in each], "a training step")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("rb-attack", "pgd --eps 8 --n 20"),
        ("rb-ge", "attack pgd --eps 8 --n 20"),
        ("rb-train", "--method pgd --epochs 1 --val 0"),
    ],
)
def test_from_a_command_to_the_gradient(
    tool: str, words: str, trained: dict[str, dict[str, Any]], frames: list[list[str]]
) -> None:
    record = trained["erm"] if tool != "rb-train" else {"schema": 1, "arch": trained["erm"]["arch"]}
    assert runner.run(tool.removeprefix("rb-"), words, [record]).exit_code == 0
    deepest(frames, tool)


def test_from_a_verification_to_the_gradient(
    trained: dict[str, dict[str, Any]], frames: list[list[str]]
) -> None:
    attacked = runner.run("attack", "pgd --eps 8 --n 20", [trained["erm"]]).stdout
    frames.clear()
    assert runner.run("verify", "", attacked).exit_code == 0
    deepest(frames, "rb-verify")
