"""The architecture spaces that rb-arch lists. Torch is only needed to count the zoo's networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol

from rbtools.errors import RbError, unknown
from rbtools.registry import Registry

SPACES = Registry(
    "space",
    {
        "nasbench201": "rbtools.spaces.nasbench201:NASBench201",
        "zoo": "rbtools.spaces.zoo:Zoo",
        "fcnn": "rbtools.spaces.residual:fcnn",
        "rescnn": "rbtools.spaces.residual:rescnn",
    },
    group="spaces",
    last=("fcnn", "rescnn"),
    closed=True,
)

# Spaces whose architectures have names but cannot be listed.
BY_NAME = Registry(
    "space",
    {
        "python": "rbtools.spaces.own_code:python",
        "checkpoint": "rbtools.spaces.own_code:checkpoint",
        "answers": "rbtools.spaces.own_code:answers",
    },
    group="named-spaces",
    last=("python", "checkpoint", "answers"),
    closed=True,
)


class Space(Protocol):
    """A numbered set of architectures, as a frozen dataclass whose fields are the sizes of the networks.

    Every method raises RbError for an architecture that is not in the space.
    """

    sizes: ClassVar[tuple[str, ...]]  # the fields for the sizes of its networks

    def __len__(self) -> int: ...

    def indices(self, unique: bool = False) -> Iterable[int]:
        """Returns all indices in ascending order, or, with `unique`, one per class of equal networks."""

    def arch(self, index: int, *, classes: int = 10, shape: Iterable[int] = (3, 32, 32)) -> dict[str, Any]:
        """Returns a record's `arch` with the counts for `classes` outputs and images of `shape` (C, H, W)."""

    def find(self, text: str) -> int:
        """Returns the index for a number, a name, or a string in the space's own notation."""

    def neighbours(self, index: int) -> list[int]:
        """Returns the indices of the architectures that are one small change away from the given one."""

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        """Returns `arch` with completed fields and newly computed counts."""


@cache
def space(name: str) -> Space:
    """Returns the space called `name`. Raises RbError for an unknown name."""
    if name not in SPACES and name not in BY_NAME:
        raise unknown("space", name, [*SPACES, *BY_NAME])
    built: Space = (BY_NAME if name in BY_NAME else SPACES).load(name)()
    return built


def sized(name: str, **sizes: int | None) -> Space:
    """Returns the space called `name` with networks of these sizes. None means the default size.

    Raises RbError if the space does not have such a size or if a value is not possible.
    """
    chosen, given = space(name), {key: value for key, value in sizes.items() if value is not None}
    for key in given:
        if key not in chosen.sizes:
            having = [other for other in SPACES if key in space(other).sizes]
            if not having:
                known = dict.fromkeys(size for other in SPACES for size in space(other).sizes)
                raise unknown("size", key, list(known))
            raise RbError(
                f"The networks of the space {name} have no {key}, unlike those of {' and '.join(having)}."
                f" Leave out the {key}."
            )
    return dataclasses.replace(chosen, **given) if given else chosen  # type: ignore[type-var]


def describe(arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
    """Complete a record's `arch` and count its parameters and multiply-adds, for images (C, H, W).

    Other fields are returned unchanged. Raises RbError for an unknown space or architecture, and for a
    network that does not fit the images.
    """
    name = arch.get("space")
    if not isinstance(name, str):
        raise RbError(f"The record's arch names the space {name!r}. Expected one of: {', '.join(SPACES)}.")
    return space(name).describe(arch, classes, shape)
