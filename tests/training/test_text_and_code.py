"""Where a paper's text and its authors' code differ, the help of the option names both values."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
from click.testing import CliRunner

from rbtools import registry
from rbtools.cli.declare import Tool
from rbtools.commands import attack, pr
from rbtools.commands.train import main
from rbtools.trainer import presets
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS

# (option, method, value of PRBench's text or what stands for it, value of wellzline/PRBenchmark), as typed.
PRBENCH = [
    *(("--inner-mode", method, "eval", "train") for method in ("pgd", "alp", "clp", "at-pr")),
    ("--extra-pass", "trades", "on", "off"),
    ("--bce", "mart", "ce", "bce"),
    *(
        row
        for method, weight in (("alp", "0.01"), ("clp", "0.3"))
        for row in (
            ("--lambda", method, "1", weight),
            ("--pair", method, "softmax", "logits"),
            ("--distance", method, "squared", "l2"),
            ("--extra-pass", method, "off", "on"),
        )
    ),
    ("--scale", "corruption", "eps", "unit"),
    ("--samples", "cvar", "20", "10"),
    ("--tail", "cvar", "prl", "advbench"),
    ("--tail-step", "cvar", "image", "batch"),
    ("--candidates", "at-pr", "5", "10"),
    ("--step-min", "at-pr", "1", "1.235"),
    ("--step-max", "at-pr", "4", "2.765"),
    ("--steps-min", "at-pr", "5", "8"),
    ("--steps-max", "at-pr", "15", "17"),
    ("--eps-spread", "at-pr", "0", "5.1"),
    ("--settings", "at-pr", "image", "batch"),
    ("--first", "at-pr", "drawn", "plain"),
    ("--walk", "at-pr", "grad", "sign"),
    ("--walk-steps", "at-pr", "10", "40"),
    ("--walk-size", "at-pr", "own", "plain"),
    ("--walk-rest", "at-pr", "0", "0.1"),
    ("--walk-gradient", "at-pr", "drop", "keep"),
    ("--fallback", "at-pr", "loss", "first"),
    ("--resample", "erm", "timm", "prbench"),
    ("--batch-size", "erm", "128", "256"),
    ("--lr", "erm", "0.01", "0.1"),
    ("--weight-decay", "erm", "0.0035", "0.0005"),
    ("--augment", "erm", "auto", "crop-reflect,flip"),
]


@functools.cache
def entries_of(command: Tool, *arguments: str) -> dict[str, str]:
    """What the command's help says of each option, on one line."""
    text = CliRunner().invoke(command, [*arguments, "--help-all"]).output
    text = re.sub(r"(?<=\w)-\n +(?=\w)", "-", text)  # a word that the line's end parts
    entries = (" ".join(piece.split()) for piece in re.split(r"\n  (?=-)", text))
    return {entry.split()[0].replace("--no-", "--"): entry for entry in entries}


def named(entry: str, text: str, code: str) -> bool:
    """Whether the text's value precedes "(text" or "(not in the text", and then the code's one "(code"."""
    parts = re.search(
        rf"(?<![\w.-]){re.escape(text)} \((?:not in the )?text(.*?)\((PRBench's )?code\b", entry
    )
    return parts is not None and re.search(rf"(?<![\w.,-]){re.escape(code)}(?![\w.])", parts[1]) is not None


@pytest.mark.parametrize(
    ("command", "arguments", "option", "text", "code"),
    [
        *((main, ("--method", method), option, *values) for option, method, *values in PRBENCH),
        (main, ("--method", "pgd"), "--lr", "0.05", "0.1"),  # of NAS-RobBench-201
        (main, ("--method", "pgd"), "--weight-decay", "0.0001", "0.0005"),
        (pr.main, (), "--gamma", "8/255", "0.03"),
        (pr.main, (), "--truncate", "off", "on"),
        (pr.main, (), "--passes", "at-least", "above"),
        (attack.main, ("cw",), "--kappa", "50", "2"),
    ],
)
def test_the_help_names_the_value_of_text_and_code(
    command: Tool, arguments: tuple[str, ...], option: str, text: str, code: str
) -> None:
    entry = entries_of(command, *arguments)[option]
    nas_robbench = (text, code) in (("0.05", "0.1"), ("0.0001", "0.0005"))
    assert command is not main or nas_robbench or "PRBench" in entry
    assert named(entry.partition("NAS-RobBench-201: ")[2] if nas_robbench else entry, text, code), entry


def differences(method: str) -> dict[str, tuple[Any, Any]]:
    """Options in which the presets prbench and prbench-code differ: values of both as they are typed."""
    both, cls = [presets.named(name) for name in ("prbench", "prbench-code")], METHODS.load(method)
    made = [METHODS.build(method, **presets.params(preset, cls, {})) for preset in both]
    recipes = [Recipe(**preset.recipe) for preset in both]
    return {
        "--" + registry.public_name(field).replace("_", "-"): (
            typed(field, getattr(first, field.name)),
            typed(field, getattr(second, field.name)),
        )
        for owner, (first, second) in ((cls, made), (Recipe, recipes))
        for field in registry.options(owner)
        if getattr(first, field.name) != getattr(second, field.name)
    }


def typed(field: Any, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == ():
        return str(field.metadata["typed"])
    if isinstance(value, str | tuple):
        return value if isinstance(value, str) else ",".join(value)
    return f"{value * 255 if field.metadata['unit'] == 'eps' else value:g}"


@pytest.mark.parametrize("method", METHODS)
def test_every_difference_of_the_presets_is_in_the_table(method: str) -> None:
    table = {option: (text, code) for option, name, text, code in PRBENCH if name in (method, "erm")}
    for option, values in differences(method).items():
        assert table.get(option) == values, option
