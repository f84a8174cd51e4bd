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


@functools.cache
def entries_of(command: Tool, *arguments: str) -> dict[str, str]:
    """What the command's help says of each option, on one line."""
    text = CliRunner().invoke(command, [*arguments, "--help-all"]).output
    text = re.sub(r"(?<=\w)-\n +(?=\w)", "-", text)  # a word that the line's end parts
    entries = (" ".join(piece.split()) for piece in re.split(r"\n  (?=-)", text))
    return {entry.split()[0].replace("--no-", "--"): entry for entry in entries}


def named(entry: str, text: str, code: str) -> bool:
    """Whether the help, besides the choices and the default, speaks of the text and of the code of a paper
    and names the values of both; of a flag, it says which of them sets it."""
    words = re.sub(r"\[[^]]*\]", "", entry)
    sources = all(re.search(rf"\b({source})\b", words) for source in ("text|paper", "code"))
    if {text, code} <= {"on", "off"}:
        return sources and bool(re.search(r"\bcode\)? does (so|this|not)\b|\((text|paper|code)\)", words))
    if re.search("(text|paper) does not", words):
        words += f" {text}"  # then it is the default
    return sources and all(
        re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-]|[.]\d)", words) for value in (text, code)
    )


def differences(method: str) -> dict[str, tuple[Any, Any]]:
    """Options in which the presets prbench and prbench-code differ: values of both as they are typed."""
    both, cls = [presets.named(name) for name in ("prbench", "prbench-code")], METHODS.load(method)
    made = [METHODS.build(method, **presets.params(preset, cls, {})) for preset in both]
    recipes = [Recipe(**preset.recipe) for preset in both]
    return {
        "--" + registry.public_name(field).replace("_", "-"): tuple(
            typed(field, getattr(one, field.name)) for one in (first, second)
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
def test_the_help_names_both_values_of_what_the_presets_of_prbench_differ_in(method: str) -> None:
    for option, (text, code) in differences(method).items():
        entry = entries_of(main, "--method", method)[option]
        assert "PRBench" in entry and named(entry, text, code), entry


@pytest.mark.parametrize(
    ("command", "arguments", "option", "text", "code", "after"),
    [
        (main, ("--method", "mart"), "--bce", "ce", "bce", "PRBench"),
        (main, ("--method", "at-pr"), "--walk", "grad", "sign", "PRBench"),
        (main, ("--method", "pgd"), "--lr", "0.05", "0.1", "NAS-RobBench-201: "),
        (main, ("--method", "pgd"), "--weight-decay", "0.0001", "0.0005", "NAS-RobBench-201: "),
        (pr.main, (), "--gamma", "8/255", "0.03", ""),
        (pr.main, (), "--truncate", "off", "on", ""),
        (pr.main, (), "--passes", "at-least", "above", ""),
        (attack.main, ("cw",), "--kappa", "50", "2", ""),
    ],
)
def test_so_it_does_elsewhere(
    command: Tool, arguments: tuple[str, ...], option: str, text: str, code: str, after: str
) -> None:
    entry = entries_of(command, *arguments)[option]
    assert after in entry
    assert named(entry[entry.index(after) :] if after.startswith("NAS") else entry, text, code), entry
