"""Defaults from a file: what counts, what is refused and how it is said, and what is in force."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from rbtools.cli import tools

FILTERS = {"rb-train": [], "rb-attack": ["pgd"], "rb-corrupt": ["fog"], "rb-pr": [], "rb-ge": ["acc"]}
OTHERS = {"rb-score": [], "rb-rank": [], "rb-arch": [], "rb-store": ["ls"]}


def run(tool: str, *arguments: str, text: str = "") -> Result:
    command: click.Command = tools.tool(tool.removeprefix("rb-")).command
    return CliRunner().invoke(command, arguments, input=text, prog_name=tool)


def in_force(tool: str, *arguments: str) -> dict[str, tuple[str, str]]:
    """Option -> its value as shown, and where it comes from."""
    result = run(tool, *arguments, "--print-config")
    assert result.exit_code == 0 and result.stderr == "", result.stderr
    found = {}
    for line in result.stdout.splitlines()[1:]:
        said, _, origin = line.partition("  # ")
        name, _, value = said.strip().removeprefix("# ").partition(": ")
        found[name] = (value.strip().strip('"'), origin.strip())
    return found


def config(text: str, path: str = "rbtools.yaml") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


# --- which value counts ---------------------------------------------------------------------------


def test_a_file_gives_defaults_and_the_command_line_wins() -> None:
    config("rb-train: {epochs: 3, lr: 0.5, nesterov: true}\n")
    found = in_force("rb-train", "--lr", "0.2")
    assert found["epochs"] == ("3", "rbtools.yaml")
    assert found["nesterov"] == ("true", "rbtools.yaml")
    assert found["lr"] == ("0.2", "command line")
    assert found["momentum"] == ("0.9", "default")


def test_the_tools_work_with_it() -> None:
    config("rb-arch: {sample: 2, seed: 3}\n")
    assert len(run("rb-arch").stdout.splitlines()) == 2
    assert len(run("rb-arch", "--sample", "4").stdout.splitlines()) == 4


def test_all_is_for_every_tool_and_the_tools_own_section_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    config("all: {store: kept, jobs: 2, dataset: digits}\nrb-pr: {store: own}\n")
    monkeypatch.delenv("RB_STORE")
    assert in_force("rb-pr")["store"] == ("own", "rbtools.yaml")
    assert in_force("rb-attack", "pgd")["store"] == ("kept", "rbtools.yaml")
    assert in_force("rb-pr")["jobs"] == ("2", "rbtools.yaml")
    assert in_force("rb-attack", "pgd")["dataset"] == ("digits", "rbtools.yaml")
    assert run("rb-rank", "--by", "acc", "--allow-empty").exit_code == 0  # it has no --jobs: that is no error


def test_the_environment_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    config("rb-pr: {store: of-the-file}\n")
    monkeypatch.setenv("RB_STORE", "of-the-environment")
    assert in_force("rb-pr")["store"] == ("of-the-environment", "environment, RB_STORE")
    monkeypatch.delenv("RB_STORE")
    assert in_force("rb-pr")["store"] == ("of-the-file", "rbtools.yaml")


def test_files_lie_over_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", os.path.abspath("xdg"))
    config("rb-train: {epochs: 3, lr: 0.5}\n", "xdg/rbtools/config.yaml")
    config("rb-train: {epochs: 4}\n")
    found = in_force("rb-train")
    assert found["epochs"] == ("4", "rbtools.yaml")
    assert found["lr"][0] == "0.5" and found["lr"][1].endswith("xdg/rbtools/config.yaml")
    config("rb-train: {momentum: 0.5}\n", "other.yaml")
    found = in_force("rb-train", "--config", "other.yaml")
    assert (found["momentum"], found["epochs"]) == (("0.5", "other.yaml"), ("10", "default"))
    assert in_force("rb-train", "--config=none")["epochs"] == ("10", "default")
    monkeypatch.setenv("RB_CONFIG", "other.yaml")
    assert in_force("rb-train")["momentum"] == ("0.5", "other.yaml")


def test_below_a_subcommand_stand_its_own_options() -> None:
    config("rb-attack: {eps: 4, pgd: {steps: 7, eps: 2}}\nrb-ge: {attack: {pgd: {steps: 5}}}\n")
    pgd, fgsm = in_force("rb-attack", "pgd"), in_force("rb-attack", "fgsm")
    assert (pgd["steps"][0], pgd["eps"][0], fgsm["eps"][0]) == ("7", "2", "4")
    assert in_force("rb-ge", "attack", "pgd")["steps"] == ("5", "rbtools.yaml")


def test_an_option_of_another_attack_does_no_harm() -> None:
    config("rb-attack: {steps: 7}\n")
    assert in_force("rb-attack", "pgd")["steps"][0] == "7"
    assert "steps" not in in_force("rb-attack", "fgsm")


def test_method_and_preset_may_stand_in_a_file() -> None:
    config("rb-train: {method: trades, lambda: 5}\n")
    assert in_force("rb-train")["lambda"] == ("5.0", "rbtools.yaml")
    config("rb-train: {preset: rice2020, epochs: 3}\n")
    found = in_force("rb-train")
    assert found["method"] == ("pgd", "preset rice2020") and found["epochs"] == ("3", "rbtools.yaml")
    assert found["attack-steps"] == ("10", "preset rice2020")


def test_a_preset_of_the_command_line_is_the_whole_recipe() -> None:
    config("rb-train: {method: mart, epochs: 3, device: cpu}\n")
    found = in_force("rb-train", "--preset", "rice2020")
    assert found["epochs"] == ("200", "preset rice2020") and found["method"][0] == "pgd"
    assert found["device"] == ("cpu", "rbtools.yaml")


def test_lists_are_lists() -> None:
    config("rb-attack: {eps: [1, 2, 8/255]}\n")
    assert in_force("rb-attack", "pgd")["eps"] == ("1,2,8/255", "rbtools.yaml")


def test_a_default_without_effect_is_no_mistake_of_the_command_line() -> None:
    config("rb-train: {momentum: 0.5, epochs: 0}\n")  # onecycle sets the momentum
    result = run("rb-train", "--allow-empty")
    assert result.exit_code == 0, result.stderr


# --- what is refused ------------------------------------------------------------------------------

WRONG = {
    "rb-train: {epoch: 3}": "rbtools.yaml: rb-train has no option 'epoch'. Did you mean 'epochs'",
    "rb-train: {batch_size: 3}": "Did you mean 'batch-size'",
    "rb-tran: {epochs: 3}": "Unknown section in rbtools.yaml: 'rb-tran'. Did you mean 'rb-train'",
    "all: {epochs: 3}": "rbtools.yaml: all has no option 'epochs' that tools share.",
    "all: {devise: cpu}": "all has no option 'devise' that tools share. Did you mean 'device'",
    "rb-train: {epochs: many}": "epochs of rb-train is 'many'. Expected a whole number: 'many' is not",
    "rb-train: {epochs: 1.5}": "epochs of rb-train is 1.5. Expected a whole number",
    "rb-train: {epochs: -1}": "epochs of rb-train is -1. Expected a whole number: -1 is not in the range",
    "rb-train: {epochs: true}": "epochs of rb-train is true. Expected a whole number.",
    "rb-train: {epochs: [1, 2]}": "epochs of rb-train is a list. Expected a whole number.",
    "rb-train: {epochs: }": "epochs of rb-train is empty. Expected a whole number.",
    "rb-train: {nesterov: 1}": "nesterov of rb-train is 1. Expected true or false.",
    "rb-train: {lr: fast}": "lr of rb-train is 'fast'. Expected a number",
    "rb-train: {schedule: steps}": "schedule of rb-train is 'steps'. Expected one of onecycle, step",
    "rb-train: {trades: {lambda: 3}}": "trades of rb-train is a mapping. Expected a value.",
    "rb-train: 3": "rbtools.yaml: rb-train is a number. Expected options",
    "[1, 2]": "rbtools.yaml is a list. Expected a section per tool",
    "rb-train: {epochs: 3": "rbtools.yaml: line 1:",
    "rb-train: {epochs: 3}\nrb-train: {lr: 1}": "line 2: 'rb-train' stands there twice. Expected YAML",
    "rb-train: {lr: !!python/object/apply:os.getcwd []}": "could not determine a constructor",
    "rb-train: {allow-code: true}": "allow-code cannot be set by a file: it lets programs run.",
    "all: {allow-code: yes}": "allow-code cannot be set by a file: it lets programs run.",
    "rb-train: {live: true}": "live cannot be set by a file: it starts trainings.",
    "rb-train: {config: x.yaml}": "config cannot be set by a file.",
    "rb-train: {store: ../elsewhere}": "store of rb-train is '../elsewhere', which lies outside",
    "rb-train: {store: /elsewhere}": "A file cannot name that; the command line and the environment can.",
    "rb-train: {store: link}": "store of rb-train is 'link', which lies outside",
    "all: {data-dir: link/data}": "data-dir of all is 'link/data', which lies outside",
    "rb-train: {dataset: 'imagefolder:../photos'}": "dataset of rb-train is 'imagefolder:../photos', which",
    "rb-train: {dataset: 'imagefolder:~/photos'}": "dataset of rb-train is 'imagefolder:~/photos', which",
    "rb-train: {data-dir: ~/data}": "data-dir of rb-train is '~/data', which lies outside",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_in_a_file_is_said_in_one_line(text: str, tmp_path: Path) -> None:
    config(text)
    Path("link").symlink_to(tmp_path.parent)
    result = run("rb-train", "--epochs", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert WRONG[text] in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_a_file_of_indices_is_a_path_and_their_numbers_are_none() -> None:
    for text in ("/elsewhere", "../list.json:test", "~/list"):
        config(f"rb-attack: {{indices: '{text}'}}\n")
        refused = run("rb-attack", "pgd")
        assert refused.exit_code == 2 and f"indices of rb-attack is '{text}', which lies" in refused.stderr
    for text in ("0-99,7", "lists/some.txt"):
        config(f"rb-attack: {{indices: '{text}'}}\n")
        assert in_force("rb-attack", "pgd")["indices"] == (text, "rbtools.yaml")


def test_a_subcommand_that_is_none_names_the_near_miss() -> None:
    config("rb-attack: {pdg: {steps: 3}}\n")
    assert "rb-attack: 'pdg'. Did you mean 'pgd'" in run("rb-attack", "pgd").stderr


@pytest.mark.parametrize(("name", "what"), [("nowhere.yaml", "does not exist"), (".", "is a folder")])
def test_a_file_that_is_named_has_to_be_there(name: str, what: str) -> None:
    result = run("rb-train", "--config", name)
    assert result.exit_code == 2 and f"The configuration {name} {what}. Expected a YAML file" in result.stderr


def test_what_forbids_nothing_may_be_said() -> None:
    config("rb-train: {allow-code: false, store: inner/store}\n")
    assert in_force("rb-train")["allow-code"] == ("false", "rbtools.yaml")


def test_help_is_there_also_where_the_file_is_wrong() -> None:
    config("nonsense: [")
    assert run("rb-train", "--help").exit_code == 0
    assert run("rb-attack", "pgd", "--help").exit_code == 0


# --- what is in force -----------------------------------------------------------------------------


@pytest.mark.parametrize("tool", {**FILTERS, **OTHERS})
def test_print_config_is_a_file_that_changes_nothing(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RB_STORE")
    arguments = {**FILTERS, **OTHERS}[tool]
    printed = run(tool, *arguments, "--print-config")
    assert printed.exit_code == 0 and yaml.safe_load(printed.stdout)[tool]
    config(printed.stdout, "again.yaml")
    before, after = in_force(tool, *arguments), in_force(tool, *arguments, "--config", "again.yaml")
    assert {name: value for name, (value, _) in after.items()} == {
        name: value for name, (value, _) in before.items()
    }
    named = {name for name, (value, _) in before.items() if value not in ("", "not set")}
    assert named and {after[name][1] for name in named} == {"again.yaml"}  # so it was read


def test_every_command_has_the_options() -> None:
    for name in tools.TOOLS:
        for page in tools.pages(tools.tool(name)):
            if not isinstance(page.command, click.Group) and "--" not in page.words:
                flags = {flag for param in page.command.get_params(page.context) for flag in param.opts}
                assert {"--config", "--print-config"} <= flags, page.words


def test_without_a_file_yaml_is_not_even_imported() -> None:
    script = "import sys; from rbtools.commands.rank import main; sys.argv = ['rb-rank', '--by', 'acc']\n"
    script += "try: main()\nexcept SystemExit: print('yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], input="", capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "False\n", done.stderr
