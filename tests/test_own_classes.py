"""Attacks, corruptions, measures and methods of the user's: python:MODULE:CLASS, and entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result

from rbtools.attacks import ATTACKS
from rbtools.models import build
from tests import runner
from tests.runner import one

ATTACK = '''
from dataclasses import dataclass
from rbtools.attacks.base import Attack
from rbtools.registry import param

@dataclass(frozen=True, kw_only=True)
class Darker(Attack):
    """Every pixel darker by eps."""
    eps: float = 8 / 255
    share: float = param(1.0, "Share of eps.", check="fraction")

    def __call__(self, model, images, labels, draws):
        return (images - self.share * self.eps).clamp(0, 1)

@dataclass(frozen=True, kw_only=True)
class Crash(Attack):
    """Crashes in itself, or in torch."""
    eps: float = 8 / 255
    deep: bool = param(False, "In torch.")

    def __call__(self, model, images, labels, draws):
        if self.deep:
            return images.reshape(3, 3, 3)
        return images + labels.nonsense

class Plain(Attack):
    pass

@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    eps: float = 8 / 255
'''


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Path("own.py").write_text(ATTACK)
    loose = ATTACK.split("@dataclass")[0] + "@dataclass\nclass Loose(Attack):\n    eps: float = 8 / 255\n"
    Path("loose.py").write_text(loose)
    torch.manual_seed(0)  # a network with correct images: others are not attacked
    network = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8))
    torch.save(network.state_dict(), "model.pt")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("own", None)


def run(words: str) -> Result:
    options = "--eps 8 --n 10 --checkpoint model.pt --arch simplecnn --normalize none"
    return runner.run("attack", f"{words} {options}")


def test_an_attack_of_yours_is_measured_like_others_and_its_fields_are_options() -> None:
    done = run("python:own:Darker --share 0.5 --allow-code")
    entry = one(done)["evals"][-1]
    assert (entry["metric"], entry["attack"], entry["share"], entry["n"]) == ("darker.8", "darker", 0.5, 10)

    assert "0 to 1" in run("python:own:Darker --share 2 --allow-code").stderr


def test_a_program_runs_only_with_allow_code() -> None:
    refused = run("python:own:Darker")
    assert refused.exit_code == 2 and "If you trust it, add --allow-code." in refused.stderr
    assert "own" not in sys.modules


def test_results_of_changed_code_are_measured_anew() -> None:
    assert "1 computed" in run("python:own:Darker --allow-code").stderr
    assert "0 computed, 1 found" in run("python:own:Darker --allow-code").stderr
    sys.modules.pop("own")
    Path("own.py").write_text(ATTACK.replace("images - ", "images + "))
    importlib.invalidate_caches()
    assert "1 computed" in run("python:own:Darker --allow-code").stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python:own", "does not name a class. Expected python:MODULE:CLASS"),
        ("python:gone:Darker", "There is no module gone"),
        ("python:own:Plain", "keyword-only dataclass that inherits from rbtools.attacks.base.Attack"),
        ("python:loose:Loose", "Write @dataclass(frozen=True, kw_only=True) above the class."),
        ("python:own:PGD", "has the name 'pgd', which is already in use"),
    ],
)
def test_what_is_no_attack_is_refused(name: str, message: str) -> None:
    refused = run(f"{name} --allow-code")
    assert refused.exit_code == 2 and message in refused.stderr


def test_a_module_that_stops_is_named_with_its_error() -> None:
    Path("own.py").write_text("1 / 0")
    assert "The module own stopped with ZeroDivisionError" in run("python:own:Darker --allow-code").stderr


def test_an_entry_point_has_a_short_name_and_needs_no_allow_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(ATTACKS), "plugins", {"darker": "own:Darker"})
    done = run("darker")
    assert one(done)["evals"][-1]["metric"] == "darker.8"


@pytest.mark.parametrize(
    ("words", "line", "kind"), [("", "nonsense", "AttributeError"), ("--deep", "(3, 3, 3)", "RuntimeError")]
)
def test_a_crash_in_an_attack_of_yours_is_said_to_be_there(words: str, line: str, kind: str) -> None:
    number = next(i for i, text in enumerate(ATTACK.splitlines(), 1) if line in text)
    result = run(f"python:own:Crash {words} --allow-code")
    assert result.exit_code == 1
    assert "bug in rbtools" not in result.stderr and "Traceback" not in result.stderr
    place = f"(in your code: {Path('own.py').absolute()}, line {number}, in __call__)"
    assert kind in result.stderr and place in result.stderr
