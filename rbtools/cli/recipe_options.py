"""The recipe of a training on the command line: its options, its preset, and options without effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from rbtools import registry
from rbtools.cli import shared
from rbtools.errors import UsageError
from rbtools.trainer import presets
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS


def _rate(text: str) -> dict[str, Any]:
    rule, colon, constant = text.partition(":")
    return {"lr": constant, "lr_rule": rule} if colon else {"lr": text}


def _weights(text: str) -> dict[str, Any]:
    return {"output": "random"} if text == "random" else {"select": text}


recipe_options = shared.spec("recipe", Recipe, dict, splits={"lr": _rate, "select": _weights})


def default_method(arguments: Sequence[str]) -> str:
    """The method where none is named: the preset's, else erm."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == "--preset" and (equals or place + 1 < len(arguments)):
            return presets.named(value if equals else arguments[place + 1]).method
    return "erm"


def recipe(options: dict[str, Any], given_params: frozenset[str]) -> Recipe:
    """The recipe that options and preset make. Raises UsageError for what has no effect."""
    given = frozenset(name for name in options if _is_given(name))
    in_file = frozenset(name for name in options if _is_given(name, in_file=True))
    result = presets.recipe(options, given_params, in_file)
    fields = {field.name: field for field in registry.options(Recipe)}
    for name, reason in result.without_effect().items():
        if name in given:
            option = registry.option_name(fields[name])
            raise UsageError(f"{option} has no effect with {reason}. Leave out one, or change the other.")
    return result


def _is_given(name: str, in_file: bool = False) -> bool:
    """Whether the command line has that option (or a configuration, where that counts)."""
    source = click.get_current_context().get_parameter_source(name)
    sources = click.core.ParameterSource
    return source is sources.COMMANDLINE or (in_file and source is sources.DEFAULT_MAP)


def params(name: str, given: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The method's own options: those given, over those of the preset."""
    if recipe.preset is None:
        return given
    return presets.params(presets.named(recipe.preset), METHODS.load(name), given)
