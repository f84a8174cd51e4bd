"""The defence stages of a run, in the notation of --defend, such as `jpeg:75,quantize:4`."""

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


@dataclass(frozen=True)
class Stages:
    """A sequence of stages. The field `backward` is described in `Defended`."""

    stages: tuple[Defence, ...]
    backward: Backward | None = None

    @property
    def text(self) -> str:
        """The stages in the notation of --defend, with the value of each stage."""
        return ",".join(":".join((_name(stage), *_value_of(stage))) for stage in self.stages)

    @property
    def backwards(self) -> list[str]:
        """The name of the method that computes the gradient of each stage."""
        return [self.backward or stage.backward for stage in self.stages]

    def key_fields(self) -> dict[str, Any]:
        """All fields that determine results: the names, versions, options and gradients of the stages."""
        return {
            "defend": [
                {"defence": _name(stage), "version": stage.version, "config": registry.config(stage)}
                for stage in self.stages
            ],
            "backward": self.backwards,
        }

    def before(self, model: nn.Module) -> Defended:
        from rbtools.defences.defended import Defended

        return Defended(model, self.stages, backward=self.backward)


def parse(text: str, *, allow_code: bool = False) -> tuple[Defence, ...]:
    """Parse a list of stages, each written as NAME or, with a value for its first option, NAME:VALUE. Raises
    RbError for an unknown name, a value out of range, and python:MODULE:CLASS without `allow_code`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise RbError("--defend is empty. Expected a list such as jpeg:75 or jpeg:75,quantize:4.")
    return tuple(_stage(name, allow_code) for name in names)


def _stage(text: str, allow_code: bool) -> Defence:
    own = text.startswith(registry.OWN)
    words = text.split(":", 3 if own else 1)
    name, values = (":".join(words[:3]), words[3:]) if own else (words[0], words[1:])
    if own and not allow_code:
        raise RbError(f"{name} runs your own Python code. If you trust it, add --allow-code.")
    cls = DEFENCES.load(name)
    fields = registry.options(cls)
    if values and not fields:
        raise RbError(f"--defend {text} has a value, but the defence {name} takes none. Leave it out.")
    options = {}
    if values:
        label, kind = registry.public_name(fields[0]), typing.get_type_hints(cls)[fields[0].name]
        expected = {int: "a whole number", float: "a number"}
        try:
            options = {label: kind(values[0]) if kind in expected else values[0]}
        except ValueError:
            expects = expected[kind]
            raise RbError(f"{label} of defence '{name}' is '{values[0]}'. Expected {expects}.") from None
    try:
        stage: Defence = DEFENCES.build(name, **options)
    except ValueError as wrong:  # of a class of the user's own
        raise RbError(f"--defend {text}: {wrong}.") from None
    return stage


def _name(stage: Defence) -> str:
    if stage.name in DEFENCES and DEFENCES.load(stage.name) is type(stage):
        return stage.name
    if stage.name in DEFENCES.plugins:
        return stage.name
    return f"{registry.OWN}{type(stage).__module__}:{type(stage).__qualname__}"


def _value_of(stage: Defence) -> list[str]:
    return [str(getattr(stage, field.name)) for field in registry.options(type(stage))[:1]]
