"""Defaults from a file: their priority, and invalid files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runner import parsed as in_force
from tests.runner import run


def config(text: str, path: str = "rbtools.yaml") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@pytest.mark.slow
def test_a_file_gives_defaults_and_the_command_line_wins() -> None:
    config("rb-train: {epochs: 3, lr: 0.5, nesterov: true, momentum: 0.7}\nrb-attack: {eps: [1, 2]}")
    values = in_force("train", "--lr", "0.2")
    assert (values["epochs"], values["lr"], values["nesterov"], values["momentum"]) == (3, 0.2, True, 0.7)
    assert in_force("attack", "pgd")["eps"] == "1,2"


def test_all_is_for_every_tool_and_the_tools_own_section_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    config("all: {store: kept, jobs: 2, dataset: digits}\nrb-pr: {store: own}\n")
    monkeypatch.delenv("RB_STORE")
    assert (in_force("pr")["store"], in_force("pr")["jobs"]) == ("own", "2")
    attack = in_force("attack", "pgd")
    assert (attack["store"], attack["dataset"]) == ("kept", "digits")
    assert run("rank", "--by acc --allow-empty").exit_code == 0  # it has no --jobs: that is no error
    monkeypatch.setenv("RB_STORE", "of-the-environment")
    assert in_force("pr")["store"] == "of-the-environment"


def test_files_lie_over_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", os.path.abspath("xdg"))
    config("rb-train: {epochs: 3, ema: 0.5}\n", "xdg/rbtools/config.yaml")
    config("rb-train: {epochs: 4}\n")
    assert (in_force("train")["epochs"], in_force("train")["ema"]) == (4, 0.5)
    config("rb-train: {ema: 0.9}\n", "other.yaml")
    values = in_force("train", "--config", "other.yaml")
    assert (values["ema"], values["epochs"]) == (0.9, 10)
    assert in_force("train", "--config=none")["epochs"] == 10
    monkeypatch.setenv("RB_CONFIG", "other.yaml")
    assert in_force("train")["ema"] == 0.9


def test_below_a_subcommand_stand_its_own_options() -> None:
    config("rb-attack: {eps: 4, steps: 9, pgd: {steps: 7, eps: 2}}\nrb-ge: {attack: {pgd: {steps: 5}}}\n")
    pgd, fgsm = in_force("attack", "pgd"), in_force("attack", "fgsm")
    assert (pgd["steps"], pgd["eps"], fgsm["eps"]) == (7, "2", "4")
    assert "steps" not in fgsm  # the option of another attack does no harm
    assert in_force("ge", "attack", "pgd")["steps"] == 5


def test_method_and_preset_may_stand_in_a_file() -> None:
    config("rb-train: {method: trades, lambda: 5, device: cpu, epochs: 3}\n")
    assert in_force("train")["lambda_"] == 5.0
    values = in_force("train", "--preset", "rice2020")  # on the command line it sets the whole recipe
    assert (values["method"], values["epochs"], values["device"]) == (None, 10, "cpu")


WRONG = {
    "rb-train: {epoch: 3}": "rbtools.yaml: rb-train has no option 'epoch'. Did you mean 'epochs'",
    "rb-tran: {epochs: 3}": "Unknown section in rbtools.yaml: 'rb-tran'. Did you mean 'rb-train'",
    "rb-train: {lr: many}": "Invalid value for '--lr': 'many' is not a number.",
    "rb-train: {epochs: true}": "epochs in the configuration is True. Expected a value.",
    "rb-train: {epochs: 3": "expected ',' or '}'",
    "rb-train: {allow-code: true}": "allow-code cannot be set in a file.",
    "rb-train: {store: ../elsewhere}": "store in the configuration is '../elsewhere', which is outside",
    "rb-train: {store: /elsewhere}": "Such a path is allowed only on the command line and in",
    "all: {data-dir: link/data}": "data-dir in the configuration is 'link/data', which is outside",
    "rb-train: {dataset: 'imagefolder:../photos'}": "in the configuration is 'imagefolder:../photos'",
    "rb-train: {class-map: /y}": "class-map in the configuration is '/y', which is outside",
    "rb-train: {tensorboard: ../x}": "tensorboard in the configuration is '../x', which is outside",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_in_a_file_is_said_in_one_line(text: str, tmp_path: Path) -> None:
    config(text)
    Path("link").symlink_to(tmp_path.parent)
    result = run("train", "--epochs 1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert WRONG[text] in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_a_file_of_indices_is_a_path_and_their_numbers_are_none() -> None:
    for text in ("/elsewhere", "../list.json:test", "~/list"):
        config(f"rb-attack: {{indices: '{text}'}}\n")
        refused = run("attack", "pgd")
        assert refused.exit_code == 2 and f"indices in the configuration is '{text}'" in refused.stderr
    for text in ("0-99,7", "lists/some.txt"):
        config(f"rb-attack: {{indices: '{text}'}}\n")
        assert in_force("attack", "pgd")["indices"] == text
