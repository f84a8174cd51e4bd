"""Presets: the recipes of papers, with their names and the options that they set. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rbtools import registry, units
from rbtools.datasets import Description
from rbtools.errors import UsageError
from rbtools.inputs.named_networks import normalization
from rbtools.registry import gathered
from rbtools.trainer.recipe import Recipe

_SMALL_LAMBDA = ("svhn", "mnist", "imagenet50", "tinyimagenet")


@dataclass(frozen=True)
class TrainingPreset:
    """A paper's recipe: the method, if the recipe specifies one, fields of `Recipe`, and parameters of
    methods. `params` apply to all methods that have these parameters, and `methods` to single methods.
    `single_step` applies to methods whose inner attack has one step. `on` maps a data set to the fields and
    parameters that differ on it. `weights` contains the weight lambda of methods on some data sets."""

    method: str
    recipe: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    single_step: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


def named(name: str) -> TrainingPreset:
    """Return the preset with this name or alias. Raises UsageError, whose message lists similar names."""
    reason = gathered("presets-without-training").get(name)
    if reason is not None:
        raise UsageError(f"The preset {name} does not train a network: {reason}")
    preset: TrainingPreset = registry.preset("training-presets", name)
    return preset


def recipe(options: Mapping[str, Any], params_given: Iterable[str], given: Iterable[str]) -> Recipe:
    """Return the recipe with these options. A preset provides the options that are not in `given`. Lists and
    normalisations may be strings. Raises UsageError if a string is invalid."""
    fields = _read(options)
    if fields.get("preset") is not None:
        preset = named(fields["preset"])
        fields |= {name: value for name, value in preset.recipe.items() if name not in given}
        fields["preset"] = gathered("preset-aliases").get(fields["preset"], fields["preset"])
        if "schedule" in given and "milestones" not in given:
            fields["milestones"] = ()
    return Recipe(**fields, given=frozenset((*given, *params_given)))


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(options)
    for name in ("augment", "regularize", "track"):
        if name in fields:
            fields[name] = None if fields[name] == "auto" and name == "augment" else _listed(fields[name])
    if "milestones" in fields:
        epochs = fields["milestones"]
        text = isinstance(epochs, str)
        fields["milestones"] = units.whole_numbers(epochs, "--milestones") if text else tuple(epochs)
    if fields.get("normalize") == "auto":
        fields["normalize"] = None
    elif isinstance(fields.get("normalize"), str):
        fields["normalize"] = normalization(fields["normalize"])
        if fields["normalize"] == "per-image":
            raise UsageError(
                "--normalize per-image can only be used to evaluate checkpoints. Train with MEAN STD, none or"
                " a name."
            )
    return fields


def _listed(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if not isinstance(value, str):
        return None if value is None else tuple(value)
    return () if value == "none" else tuple(filter(None, (part.strip() for part in value.split(","))))


def params(preset: TrainingPreset, cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method's parameters; the given parameters replace those of the preset. A published step size
    applies only to its radius; for another radius, it is left out."""
    own = {one.name for one in registry.options(cls)}
    values = {key: value for key, value in preset.params.items() if key in own}
    name = getattr(cls, "name", "")
    values |= preset.methods.get(name, {})
    if {**values, **given}.get("attack_steps") == 1:
        values |= preset.single_step.get(name, {})
    if "eps" in given:
        eps, norm = given["eps"], given.get("norm") or values.get("norm", "linf")
        eps = units.eps_to_pixels(eps, norm) if isinstance(eps, str) else eps
        if eps != preset.params.get("eps"):
            values.pop("step_size", None)
    return {**values, **given}


def on_data(method: Any, recipe: Recipe, about: Description) -> tuple[Any, Recipe]:
    """Return the method and the recipe with the preset's changes for this data set. Values that the user set
    are kept."""
    if recipe.preset is None:
        return method, recipe
    preset, kind = named(recipe.preset), about.name.partition(":")[0]
    changes = dict(preset.on.get(kind, {}))
    if kind in _SMALL_LAMBDA and method.name in preset.weights:
        changes["lambda_"] = preset.weights[method.name]
    if getattr(method, "eps", None) != changes.get("eps", preset.params.get("eps")) and "eps" in recipe.given:
        for step in ("step_size", "plain_step", "step_min", "step_max"):
            changes.pop(step, None)  # the published step is for another radius
    changes = {key: value for key, value in changes.items() if key not in recipe.given}
    if recipe.augment is not None and "augment" not in recipe.given:  # digits are not augmented
        kinds = changes.get("augment", recipe.augment)
        changes["augment"] = tuple(k for k in kinds if k.removesuffix("-reflect") in about.augment)
    fields = {field.name for field in dataclasses.fields(recipe)}
    own = {one.name for one in registry.options(type(method))}
    recipe = dataclasses.replace(recipe, **{key: value for key, value in changes.items() if key in fields})
    return dataclasses.replace(method, **{k: v for k, v in changes.items() if k in own}), recipe
