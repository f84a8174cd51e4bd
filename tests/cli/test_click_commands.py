"""How commands are made of registered things: their options, their help, and the messages for typing
errors."""

from __future__ import annotations

import dataclasses

import click
import pytest
from click.testing import CliRunner, Result

from rbtools.attacks import ATTACKS
from rbtools.cli import method_options, tools
from rbtools.registry import param


def run(tool: str, *arguments: str) -> Result:
    command: click.Command = tools.tool(tool).command
    return CliRunner().invoke(command, list(arguments))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Sampling (Author et al. 2020), where `order="any"` may be said and `numbers` are taken.

    The second paragraph stays.

    Shape:
        images (N, C, H, W): for readers of Python.
    """

    radius: float = param(8 / 255, "Radius of the ball.", unit="eps")
    order: str = param("last", "Which come first.", choices=("any", "last"))
    lambda_: float = param(6.0, "Weight of it.", name="lambda")
    clip: bool = param(True, "Clip the image.")
    length: float | None = param(None, "Length of a step, in the unit of --eps.", unit="eps")
    inside: int = 3


def test_fields_become_options() -> None:
    options = {option.name: option for option in method_options.method_options([Sample, Sample])}
    assert list(options) == ["radius", "order", "lambda_", "clip", "length"]
    assert options["radius"].metavar == "DISTANCE"
    assert options["radius"].help == "Radius of the ball, in 1/255.  [default: 8]"
    assert options["length"].help == "Length of a step, in the unit of --eps."
    assert options["order"].type.choices == ("any", "last")  # type: ignore[attr-defined]
    assert options["lambda_"].opts == ["--lambda"]
    assert (options["clip"].opts, options["clip"].secondary_opts) == (["--clip"], ["--no-clip"])
    assert options["clip"].help == "Clip the image.  [default: on]"


def test_a_docstring_becomes_help_without_python() -> None:
    assert method_options.for_people(Sample) == (
        "Sampling (Author et al. 2020), where --order any may be said and numbers are taken.\n\n"
        "The second paragraph stays."
    )


def test_a_list_of_commands_shows_whole_sentences() -> None:
    shown = " ".join(run("attack", "--help").stdout.split())
    assert "fgsm Fast gradient sign method (Goodfellow et al. 2015, arXiv:1412.6572), L-infinity. " in shown


def test_help_of_a_chosen_method_says_what_it_is_and_has_its_options() -> None:
    shown = run("train", "--method", "trades", "--help").stdout
    assert "--method trades:\n  TRADES (Zhang et al. 2019" in shown and "--lambda X " in shown
    both = run("train", "--help", "--method", "erm,trades").stdout
    assert "--method erm:" in both and "--method trades:" in both
    plain = run("train", "--help").stdout
    assert "TRADES" not in plain and "--lambda" not in plain


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("attack", [], f"No attack is named. Choose one of: {', '.join(ATTACKS)}"),
        ("ge", [], "No command is named. Choose one of: acc, attack, corrupt, loss, pr. Try 'rb-ge --help'."),
        ("ge", ["attack"], f"No attack is named. Choose one of: {', '.join(ATTACKS)}"),
        (
            "attack",
            ["--eps", "8"],
            "No option '--eps' stands before the attack. Options follow it: rb-attack fgsm --eps ... Try",
        ),
        ("corrupt", ["--n", "8", "fog,frost", "a b"], "Options follow it: rb-corrupt fog,frost --n 8 'a b'."),
        (
            "store",
            ["--store", "S", "ls"],
            "stands before the command. Options follow it: rb-store ls --store S.",
        ),
        ("ge", ["pgd", "x.jsonl"], "'pgd' is the name of an attack. Write: rb-ge attack pgd. Try"),
        ("ge", ["fog,frost"], "'fog,frost' is the name of a corruption. Write: rb-ge corrupt fog,frost. Try"),
        ("ge", ["uniform"], "'uniform' is the name of a noise. Write: rb-ge pr --noise uniform. Try"),
        ("train", ["--method", "corruption", "--noise", "normal"], "Did you mean 'gaussian'? Try"),
        ("plot", ["corruption"], "Unknown plot 'corruption'. Did you mean 'corruptions'"),
        ("attack", ["transfr"], "Unknown attack 'transfr'. Did you mean 'transfer'? Known: fgsm,"),
        ("train", ["--lambda", "3"], "Option '--lambda' belongs to --method trades"),
        ("train", ["--method=erm", "--eps", "3"], "Option '--eps' belongs to --method pgd and "),
        ("train", ["--method"], "Option '--method' requires an argument."),
    ],
)
def test_a_slip_is_answered_in_one_line(tool: str, arguments: list[str], message: str) -> None:
    result = run(tool, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"rb-{tool}: error: ") and message in result.stderr


@pytest.mark.parametrize(
    ("tool", "kept"), [("rank", False), ("plot", False), ("attack", True), ("ge", True), ("train", True)]
)
def test_an_interruption_promises_only_what_is_true(
    tool: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command: click.Command = tools.tool(tool).command

    def interrupted(context: click.Context) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "invoke", interrupted)
    result = CliRunner().invoke(command, {"attack": ["fgsm"], "ge": ["acc"], "plot": ["hist"]}.get(tool, []))
    assert result.exit_code == 130
    promise = "; what was finished is written and in the store" if kept else ""
    assert result.stderr == f"rb-{tool}: error: interrupted{promise}.\n"
