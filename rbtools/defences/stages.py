"""The stages of a run, as --defend names them: `jpeg:75,quantize:bits=4`."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.defences import DEFENCES
from rbtools.defences.base import Backward, Defence
from rbtools.errors import RbError

if TYPE_CHECKING:
    from rbtools.defences.defended import Defended
    from rbtools.lazy import nn

OVERRIDES = ("none", "identity", "own")


@dataclass(frozen=True)
class Stages:
    """Stages in their order. backward: see `Defended`."""

    stages: tuple[Defence, ...]
    backward: Backward | None = None

    @property
    def text(self) -> str:
        """The list as --defend takes it, with every option."""
        return ",".join(":".join((_name(stage), *_options(stage))) for stage in self.stages)

    @property
    def backwards(self) -> list[str]:
        """How the gradient of each stage is taken."""
        return [self.backward or stage.backward for stage in self.stages]

    def key_fields(self) -> dict[str, Any]:
        """What determines results: names, versions, options and gradients of the stages."""
        return {
            "defend": [
                {"defence": _name(stage), "version": stage.version, "config": registry.config(stage)}
                for stage in self.stages
            ],
            "backward": self.backwards,
        }

    def before(self, model: nn.Module) -> Defended:
        """The model behind the stages."""
        from rbtools.defences.defended import Defended

        return Defended(model, self.stages, backward=self.backward)


def parse(text: str, *, allow_code: bool = False) -> tuple[Defence, ...]:
    """The stages of a list: NAME, NAME:VALUE for its first option, NAME:OPTION=VALUE:OPTION=VALUE.

    Raises RbError for an unknown name or option, a value out of range, and for python:MODULE:CLASS without
    `allow_code`.
    """
    pieces: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if piece:
            pieces.append(piece)
    if not pieces:
        raise RbError("--defend is empty. Expected a list such as jpeg:75 or jpeg:75,quantize:4.")
    return tuple(_stage(piece, allow_code) for piece in pieces)


def _stage(text: str, allow_code: bool) -> Defence:
    words = text.split(":")
    own = text.startswith(registry.OWN)
    name, values = (":".join(words[:3]), words[3:]) if own else (words[0], words[1:])
    if own and not allow_code:
        raise RbError(f"{name} is a program, which would run. If you trust it, add --allow-code.")
    cls = DEFENCES.load(name)
    fields = registry.options(cls)
    hints = typing.get_type_hints(cls)
    by_name = {registry.public_name(field): field for field in fields}
    options: dict[str, Any] = {}
    for place, given in enumerate(values):
        key, equals, value = given.partition("=")
        if not equals:
            if place or not fields:
                raise RbError(f"--defend {text}: '{given}' is no OPTION=VALUE.")
            key, value = registry.public_name(fields[0]), given
        hint = hints[by_name[key].name] if key in by_name else str
        options[key] = _value(value, hint, f"{key} of defence '{name}'")
    stage: Defence = DEFENCES.build(name, **options)
    return stage


def _value(text: str, hint: Any, label: str) -> Any:
    if hint is bool and text in ("yes", "no"):
        return text == "yes"
    kinds = {int: "a whole number", float: "a number", bool: "yes or no"}
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            pass
    elif hint not in kinds:
        return text
    raise RbError(f"{label} is '{text}'. Expected {kinds[hint]}.")


def _name(stage: Defence) -> str:
    """The name that --defend has for it."""
    if stage.name in DEFENCES and DEFENCES.load(stage.name) is type(stage):
        return stage.name
    if stage.name in DEFENCES.plugins:
        return stage.name
    return f"{registry.OWN}{type(stage).__module__}:{type(stage).__qualname__}"


def _options(stage: Defence) -> list[str]:
    def shown(value: Any) -> str:
        return ("no", "yes")[value] if isinstance(value, bool) else f"{value}"

    return [
        f"{registry.public_name(field)}={shown(getattr(stage, field.name))}"
        for field in registry.options(type(stage))
    ]
