"""What a family of networks says of a state dict that is one of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rbtools.errors import RbError

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_NAME = 200  # of a tensor: in a longer one, numbers are none
State = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Inferred:
    """A network told from its weights: an architecture record and the sizes of its two ends."""

    arch: dict[str, Any]
    classes: int
    in_channels: int


class Ambiguous(RbError):
    """Several networks have these weights: `candidates`, of which the message names some."""

    def __init__(self, message: str, candidates: list[Inferred]) -> None:
        super().__init__(message)
        self.candidates = candidates


class Family(Protocol):
    """`(state, metadata) -> Inferred`; None where the state is not of this family.

    Raises RbError where it is but the network cannot be told, `Ambiguous` where several fit.
    """

    def __call__(self, state: State, metadata: Mapping[str, Any]) -> Inferred | None: ...


# What the last layer is called, by itself or inside a Sequential.
HEAD = re.compile(r"(fc|linear|classifier|head|heads|last_linear|logits)(\.(\d+|head))?\.weight")


def weight(state: State, name: str, rank: int) -> Tensor | None:
    """The tensor of that name, where it has so many dimensions and none of them is empty."""
    found = state.get(name)
    return found if found is not None and found.ndim == rank and found.numel() else None


def head_key(state: State) -> str | None:
    """The name of the last layer's weights, where one tensor alone can be meant."""
    found = [key for key, value in state.items() if value.ndim == 2 and value.numel() and HEAD.fullmatch(key)]
    return found[0] if len(found) == 1 else None


def head_of(state: State) -> Tensor | None:
    """The last layer's weights (classes, features), where one tensor alone can be meant."""
    key = head_key(state)
    return None if key is None else state[key]


def numbered(state: State, pattern: str) -> list[tuple[int, int]]:
    """The two numbers in each name that the pattern matches; 0 for an empty second one."""
    matches = (re.fullmatch(pattern, key) for key in state if len(key) < LONGEST_NAME)
    return [(int(match[1]), int(match[2] or 0)) for match in matches if match]
