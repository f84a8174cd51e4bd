"""The interface of network families, which recognise their state dicts, and helpers for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rbtools.errors import RbError

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_NAME = 200  # of a tensor; longer names are not searched for numbers
NAME_KEYS = ("model", "model_name", "arch", "architecture")  # in the options of training scripts
State = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Inferred:
    """A network inferred from weights: an architecture record, the numbers of classes and image channels."""

    arch: dict[str, Any]
    classes: int
    in_channels: int


class Ambiguous(RbError):
    """Several networks have these weights: all are in `candidates`, the message names some."""

    def __init__(self, message: str, candidates: list[Inferred]) -> None:
        super().__init__(message)
        self.candidates = candidates


class Family(Protocol):
    """`(state, metadata) -> Inferred`; None where the state is not of this family.

    Raises RbError where it is but no network of the family fits, `Ambiguous` where several do.
    """

    def __call__(self, state: State, metadata: Mapping[str, Any]) -> Inferred | None: ...


# What the last layer is called, by itself or inside a Sequential.
HEAD = re.compile(r"(fc|linear|classifier|head|heads|last_linear|logits)(\.(\d+|head|fc))?\.weight")


def weight(state: State, name: str, rank: int) -> Tensor | None:
    """The tensor of that name, where it has so many dimensions and none of them is empty."""
    tensor = state.get(name)
    return tensor if tensor is not None and tensor.ndim == rank and tensor.numel() else None


def head_key(state: State) -> str | None:
    """The name of the last layer's weights, where one tensor alone can be meant."""
    names = [key for key, value in state.items() if value.ndim == 2 and value.numel() and HEAD.fullmatch(key)]
    return names[0] if len(names) == 1 else None


def head_of(state: State) -> Tensor | None:
    """The last layer's weights (classes, features), where one tensor alone can be meant."""
    key = head_key(state)
    return None if key is None else state[key]


def noted_names(metadata: Mapping[str, Any]) -> list[str]:
    """The names of networks in the options that training scripts save beside the weights, as timm's does
    (`args.model`), without the tag of timm's weights.
    """
    options = [metadata, *(metadata.get(place) for place in ("args", "hyper_parameters", "config"))]
    names = [place.get(key) for place in options if isinstance(place, Mapping) for key in NAME_KEYS]
    return [name.partition(".")[0] for name in names if isinstance(name, str)]


def numbered(state: State, pattern: str) -> list[tuple[int, int]]:
    """The two numbers in each name that the pattern matches; 0 for an empty second one."""
    matches = (re.fullmatch(pattern, key) for key in state if len(key) < LONGEST_NAME)
    return [(int(match[1]), int(match[2] or 0)) for match in matches if match]
